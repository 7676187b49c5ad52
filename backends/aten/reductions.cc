// Sums, means, variances, norms, extrema, products and running sums.
#include <algorithm>
#include <numeric>

#include "backends/aten/definitions.h"
#include "backends/aten/totals.h"

namespace twinrun::aten {
namespace {

constexpr size_t kKeyword = SIZE_MAX;  // the position of an argument that is given by name only

// The first argument in the element type that `dtype` asks for, in which the call computes.
Array input(const Arguments& a) {
  Array x = a.array(0, "self");
  const Element from = a.view(0, "self").element, to = a.result(0).element;
  if (from == to || is_integer(to)) return is_integer(from) ? x : converted(std::move(x), to);
  if (is_float(from) && size_of(to) > size_of(from)) return x;
  x = map(
      a.m, [&](Estimate e) { return stored(e, to); }, x);
  if (std::ranges::all_of(x.radius, [](double r) { return r == 0; })) x.radius.clear();
  return x;
}
bool whole(const Arguments& a) { return is_integer(a.result(0).element); }
// Results in integers are exact as long as binary64 holds them.
Array exact_integers(Array x) {
  for (const double v : x.value) {
    if (!(std::fabs(v) <= 0x1p53)) throw Undefined("integers beyond 2^53");
  }
  x.radius.clear();
  return x;
}

// x with the reduced dimensions last, as [outer, inner].
struct Rows {
  Array x;
  int64_t outer = 1, inner = 1;
  Dims dims;  // of the result
  std::span<const double> row(int64_t o) const {
    if (o < 0 || inner < 0 || (o + 1) * inner > x.size()) beyond_the_end();
    return {x.value.data() + o * inner, static_cast<size_t>(inner)};
  }
};
Rows rows_of(Array x, const Dims& dims, bool keep) {
  const auto rank = static_cast<int64_t>(x.dims.size());
  Checked<bool> gone(x.dims.size(), dims.empty());
  for (const int64_t d : dims) {
    if (rank > 0) gone[static_cast<size_t>(axis_of(d, rank))] = true;
  }
  Rows r;
  r.dims = reduced_dims(x.dims, dims, keep);
  Dims order, last;
  for (int64_t d = 0; d < rank; ++d) {
    const auto u = static_cast<size_t>(d);
    (gone[u] ? last : order).push_back(d);
    (gone[u] ? r.inner : r.outer) *= x.dims[u];
  }
  order.insert(order.end(), last.begin(), last.end());
  r.x = std::ranges::is_sorted(order) ? std::move(x) : permuted(x, order);
  return r;
}
// f gives the estimate of a row of exact numbers.
template <typename F>
Array reduced(const Arguments& a, const Rows& r, F f) {
  if (!r.x.exact()) throw Undefined("an argument that is rounded to another type first");
  Array out = empty_array(r.dims);
  const auto one = [&](int64_t o) { out.set(o, f(r.row(o))); };
  if (a.m.pool != nullptr && r.outer > 1 && r.x.size() > (1 << 15)) {
    const int64_t group = std::max<int64_t>(1, (1 << 15) / std::max<int64_t>(r.inner, 1));
    a.m.pool->parallel_for((r.outer + group - 1) / group, [&](int64_t g) {
      for (int64_t o = g * group; o < std::min(r.outer, (g + 1) * group); ++o) one(o);
    });
  } else {
    for (int64_t o = 0; o < r.outer; ++o) one(o);
  }
  return out;
}
template <typename F>
Array reduced(const Arguments& a, const Dims& dims, bool keep, F f) {
  return reduced(a, rows_of(a.array(0, "self"), dims, keep), f);
}

Expected total(const Arguments& a) {
  Array s = sum(a.m, input(a), a.integers(1, "dim", {}), a.flag(2, "keepdim", false));
  return whole(a) ? exact_integers(std::move(s)) : s;
}
Expected average(const Arguments& a) {
  if (whole(a)) throw Undefined("a mean of integers");
  return mean(a.m, input(a), a.integers(1, "dim", {}), a.flag(2, "keepdim", false));
}

// Variance. With Q the sum of x^2, A that of |x|, S that of (x - mean)^2, g the error of a sum of n
// terms and u the unit, to first order and relative to n - correction:
// - one pass, Q - sum^2 / n: the first sum errs by (g + u) Q, sum^2 / n by (2 g + 3 u) |mean| A;
// - two passes: the mean errs by d <= g A / n, which adds n d^2; the sum of squares by (g + 4 u) S;
// - Welford: |mean_j| <= sqrt(Q / j), so that the running mean after k terms errs by at most
//   2/3 u sqrt(k Q); summed over 2 |x_k - mean| this gives 0.95 n u Q by the inequality of Cauchy
//   and Schwarz; the accumulation adds n u S and each term's own roundings 7 u S.
// All are inside of (2 g + 12 u) Q + (2 g + 4 u) |mean| A + (g A)^2 / n, which for a small mean is
// of the order of g S. Squares may be flushed to zero: n times the smallest number.
struct Spread {
  Estimate mean, variance;
};
Spread spread_of(const Arithmetic& m, std::span<const double> x, double correction) {
  const auto n = static_cast<double>(x.size());
  if (!(n > correction)) throw Undefined("a variance of too few elements");
  double total = 0, size = 0, squares = 0, deviations = 0, offset = 0;
  for (const double v : x) {
    total += v;
    size += std::fabs(v);
    squares += v * v;
  }
  const double g = m.of_sum(static_cast<int64_t>(x.size())), mu = total / n;
  for (const double v : x) {
    deviations += (v - mu) * (v - mu);
    offset += v - mu;
  }
  deviations -= offset * offset / n;
  // The mean of Welford's method errs by 4 units of the mean magnitude more than a sum does.
  Spread s{m.more({mu, (g + 4 * m.unit) * size / n}, 2.5 * m.unit), {}};
  if (!finite(total)) {
    s.mean.radius = 0;
    s.variance = {std::nan(""), 0};
    return s;
  }
  const double radius = (2 * g + 12 * m.unit) * squares +
                        (2 * g + 4 * m.unit) * std::fabs(mu) * size + g * size * (g * size / n) +
                        n * m.smallest;
  if (!(squares + size * (size / n) < m.overflow)) {
    s.variance = {deviations / (n - correction), kInfinity};
  } else {
    s.variance = m.div({deviations, radius * oracle::kOutward}, exactly(n - correction));
  }
  return s;
}
Expected spread(const Arguments& a, bool root, bool with_mean) {
  const Value* second = a.find(1, "dim");
  const bool all = second != nullptr && second->kind == Value::Kind::kBool;  // unbiased
  const Dims dims = all ? Dims{} : a.integers(1, "dim", {});
  const bool unbiased = a.flag(all ? 1 : 2, "unbiased", true);
  const double correction = a.number(kKeyword, "correction", unbiased ? 1 : 0);
  const Rows rows = rows_of(a.array(0, "self"), dims, a.flag(3, "keepdim", false));
  Expected e = reduced(a, rows, [&](std::span<const double> x) {
    const Estimate v = spread_of(a.m, x, correction).variance;
    return root ? a.m.sqrt(v) : v;
  });
  if (with_mean) {
    e.results.emplace_back(reduced(
        a, rows, [&](std::span<const double> x) { return spread_of(a.m, x, correction).mean; }));
  }
  return e;
}
Expected var(const Arguments& a) { return spread(a, false, false); }
Expected standard(const Arguments& a) { return spread(a, true, false); }
Expected var_mean(const Arguments& a) { return spread(a, false, true); }
Expected std_mean(const Arguments& a) { return spread(a, true, true); }

// (sum of |x|^p)^(1/p), of elements with a relative error of `given` each.
Estimate norm_of(const Arithmetic& m, std::span<const double> x, double p, double given) {
  const auto n = static_cast<double>(x.size());
  double largest_size = 0, smallest_size = kInfinity;
  if (p == 0)
    return {static_cast<double>(std::ranges::count_if(x, [](double v) { return v != 0; })), 0};
  for (const double v : x) {
    if (v != v) return {std::nan(""), 0};
    largest_size = std::fmax(largest_size, std::fabs(v));
    smallest_size = std::fmin(smallest_size, std::fabs(v));
  }
  if (p == kInfinity) return m.more({largest_size, 0}, given);
  if (p == -kInfinity) return m.more({smallest_size, 0}, given);
  if (!(p > 0)) throw Undefined("a norm of negative order");
  if (!(largest_size < kInfinity) || largest_size == 0) return {largest_size, 0};
  const double g = m.of_sum(static_cast<int64_t>(x.size()));
  double sum = 0, logarithm = 0;
  for (const double v : x) {
    const double size = std::fabs(v);
    sum += p == 1 ? size : p == 2 ? size * size : std::pow(size, p);
    if (size > 0) logarithm = std::fmax(logarithm, std::fabs(p * std::log(size)));
  }
  if (p == 1) return m.more({sum, g * sum}, given);
  // Powers that overflow, or are flushed, unless the kernel scales them.
  const double root = p == 2 ? std::sqrt(sum) : std::pow(sum, 1 / p);
  if (!(sum < m.overflow)) return {root, kInfinity};
  if (p == 2)
    return m.sqrt({sum, ((g + m.unit + 2 * given) * sum + n * m.smallest) * oracle::kOutward});
  // Each power errs as in aten.pow; the root divides the relative error of the sum by p.
  const double power = (8 + 2 * std::fmin(p, 64) + 2 * logarithm) * m.unit;
  const double relative = g + power + p * given + n * m.smallest / sum;
  if (!(relative < 0.25)) return {root, kInfinity};
  const double outer = (10 + 2 / p + 2 * std::fabs(std::log(sum)) / p) * m.unit;
  return m.more({root, 0}, 1.5 * relative / p + outer);
}
Expected norm(const Arguments& a) {
  const double p = a.number(1, a.call().op.starts_with("aten.linalg") ? "ord" : "p", 2);
  const Rows rows = rows_of(input(a), a.integers(2, "dim", {}), a.flag(3, "keepdim", false));
  return reduced(a, rows, [&](std::span<const double> x) { return norm_of(a.m, x, p, 0); });
}
Expected dist(const Arguments& a) {
  const double p = a.number(2, "p", 2);
  Array d = map(
      a.m, [](Estimate x, Estimate y) { return exactly(x.value - y.value); }, a.array(0, "self"),
      a.array(1, "other"));
  d.radius.clear();
  return reduced(a, rows_of(std::move(d), {}, false),
                 [&](std::span<const double> x) { return norm_of(a.m, x, p, a.m.unit); });
}

// Where the largest (sign 1) or smallest (-1) number of a row is; the first NaN if there is one.
size_t extreme_at(std::span<const double> x, double sign) {
  if (x.empty()) throw Undefined("an extremum of no elements");
  size_t best = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] != x[i]) return i;
    if (sign * x[i] > sign * x[best]) best = i;
  }
  return best;
}
Array extreme(const Arguments& a, const Rows& rows, double sign) {
  Array out =
      reduced(a, rows, [&](std::span<const double> x) { return exactly(x[extreme_at(x, sign)]); });
  out.radius.clear();
  return out;
}
// Where `at` finds its element in each row. Any of equal elements may be pointed at: the index that
// was returned, if it points at one.
template <typename F>
Array index_of(const Arguments& a, const Rows& rows, size_t result, F at) {
  const Array given = a.result_array(result);
  if (given.size() != rows.outer) throw Undefined("indices of another shape");
  Array out = empty_array(rows.dims, true);
  for (int64_t o = 0; o < rows.outer; ++o) {
    const std::span<const double> x = rows.row(o);
    const size_t best = at(x);
    const double index = given.at(o).value;
    bool tied = index >= 0 && index < static_cast<double>(x.size());
    if (tied) {
      const double pointed = x[static_cast<size_t>(index)];
      tied = pointed == x[best] || (pointed != pointed && x[best] != x[best]);
    }
    out.value[static_cast<size_t>(o)] = tied ? index : static_cast<double>(best);
  }
  return out;
}
Array extreme_index(const Arguments& a, const Rows& rows, double sign, size_t result) {
  return index_of(a, rows, result, [&](std::span<const double> x) { return extreme_at(x, sign); });
}
Expected extremum(const Arguments& a, double sign) {
  const Rows rows =
      rows_of(a.array(0, "self"), a.integers(1, "dim", {}), a.flag(2, "keepdim", false));
  Expected e = extreme(a, rows, sign);
  if (a.has(1, "dim")) e.results.emplace_back(extreme_index(a, rows, sign, 1));
  return e;
}
Expected maximum(const Arguments& a) { return extremum(a, 1); }
Expected minimum(const Arguments& a) { return extremum(a, -1); }
Expected elementwise(const Arguments& a, double sign) {
  Array out = map(
      a.m,
      [&](Estimate x, Estimate y) {
        return exactly(sign * Arithmetic::max({sign * x.value}, {sign * y.value}).value);
      },
      a.array(0, "self"), a.array(1, "other"));
  out.radius.clear();
  return out;
}
Expected larger(const Arguments& a) { return elementwise(a, 1); }
Expected smaller(const Arguments& a) { return elementwise(a, -1); }
Expected extremes(const Arguments& a, double sign) {
  return extreme(
      a, rows_of(a.array(0, "self"), a.integers(1, "dim", {}), a.flag(2, "keepdim", false)), sign);
}
Expected amax(const Arguments& a) { return extremes(a, 1); }
Expected amin(const Arguments& a) { return extremes(a, -1); }
Expected aminmax(const Arguments& a) {
  const Rows rows = rows_of(a.array(0, "self"), a.integers(kKeyword, "dim", {}),
                            a.flag(kKeyword, "keepdim", false));
  Expected e = extreme(a, rows, -1);
  e.results.emplace_back(extreme(a, rows, 1));
  return e;
}
Expected extreme_position(const Arguments& a, double sign) {
  const Rows rows =
      rows_of(a.array(0, "self"), a.integers(1, "dim", {}), a.flag(2, "keepdim", false));
  return extreme_index(a, rows, sign, 0);
}
Expected argmax(const Arguments& a) { return extreme_position(a, 1); }
Expected argmin(const Arguments& a) { return extreme_position(a, -1); }

// Where the element of rank k is, counted from 0; NaN counts as larger than every number.
size_t ranked_at(std::span<const double> x, int64_t k) {
  if (k < 0 || k >= std::ssize(x)) throw Undefined("a rank that no element has");
  Checked<size_t> order(x.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::nth_element(order, order.begin() + k, [&](size_t i, size_t j) {
    return x[j] != x[j] ? x[i] == x[i] : x[i] < x[j];
  });
  return order[static_cast<size_t>(k)];
}
template <typename F>
Expected ranked(const Arguments& a, const Rows& rows, bool with_index, F at) {
  Array values = reduced(a, rows, [&](std::span<const double> x) { return exactly(x[at(x)]); });
  values.radius.clear();
  Expected e = std::move(values);
  if (with_index) e.results.emplace_back(index_of(a, rows, 1, at));
  return e;
}
Expected kthvalue(const Arguments& a) {
  const int64_t k = a.integer(1, "k", 1) - 1;
  const Rows rows =
      rows_of(a.array(0, "self"), {a.integer(2, "dim", -1)}, a.flag(3, "keepdim", false));
  return ranked(a, rows, true, [k](std::span<const double> x) { return ranked_at(x, k); });
}
// The lower of two in the middle; a NaN if there is one, or of the others.
Expected middle(const Arguments& a, bool skips_nan) {
  const bool along = a.has(1, "dim");
  const Rows rows = rows_of(a.array(0, "self"), along ? Dims{a.integer(1, "dim", 0)} : Dims{},
                            a.flag(2, "keepdim", false));
  if (!along && rows.x.size() == 0) return scalar(std::nan(""));
  return ranked(a, rows, along, [skips_nan](std::span<const double> x) {
    const auto isnan = [](double v) { return v != v; };
    const int64_t nans = std::ranges::count_if(x, isnan);
    if (nans > 0 && (!skips_nan || nans == std::ssize(x)))
      return static_cast<size_t>(std::ranges::find_if(x, isnan) - x.begin());
    return ranked_at(x, (std::ssize(x) - nans - 1) / 2);
  });
}
Expected median(const Arguments& a) { return middle(a, false); }
Expected nanmedian(const Arguments& a) { return middle(a, true); }

template <typename F>
Array counted(const Arguments& a, F f) {
  Array out = reduced(
      a, a.integers(1, "dim", {}), a.flag(2, "keepdim", false), [&](std::span<const double> x) {
        const auto nonzero = std::ranges::count_if(x, [](double v) { return v != 0; });
        return exactly(f(nonzero, std::ssize(x)));
      });
  out.radius.clear();
  return out;
}
Expected any(const Arguments& a) {
  return counted(a, [](auto nonzero, auto) { return nonzero > 0 ? 1.0 : 0.0; });
}
Expected all(const Arguments& a) {
  return counted(a, [](auto nonzero, auto n) { return nonzero == n ? 1.0 : 0.0; });
}
Expected count_nonzero(const Arguments& a) {
  return counted(a, [](auto nonzero, auto) { return static_cast<double>(nonzero); });
}

Expected prod(const Arguments& a) {
  const Rows rows = rows_of(input(a), a.integers(1, "dim", {}), a.flag(2, "keepdim", false));
  Array out = reduced(a, rows, [&](std::span<const double> x) {
    Product p(a.m, a.result(0).element, a.m.unit_of(a.result(0).element));
    Estimate e{1, 0};
    for (const double v : x) e = p.times(v);
    return e;
  });
  return whole(a) ? exact_integers(std::move(out)) : out;
}

// Each call of f gives a function for one line of x along the dimension, which takes the elements
// in order and gives the results.
template <typename F>
Array along(const Arguments& a, F f) {
  const Array x = input(a);
  if (!x.exact()) throw Undefined("an argument that is rounded to another type first");
  const int64_t axis = axis_of(a.integer(1, "dim", 0), static_cast<int64_t>(x.dims.size()));
  const int64_t n = x.dims.empty() ? 1 : x.dims[static_cast<size_t>(axis)];
  const int64_t inner = x.dims.empty() ? 1 : count(x.dims.part(axis + 1));
  Array out = empty_array(x.dims);
  const int64_t lines = n == 0 ? 0 : x.size() / n;
  for (int64_t line = 0; line < lines; ++line) {
    auto step = f();
    const int64_t first = line / inner * n * inner + line % inner;
    for (int64_t i = 0; i < n; ++i)
      out.set(first + i * inner, step(x.value[static_cast<size_t>(first + i * inner)]));
  }
  return whole(a) ? exact_integers(std::move(out)) : out;
}
Expected cumsum(const Arguments& a) {
  const double unit = a.m.unit_of(a.result(0).element);
  return along(a, [&] {
    return [&, n = int64_t{0}, value = 0.0, size = 0.0,
            equal = Equal()](double x) mutable -> Estimate {
      equal.add(x);
      value += x;
      size += std::fabs(x);
      ++n;
      if (n == 1) return {value, 0};
      // Rounding to few bits may go the same way each time: n - 1 units (Rump, Error estimation of
      // floating-point summation and dot product, 2012).
      const double relative = unit > a.m.unit ? static_cast<double>(n - 1) * unit
                                              : a.m.of_sum(n, static_cast<bool>(equal));
      if (!finite(value)) return {value, 0};
      if (!(size < a.m.overflow)) return {value, kInfinity};
      return {value, relative * size * oracle::kOutward + static_cast<double>(n) * a.m.smallest};
    };
  });
}
Expected cumprod(const Arguments& a) {
  return along(a, [&] {
    return [p = Product(a.m, a.result(0).element, a.m.unit_of(a.result(0).element))](
               double x) mutable { return p.times(x); };
  });
}

// The running log(exp(y) + exp(x)) as max + log1p(exp(min - max)). To first order the step errs by
// the difference times the exponential's share, by the exponential and the logarithm, and by the
// rounding of its result; errors of earlier steps are not amplified.
Expected logcumsumexp(const Arguments& a) {
  if (whole(a)) throw Undefined("exponentials of integers");
  Arithmetic m = a.m;
  m.unit = a.m.unit_of(a.result(0).element);
  return along(a, [&] {
    return [m, value = -kInfinity, radius = 0.0](double x) mutable -> Estimate {
      const double high = std::fmax(value, x), low = std::fmin(value, x);
      if (value != value || x != x) {
        value = std::nan("");
      } else if (!finite(high) || low == -kInfinity) {
        value = high;
      } else {
        const double power = std::exp(low - high), share = power / (1 + power);
        const double log = std::log1p(power);
        value = high + log;
        const double units = share * (high - low + m.elementary) + m.elementary * log;
        radius +=
            (units + std::fabs(high) + std::fabs(value)) * m.unit * oracle::kOutward + m.smallest;
      }
      return {value, finite(value) ? radius : 0};
    };
  });
}

// max + log(sum of exp(x - max)); bfloat16 and binary16 may store every step.
Expected logsumexp(const Arguments& a) {
  Arithmetic m = a.m;
  m.unit = a.m.unit_of(a.result(0).element);
  // A step of binary32 that is stored in a shorter type is good to half an ulp of that, and a bit.
  if (m.unit > a.m.unit) m.elementary = 1.5;
  return reduced(a, a.integers(1, "dim", {}), a.flag(2, "keepdim", false),
                 [&](std::span<const double> x) {
                   const double top = x[extreme_at(x, 1)];
                   if (!finite(top)) return exactly(top);
                   double value = 0, radius = 0;
                   for (const double v : x) {
                     const Estimate e = m.exp(m.sub(exactly(v), exactly(top)));
                     value += e.value;
                     radius += e.radius;
                   }
                   const double g = a.m.of_sum(std::ssize(x));
                   const Estimate s = m.rounded({value, radius + g * (value + radius)});
                   return m.add(m.log(s), exactly(top));
                 });
}

// How many elements are in each of equal bins; the last one holds its end. An element whose position
// is within its roundings of a border may be in either bin: (x - min) * (bins / (max - min)) in any
// order has four, and the sum of what it subtracts.
Expected histc(const Arguments& a) {
  const Array x = a.array(0, "self");
  const int64_t bins = a.integer(1, "bins", 100);
  double low = a.number(2, "min", 0), high = a.number(3, "max", 0);
  const Element type = a.view(0, "self").element;
  if (bins < 1 || is_half(type)) throw Undefined("a histogram of half precision");
  if (low == high && x.size() > 0) {
    const auto [least, most] = std::ranges::minmax_element(x.value);
    low = *least, high = *most;
  }
  if (low == high) low -= 1, high += 1;
  if (!finite(low) || !finite(high) || !(low < high))
    throw Undefined("a histogram without a range");
  const Arithmetic& m = a.m;
  const auto n = static_cast<double>(bins);
  const double scale = n / (high - low);
  Array out = filled({bins}, 0);
  out.radius = out.value;
  for (const double v : x.value) {
    if (!(v >= low && v <= high)) continue;
    const double at = (v - low) * scale, border = std::round(at);
    const double off = m.unit * (4 * at + (std::fabs(v) + std::fabs(low)) * scale);
    const bool exact = m.holds(v - low) && m.holds(scale) && m.holds(at) && m.holds(high - low);
    auto bin = as_integer(std::fmin(std::floor(at), n - 1));
    out.value[static_cast<size_t>(bin)] += 1;
    if (exact || std::fabs(at - border) > off || border <= 0 || border >= n) continue;
    bin = as_integer(border);
    out.radius[static_cast<size_t>(bin)] += 1, out.radius[static_cast<size_t>(bin - 1)] += 1;
  }
  return out;
}

constexpr Definition kReductionDefinitions[] = {
    {"aten.sum", total},
    {"aten.mean", average},
    {"aten.var", var},
    {"aten.std", standard},
    {"aten.var_mean", var_mean},
    {"aten.std_mean", std_mean},
    {"aten.norm", norm},
    {"aten.linalg_vector_norm", norm},
    {"aten.dist", dist},
    {"aten.max", maximum},
    {"aten.min", minimum},
    {"aten.max.other", larger},
    {"aten.min.other", smaller},
    {"aten.amax", amax},
    {"aten.amin", amin},
    {"aten.argmax", argmax},
    {"aten.argmin", argmin},
    {"aten.kthvalue", kthvalue},
    {"aten.median", median},
    {"aten.nanmedian", nanmedian},
    {"aten.histc", histc},
    {"aten.any", any},
    {"aten.all", all},
    {"aten.count_nonzero", count_nonzero},
    {"aten._is_all_true", all},
    {"aten._is_any_true", any},
    {"aten.aminmax", aminmax},
    {"aten.prod", prod},
    {"aten.cumsum", cumsum},
    {"aten.cumprod", cumprod},
    {"aten.logsumexp", logsumexp},
    {"aten.logcumsumexp", logcumsumexp},
};

}  // namespace

std::span<const Definition> reduction_definitions() { return kReductionDefinitions; }

}  // namespace twinrun::aten
