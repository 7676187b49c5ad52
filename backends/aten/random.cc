// Random numbers. Their values are taken as given; what can be said of them is checked: the range,
// and for many numbers the mean. What dropout does with its mask is defined.
#include <fmt/format.h>

#include <algorithm>

#include "backends/aten/definitions.h"

namespace twinrun::aten {
namespace {

constexpr int64_t kMany = 1000;      // from here on, the mean is checked
constexpr double kDeviations = 8;    // standard errors
constexpr double kUnlikely = 1e-12;  // a smaller tail of the binomial distribution is reported

Expected taken_as_given() {
  Expected out;
  out.results.emplace_back(std::nullopt);
  return out;
}
const TensorView& drawn(const Arguments& a) {
  return a.call().written.empty() ? a.result(0) : a.call().written[0];
}
// Relative spacing of the numbers that a tensor holds: they are rounded, or drawn with few bits.
double spacing_of(Element e) {
  return e == Element::kBF16 ? 0x1p-7 : e == Element::kF16 ? 0x1p-10 : 0x1p-23;
}
// Whether the sum of n numbers is as far from its expectation as chance does not bring it.
bool far(double sum, double expected, double variance, double slack) {
  return !(std::fabs(sum - expected) <= kDeviations * std::sqrt(variance) + slack);
}

// P(X <= k), or P(X >= k) for `above`, of n draws with chance q each: its first term from the
// logarithm, the others by their ratios, which fall outside of the mean.
double binomial_tail(double n, double k, double q, bool above) {
  if (q <= 0) return above && k > 0 ? 0 : 1;
  if (q >= 1) return !above && k < n ? 0 : 1;
  if (above ? k <= n * q : k >= n * q) return 1;
  const double first = std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1) +
                       k * std::log(q) + (n - k) * std::log1p(-q);
  double term = 1, all = 1;
  for (double i = k; above ? i < n : i > 0; i += above ? 1 : -1) {
    term *= above ? (n - i) / (i + 1) * q / (1 - q) : i / (n - i + 1) * (1 - q) / q;
    all += term;
    if (term < all * 1e-6) break;
  }
  return std::exp(first + std::log(all));
}
bool unlikely(double n, double k, double q) {
  return binomial_tail(n, k, q, false) < kUnlikely || binomial_tail(n, k, q, true) < kUnlikely;
}

Expected native_dropout(const Arguments& a) {
  const Array x = a.array(0, "input");
  const double p = a.number(1, "p", 0.5);
  const bool train = a.flag(2, "train", true);
  Expected out;
  if (!train) {
    out.results.emplace_back(x);
    out.results.emplace_back(std::nullopt);
    return out;
  }
  const Array mask = a.result_array(1);
  if (mask.dims != x.dims) throw Undefined("a mask of another shape");
  // The scale is a division of rounded numbers. 0 times infinity is NaN, as in the kernels.
  const Estimate scale = p >= 1 ? exactly(0) : a.m.div(exactly(1), a.m.given(exactly(1 - p)));
  const Array kept = map(
      a.m, [](Estimate v, Estimate k) { return exactly(v.value * (k.value != 0 ? 1.0 : 0.0)); }, x,
      mask);
  out.results.emplace_back(map(
      a.m, [&](Estimate v) { return p == 0 ? v : a.m.mul(v, scale); }, kept));
  out.results.emplace_back(std::nullopt);
  const auto n = static_cast<double>(mask.size());
  const auto zeros = static_cast<double>(std::ranges::count(mask.value, 0.0));
  if (n > 0 && unlikely(n, zeros, p))
    out.problem =
        fmt::format("dropped {:.4g} % of {} elements at p = {}", 100 * zeros / n, mask.size(), p);
  return out;
}
Expected native_dropout_backward(const Arguments& a) {
  // The CPU's kernel stores mask * scale in the gradient's type before it multiplies.
  const Element element = a.view(0, "grad_output").element;
  Estimate scale = a.m.given(exactly(a.number(2, "scale", 1)));
  if (is_half(element)) scale = stored(scale, element);
  return map(
      a.m,
      [&](Estimate dy, Estimate k) {
        if (k.value == 0) return exactly(dy.value * 0);
        return a.m.mul(dy, scale);
      },
      a.array(0, "grad_output"), a.array(1, "mask"));
}

// Leaks at random: below 0 the factor, drawn from `lower` to `upper`, is written into `noise`; above
// it is 1. A factor that no draw gives was not written.
std::string wrong_factor(const Arguments& a, const Array& noise, const Array& x, double lower,
                         double upper, bool of_result) {
  const double slack =
      spacing_of(a.view(0).element) * std::fmax(std::fabs(lower), std::fabs(upper));
  for (int64_t i = 0; i < noise.size(); ++i) {
    const double v = noise.value[static_cast<size_t>(i)];
    const bool leaks = v >= lower - slack && v <= upper + slack;
    // The result of an element below 0 has the sign of its factor, which is not known.
    const bool above = x.value[static_cast<size_t>(i)] > 0;
    if (of_result ? leaks || v == 1 : above ? v == 1 : leaks) continue;
    return fmt::format("element {} has the factor {}, which is neither 1 nor from {} to {}", i, v,
                       lower, upper);
  }
  return "";
}
double middle(double lower, double upper) { return lower / 2 + upper / 2; }
Expected rrelu(const Arguments& a) {
  const Arithmetic& m = a.m;
  const Array x = a.array(0, "self");
  const double lower = a.number(2, "lower", 0.125), upper = a.number(3, "upper", 1.0 / 3);
  const Element type = a.view(0, "self").element;
  if (!a.flag(4, "training", false)) {
    const Estimate slope = m.given(exactly(middle(lower, upper)));
    Expected e = map(
        m,
        [&](Estimate v) {
          return v.value > 0 ? v : m.mul(v, is_half(type) ? stored(slope, type) : slope);
        },
        x);
    // The schema says that the noise is written, but without training nothing writes it.
    if (!a.call().written.empty()) e.results.emplace_back(std::nullopt);
    return e;
  }
  // The tensor that was written, or given back by the functional form.
  std::optional<Array> noise;
  const uint64_t memory = a.view(1, "noise").storage;
  for (const TensorView& w : a.call().written) {
    if (w.storage == memory && w.dims == x.dims) noise = array_of(w, m.pool);
  }
  if (!noise && a.has_result(1)) noise = a.result_array(1);
  if (noise && noise->dims != x.dims) throw Undefined("noise of another shape");
  Expected e;
  if (noise) {
    e = map(
        m,
        [&](Estimate v, Estimate r) {
          if (v.value > 0) return v;
          return m.mul(v, is_half(type) ? stored({r.value, 0x1p-1000}, type) : r);
        },
        x, *noise);
    e.problem = wrong_factor(a, *noise, x, lower, upper, false);
    e.results.emplace_back(std::move(noise));
    return e;
  }
  // Before PyTorch 2.6 the call does not say that it writes the noise.
  return map(
      m,
      [&](Estimate v) {
        if (v.value > 0) return v;
        const double reach = std::fabs(v.value) * std::fabs(upper - lower) / 2;
        return m.rounded({v.value * middle(lower, upper), reach});
      },
      x);
}
Expected rrelu_backward(const Arguments& a) {
  const Arithmetic& m = a.m;
  const Array dy = a.array(0, "grad_output"), x = a.array(1, "self");
  const double lower = a.number(3, "lower", 0.125), upper = a.number(4, "upper", 1.0 / 3);
  const Element type = a.view(0, "grad_output").element;
  const bool training = a.flag(5, "training", false);
  // PyTorch takes equal ends for no noise.
  if (training && upper - lower > 1e-6) {
    const Array noise = a.array(2, "noise");
    Expected e = map(
        m, [&](Estimate g, Estimate r) { return m.mul(g, r); }, dy, noise);
    if (noise.dims == x.dims) e.problem = wrong_factor(a, noise, x, lower, upper, true);
    return e;
  }
  Estimate slope = m.given(exactly(middle(lower, upper)));
  if (is_half(type)) slope = stored(slope, type);
  return map(
      m, [&](Estimate g, Estimate v) { return v.value > 0 ? g : m.mul(g, slope); }, dy, x);
}

Expected bernoulli(const Arguments& a) {
  Expected out = taken_as_given();
  const bool in_place = a.call().op.starts_with("aten.bernoulli_");
  // bernoulli(p) draws by its first argument; the other forms by their second.
  const Array chance = a.has(1, "p") ? a.array(1, "p")
                       : in_place    ? scalar(0.5)
                                     : a.array(0, "self");
  const Array x = array_of(drawn(a), a.m.pool);
  if (x.size() == 0) return out;
  const Array p = broadcast(chance, x.dims);
  double ones = 0, expected = 0, variance = 0;
  bool even = true;
  for (int64_t i = 0; i < x.size(); ++i) {
    const double v = x.at(i).value, q = p.at(i).value;
    if (v != 0 && v != 1) {
      out.problem = fmt::format("drew {}, which is neither 0 nor 1", v);
      return out;
    }
    if ((q == 0 && v == 1) || (q == 1 && v == 0)) {
      out.problem = fmt::format("drew {} at p = {}", v, q);
      return out;
    }
    ones += v, expected += q, variance += q * (1 - q);
    even = even && q == p.at(0).value;
  }
  const auto n = static_cast<double>(x.size());
  const bool wrong = even ? unlikely(n, ones, p.at(0).value)
                          : x.size() >= kMany && far(ones, expected, variance, n * 0x1p-23);
  if (wrong)
    out.problem = fmt::format("drew {:.4g} % ones in {} elements, {:.4g} % expected",
                              100 * ones / n, x.size(), 100 * expected / n);
  return out;
}

// Numbers from low to high with the given mean and variance each.
Expected within_range(const Arguments& a, double low, double high, bool below_high, double mean,
                      double variance) {
  Expected out = taken_as_given();
  const TensorView& view = drawn(a);
  const Array x = array_of(view, a.m.pool);
  // Numbers of few bits are rounded, up to the end of the range.
  const double slack = spacing_of(view.element) * std::fmax(std::fabs(low), std::fabs(high));
  const bool open = below_high && is_integer(view.element);
  double sum = 0;
  for (const double v : x.value) {
    const bool inside = is_integer(view.element) ? v >= low && (open ? v < high : v <= high)
                                                 : v >= low - slack && v <= high + slack;
    if (!inside) {
      out.problem = fmt::format("drew {}, outside of {} to {}", v, low, high);
      return out;
    }
    sum += v;
  }
  const auto n = static_cast<double>(x.size());
  const double unit = std::isfinite(slack) ? slack : spacing_of(view.element) * std::fabs(mean);
  if (x.size() >= kMany && far(sum, n * mean, n * variance, n * unit))
    out.problem =
        fmt::format("the mean of {} elements is {:.6g}, expected {:.6g}", x.size(), sum / n, mean);
  return out;
}
Expected uniform_between(const Arguments& a, double low, double high) {
  return within_range(a, low, high, false, low + (high - low) / 2,
                      (high - low) * (high - low) / 12);
}
Expected rand(const Arguments& a) { return uniform_between(a, 0, 1); }
Expected uniform(const Arguments& a) {
  return uniform_between(a, a.number(1, "from", 0), a.number(2, "to", 1));
}

// 20 standard deviations are more than any generator gives: 24 or 53 random bits end at 6 or 9.
Expected normal_around(const Arguments& a, const Array& centre, const Array& width) {
  Expected out = taken_as_given();
  const TensorView& view = drawn(a);
  const Array x = array_of(view, a.m.pool);
  if (x.size() == 0) return out;
  const Operand mean(centre, x.dims), deviation(width, x.dims);
  double sum = 0, variance = 0, slack = 0;
  for (int64_t i = 0; i < x.size(); ++i) {
    const double mu = mean[i].value, sd = deviation[i].value, off = x.at(i).value - mu;
    const double unit = spacing_of(view.element) * (std::fabs(mu) + sd);
    if (!(std::fabs(off) <= 20 * (sd + unit))) {
      if (!std::isfinite(mu) || !std::isfinite(sd))
        throw Undefined("a distribution without a mean");
      out.problem =
          fmt::format("drew {}, far outside of mean {} and deviation {}", x.at(i).value, mu, sd);
      return out;
    }
    sum += off, variance += sd * sd, slack += unit;
  }
  if (x.size() >= kMany && far(sum, 0, variance, slack))
    out.problem = fmt::format("the mean of {} elements is off by {:.6g}", x.size(),
                              sum / static_cast<double>(x.size()));
  return out;
}
Expected randn(const Arguments& a) { return normal_around(a, scalar(0), scalar(1)); }
Expected normal(const Arguments& a) {
  // normal_(self, mean, std); normal(mean, std) with a tensor or a size.
  const std::string& op = a.call().op;
  const bool of_means =
      op.starts_with("aten.normal.Tensor_") || op.starts_with("aten.normal.float_");
  const size_t at = of_means ? 0 : 1;
  const Array mean = a.has(at, "mean") ? a.array(at, "mean") : scalar(0);
  const Array deviation = a.has(at + 1, "std") ? a.array(at + 1, "std") : scalar(1);
  return normal_around(a, mean, deviation);
}

Expected whole_between(const Arguments& a, double low, double high) {
  const double numbers = high - low;
  if (!(std::fmax(std::fabs(low), std::fabs(high)) < 0x1p53)) return taken_as_given();
  return within_range(a, low, high, true, low + (numbers - 1) / 2, (numbers * numbers - 1) / 12);
}
// randint(high, size) and randint(low, high, size).
Expected randint(const Arguments& a) {
  if (a.call().op.starts_with("aten.randint.low"))
    return whole_between(a, a.number(0, "low", 0), a.number(1, "high", 1));
  return whole_between(a, 0, a.number(0, "high", 1));
}
Expected randint_like(const Arguments& a) {
  if (a.call().op.starts_with("aten.randint_like.low"))
    return whole_between(a, a.number(1, "low", 0), a.number(2, "high", 1));
  return whole_between(a, 0, a.number(1, "high", 1));
}
// random_(), random_(to) and random_(from, to); without `to`, up to the largest number of the type.
Expected random(const Arguments& a) {
  const std::string& op = a.call().op;
  if (op.ends_with(".to") || op.ends_with(".to_out"))
    return whole_between(a, 0, a.number(1, "to", 0));
  if ((op.ends_with(".from") || op.ends_with(".from_out")) && a.has(2, "to"))
    return whole_between(a, a.number(1, "from", 0), a.number(2, "to", 0));
  return taken_as_given();
}
Expected randperm(const Arguments& a) {
  Expected out = taken_as_given();
  const TensorView& view = drawn(a);
  const int64_t n = a.integer(0, "n", 0);
  const Array x = array_of(view, a.m.pool);
  if (!is_integer(view.element) && static_cast<double>(n) * spacing_of(view.element) > 1)
    return out;
  Checked<bool> seen(static_cast<size_t>(x.size()));
  bool good = x.size() == n;
  for (int64_t i = 0; good && i < n; ++i) {
    const double v = x.at(i).value;
    good =
        v >= 0 && v < static_cast<double>(n) && v == std::floor(v) && !seen[static_cast<size_t>(v)];
    if (good) seen[static_cast<size_t>(v)] = true;
  }
  if (!good) out.problem = fmt::format("is not a permutation of {} numbers", n);
  return out;
}
Expected exponential(const Arguments& a) {
  const double rate = a.number(1, "lambd", 1);
  if (!(rate > 0) || !std::isfinite(rate)) return taken_as_given();
  // 53 random bits end at 37 / rate.
  return within_range(a, 0, 110 / rate, false, 1 / rate, 1 / (rate * rate));
}
Expected multinomial(const Arguments& a) {
  Expected out = taken_as_given();
  const TensorView& weights = a.view(0, "self");
  if (weights.dims.empty()) throw Undefined("weights without a dimension");
  const bool again = a.flag(2, "replacement", false);
  const auto classes = static_cast<double>(weights.dims.back());
  const Array x = array_of(drawn(a), a.m.pool);
  const int64_t row = x.dims.empty() ? 1 : x.dims.back();
  for (int64_t begin = 0; begin + row <= x.size() && row > 0; begin += row) {
    Checked<double> of_row(x.value.begin() + begin, x.value.begin() + begin + row);
    for (const double v : of_row) {
      if (v >= 0 && v < classes) continue;
      out.problem = fmt::format("drew index {} of {} classes", v, classes);
      return out;
    }
    std::ranges::sort(of_row);
    if (!again && std::ranges::adjacent_find(of_row) != of_row.end()) {
      out.problem = "drew an index twice without replacement";
      return out;
    }
  }
  return out;
}

constexpr Definition kRandomDefinitions[] = {
    {"aten.native_dropout", native_dropout},
    {"aten.native_dropout_backward", native_dropout_backward},
    {"aten.rrelu_with_noise", rrelu},
    {"aten.rrelu_with_noise_functional", rrelu},
    {"aten.rrelu_with_noise_backward", rrelu_backward},
    {"aten.bernoulli", bernoulli},
    {"aten.rand", rand},
    {"aten.randn", randn},
    {"aten.rand_like", rand},
    {"aten.randn_like", randn},
    {"aten.uniform", uniform},
    {"aten.normal", normal},
    {"aten.randint", randint},
    {"aten.randint_like", randint_like},
    {"aten.randperm", randperm},
    {"aten.random", random},
    {"aten.exponential", exponential},
    {"aten.multinomial", multinomial},
};

}  // namespace

std::span<const Definition> random_definitions() { return kRandomDefinitions; }

}  // namespace twinrun::aten
