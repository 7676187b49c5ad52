// Batch, layer, group and root-mean-square normalisation, and their gradients.
//
// Kernels differ in how they sum (Welford, two passes, sums of x and x^2) and in how they apply the
// statistics: (x - mean) * invstd * weight + bias, or x * alpha + (bias - mean * alpha). The second
// form loses a few units of |x| + |mean| before the mean cancels, which the bounds allow.
#include <algorithm>

#include "backends/aten/definitions.h"

namespace twinrun::aten {
namespace {

void each(const Arithmetic& m, int64_t n, const std::function<void(int64_t)>& f) {
  if (m.pool != nullptr && n > 1) return m.pool->parallel_for(n, f);
  for (int64_t i = 0; i < n; ++i) f(i);
}

// Which elements share statistics and which share a weight. The elements of group g are
// (o * groups + g) * inner + i for o < outer, i < inner; that of weight w likewise.
struct Layout {
  int64_t outer = 1, groups = 1, inner = 1;
  int64_t size() const { return outer * inner; }  // of a group
  int64_t at(int64_t g, int64_t k) const { return (k / inner * groups + g) * inner + k % inner; }
  int64_t group_of(int64_t i) const { return i / inner % groups; }
};
Layout channels_of(const Dims& dims) {
  if (dims.size() < 2) throw Undefined("an input without channels");
  return {dims[0], dims[1], count(Dims(dims.begin() + 2, dims.end()))};
}
// How many of the first dimensions are not normalised over.
size_t rows_rank(const Dims& dims, const Dims& shape) {
  if (shape.empty() || shape.size() > dims.size() ||
      !std::equal(shape.rbegin(), shape.rend(), dims.rbegin())) {
    throw Undefined("a normalized_shape that the input does not end with");
  }
  return dims.size() - shape.size();
}

// A weight or bias, or 1 or 0 where there is none.
struct Factors {
  std::optional<Array> given;
  double otherwise = 1;
  Layout layout;
  double of(int64_t i) const {
    return given ? given->value[static_cast<size_t>(layout.group_of(i))] : otherwise;
  }
};
Factors factors(std::optional<Array> given, double otherwise, const Layout& layout) {
  if (given && given->size() != layout.groups) throw Undefined("a weight of another size");
  return {std::move(given), otherwise, layout};
}

struct Moments {
  Estimate mean, var;
};
// Mean and biased variance of n numbers. A mean by Welford's updates is off by no more than
// of_sum(n) root mean squares, and his variance by that times the standard deviation (Chan, Golub
// and LeVeque, Algorithms for computing the sample variance, 1983); two passes add the square of
// the mean's error. Sums of x and x^2 (`one_pass`) lose units of the mean square.
template <typename F>
Moments moments(const Arithmetic& m, int64_t n, F at, bool one_pass) {
  const auto count_of = static_cast<double>(n);
  double total = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) total += at(i);
  const double mean = total / count_of;
  for (int64_t i = 0; i < n; ++i) squares += (at(i) - mean) * (at(i) - mean);
  const double var = squares / count_of, square = var + mean * mean, rms = std::sqrt(square);
  if (mean != mean) return {{mean, 0}, {mean, 0}};
  // Infinite numbers and sums that overflow leave an infinity in one algorithm and NaN in another.
  if (!finite(mean) || !(2 * count_of * square < m.overflow))
    return {{mean, kInfinity}, {var, finite(mean) ? kInfinity : 0}};
  if (n == 1 && !one_pass) return {{mean, 0}, {0, 0}};
  const double relative = m.of_sum(n) + 4 * m.unit;
  const double off = relative * rms + m.smallest;
  double radius = relative * (var + 2 * std::sqrt(var) * rms) + off * off + m.smallest;
  if (one_pass) radius += 2 * relative * square;
  return {{mean, off}, {var, radius}};
}
// The mean of squares; no term cancels.
template <typename F>
Estimate mean_square(const Arithmetic& m, int64_t n, F at) {
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += at(i) * at(i);
  const double v = squares / static_cast<double>(n);
  if (!finite(v)) return {v, 0};
  if (!(2 * squares < m.overflow)) return {v, kInfinity};
  return {v, (m.of_sum(n) + 4 * m.unit) * v + m.smallest};
}
// 1 / sqrt(var + eps). No algorithm gives a variance below 0, so that eps bounds the result.
Estimate inverse(const Arithmetic& m, Estimate var, double eps) {
  const auto f = [&](double v) { return 1 / std::sqrt(v + eps); };
  const double v = f(var.value);
  if (!(var.radius < kInfinity)) return {v, kInfinity};
  if (!finite(v)) return {v, var.value == var.value ? kInfinity : 0};
  double wide = 0;
  if (var.radius > 0) {
    const double low = std::fmax(std::fmin(var.value, 0.0), var.value - var.radius);
    wide = std::fmax(f(low) - v, v - f(var.value + var.radius));
  }
  // The rounding of eps and of the sum counts half, then root, division and rsqrt.
  return m.more({v, wide == wide ? wide : kInfinity}, 6 * m.unit);
}

// (x - mean) * inv * weight + bias in either form.
Estimate normalized(const Arithmetic& m, double x, Estimate mean, Estimate inv, double weight,
                    double bias) {
  const double d = x - mean.value, w = std::fabs(weight);
  const double v = d * inv.value * weight + bias;
  if (!(mean.radius < kInfinity) || !(inv.radius < kInfinity)) return {v, kInfinity};
  if (!finite(v)) return {v, 0};
  const double most = std::fabs(inv.value) + inv.radius;
  const double size = std::fabs(x) + std::fabs(mean.value) + mean.radius;
  const double off = most * mean.radius + std::fabs(d) * inv.radius;
  return m.rounded(
      {v, w * off + 4 * m.unit * (w * most * size + std::fabs(bias)) + 4 * m.smallest * (1 + w)});
}

struct Statistics {
  std::vector<Estimate> mean, inv;
  explicit Statistics(int64_t n) : mean(static_cast<size_t>(n)), inv(static_cast<size_t>(n)) {}
};
Array array_from(const std::vector<Estimate>& from, Dims dims) {
  Array out = empty_array(std::move(dims));
  for (int64_t i = 0; i < out.size(); ++i) out.set(i, from[static_cast<size_t>(i)]);
  return out;
}
Array apply(const Arithmetic& m, const Array& x, const Layout& layout, const Statistics& s,
            const Factors& weight, const Factors& bias) {
  Array out = empty_array(x.dims);
  in_ranges(m, out.size(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto g = static_cast<size_t>(layout.group_of(i));
      out.set(i, normalized(m, x.value[static_cast<size_t>(i)], s.mean[g], s.inv[g], weight.of(i),
                            bias.of(i)));
    }
  });
  return out;
}
Statistics statistics(const Arithmetic& m, const Array& x, const Layout& layout, double eps,
                      bool one_pass) {
  Statistics s(layout.groups);
  each(m, layout.groups, [&](int64_t g) {
    const auto at = [&](int64_t k) { return x.value[static_cast<size_t>(layout.at(g, k))]; };
    const Moments of = moments(m, layout.size(), at, one_pass);
    s.mean[static_cast<size_t>(g)] = of.mean;
    s.inv[static_cast<size_t>(g)] = inverse(m, of.var, eps);
  });
  return s;
}

// ---- Batch normalisation -----------------------------------------------------------------------

struct Batch {
  Array input;
  std::optional<Array> weight, bias, running_mean, running_var;
  bool training = false, one_pass = false;
  double momentum = 0.1, eps = 1e-5;
};
// Output, mean, invstd, running mean and running variance.
Expected batch(const Arguments& a, const Batch& b, Element saved) {
  const Arithmetic& m = a.m;
  const Layout layout = channels_of(b.input.dims);
  const int64_t c = layout.groups, n = layout.size();
  const Factors weight = factors(b.weight, 1, layout), bias = factors(b.bias, 0, layout);
  Expected e;
  e.results.resize(5);
  if (b.input.size() == 0) {
    e.results[0] = filled(b.input.dims, 0);
    return e;
  }
  for (const auto* running : {&b.running_mean, &b.running_var}) {
    if (*running && (*running)->size() != c) throw Undefined("running statistics of another size");
  }
  Statistics s(c);
  if (!b.training) {
    if (!b.running_mean || !b.running_var) throw Undefined("no running statistics");
    for (int64_t i = 0; i < c; ++i) {
      s.mean[static_cast<size_t>(i)] = b.running_mean->at(i);
      s.inv[static_cast<size_t>(i)] = inverse(m, b.running_var->at(i), b.eps);
    }
    e.results[0] = apply(m, b.input, layout, s, weight, bias);
    e.results[3] = b.running_mean;  // evaluation leaves them as they are
    e.results[4] = b.running_var;
    return e;
  }
  // The CPU's kernels keep mean, sum of squares and invstd in the type of the parameters, and read
  // them from there: where that is bfloat16 or binary16, each is rounded before its use.
  const bool half = saved == Element::kBF16 || saved == Element::kF16;
  const auto count_of = static_cast<double>(n);
  Statistics running(c);
  each(m, c, [&](int64_t g) {
    const auto u = static_cast<size_t>(g);
    Moments of = moments(
        m, n, [&](int64_t k) { return b.input.value[static_cast<size_t>(layout.at(g, k))]; },
        b.one_pass);
    if (half && finite(of.mean.value) && of.var.radius < kInfinity) {
      of.mean = stored(of.mean, saved);
      of.var.radius += of.mean.radius * of.mean.radius;
      const Estimate squares = stored({of.var.value * count_of, of.var.radius * count_of}, saved);
      of.var.radius = squares.radius / count_of;
    }
    s.mean[u] = of.mean;
    s.inv[u] = inverse(m, of.var, b.eps);
    // A channel without variance and eps = 0: its invstd is 0.
    if (of.var.value == 0 && b.eps == 0) s.inv[u] = {0, of.var.radius > 0 ? kInfinity : 0};
    if (half) s.inv[u] = stored(s.inv[u], saved);
    const Estimate share = exactly(b.momentum), rest = m.sub(exactly(1), share);
    if (b.running_mean)
      running.mean[u] = m.add(m.mul(share, of.mean), m.mul(rest, b.running_mean->at(g)));
    if (b.running_var && n > 1) {
      const Estimate unbiased =
          m.more(Arithmetic::product(of.var, exactly(count_of / (count_of - 1))), 4 * m.unit);
      running.inv[u] = m.add(m.mul(share, unbiased), m.mul(rest, b.running_var->at(g)));
    }
  });
  e.results[0] = apply(m, b.input, layout, s, weight, bias);
  e.results[1] = array_from(s.mean, {c});
  e.results[2] = array_from(s.inv, {c});
  if (b.running_mean) e.results[3] = array_from(running.mean, {c});
  // Of a single number there is no unbiased variance: kernels write NaN or leave 0.
  if (b.running_var && n > 1) e.results[4] = array_from(running.inv, {c});
  return e;
}
Element saved_type(const Arguments& a) {
  return a.has_result(1) ? a.result(1).element : Element::kF32;
}
Batch batch_of(const Arguments& a) {
  Batch b;
  b.input = a.array(0, "input");
  b.weight = a.maybe(1, "weight");
  b.bias = a.maybe(2, "bias");
  return b;
}
Batch batch_with_running(const Arguments& a) {
  Batch b = batch_of(a);
  b.running_mean = a.maybe(3, "running_mean");
  b.running_var = a.maybe(4, "running_var");
  return b;
}
Expected batch_norm(const Arguments& a) {
  Batch b = batch_with_running(a);
  b.training = a.flag(5, "training", false);
  b.momentum = a.number(6, "momentum", 0.1);
  b.eps = a.number(7, "eps", 1e-5);
  return batch(a, b, saved_type(a));
}
Expected batch_norm_no_stats(const Arguments& a) {
  Batch b = batch_of(a);
  // Without running statistics the batch's are used in evaluation too.
  b.training = a.flag(3, "training", true);
  b.eps = a.number(5, "eps", 1e-5);
  if (!b.training) throw Undefined("evaluation without running statistics");
  Expected e = batch(a, b, saved_type(a));
  e.results.resize(3);
  return e;
}
// A workspace, not defined, comes between what is computed and the running statistics.
Expected with_reserve(Expected e) {
  e.results.insert(e.results.begin() + 3, std::nullopt);
  return e;
}
// cuDNN does not say how it sums: the bounds allow one pass.
Expected batch_norm_with_update(const Arguments& a) {
  Batch b = batch_with_running(a);
  b.training = true;
  b.momentum = a.number(5, "momentum", 0.1);
  b.eps = a.number(6, "eps", 1e-5);
  b.one_pass = a.has_result(3) && a.result(3).elements() > 0;
  return with_reserve(batch(a, b, saved_type(a)));
}
Expected batch_norm_no_update(const Arguments& a) {
  Batch b = batch_with_running(a);
  b.eps = a.number(6, "eps", 1e-5);
  return with_reserve(batch(a, b, saved_type(a)));
}
Expected cudnn_batch_norm(const Arguments& a) {
  Batch b = batch_with_running(a);
  b.training = a.flag(5, "training", false);
  b.momentum = a.number(6, "exponential_average_factor", 0.1);
  b.eps = a.number(7, "epsilon", 1e-5);
  b.one_pass = true;
  return with_reserve(batch(a, b, saved_type(a)));
}
Expected functional_batch_norm(const Arguments& a) {
  Batch b;
  b.input = a.array(0, "input");
  b.running_mean = a.maybe(1, "running_mean");
  b.running_var = a.maybe(2, "running_var");
  b.weight = a.maybe(3, "weight");
  b.bias = a.maybe(4, "bias");
  b.training = a.flag(5, "training", false);
  b.momentum = a.number(6, "momentum", 0.1);
  b.eps = a.number(7, "eps", 1e-5);
  b.one_pass = true;  // it may be cuDNN's
  const Element type = a.view(0, "input").element;
  const bool mixed =
      a.has(3, "weight") && a.view(3, "weight").element != a.view(0, "input").element;
  Expected e = batch(a, b, mixed ? Element::kF32 : type);
  e.results.resize(1);
  return e;
}

// ---- Gradients ---------------------------------------------------------------------------------

// Sums over a group with g = grad_output * weight and d = x - mean.
struct Sums {
  double g = 0, abs_g = 0;    // of g, |g|
  double gd = 0, abs_gd = 0;  // of g d, |g d|
  double spread = 0;          // of |g| (|x| + |mean|): kernels may sum g x and g apart
};
// rstd g - rstd^3 / n * d * sum(g d) - rstd / n * sum(g). The kernels of layer and group norm
// compute it as rstd g + b x + c with one b, so that b's error counts by |d|, but roundings by
// |x| + |mean|. Without `centred` the last sum is missing.
Estimate input_gradient(const Arithmetic& m, double n, const Sums& s, double g, double x,
                        Estimate mean, Estimate rstd, bool apart, bool centred) {
  const double d = x - mean.value, r = rstd.value, cube = r * r * r / n;
  const double slope = cube * s.gd, shift = centred ? r / n * s.g : 0.0;
  const double v = r * g - slope * d - shift;
  if (!finite(v)) return {v, 0};
  const double relative = m.of_sum(static_cast<int64_t>(n)) + 8 * m.unit;
  const double off = std::fabs(cube) * (relative * (apart ? s.spread : s.abs_gd) +
                                        8 * m.unit * s.abs_gd + mean.radius * s.abs_g);
  const double size = apart ? std::fabs(x) + std::fabs(mean.value) : std::fabs(d);
  const double radius = off * std::fabs(d) + 6 * m.unit * (std::fabs(slope) + off) * size +
                        (centred ? relative * std::fabs(r) / n * s.abs_g : 0.0) +
                        6 * m.unit * std::fabs(r * g) + 4 * m.smallest * (1 + std::fabs(r));
  return m.rounded({v, radius});
}
// r * sum(g d) with d = x - mean: the gradient of a weight, of one or several groups.
Estimate weight_gradient(const Arithmetic& m, int64_t n, double value, double size, double spread,
                         bool apart) {
  if (!finite(value)) return {value, 0};
  if (!(size + spread < m.overflow)) return {value, kInfinity};
  const double relative = m.of_sum(n);
  return m.rounded({value, relative * (apart ? spread : size) + 8 * m.unit * spread +
                               static_cast<double>(n) * m.smallest});
}

struct Backward {
  Array dy, x;
  std::vector<Estimate> mean, rstd;
  Layout groups, weights;
  std::optional<Array> weight;
  bool project = true;       // not in evaluation, where the statistics are constants
  bool centred = true;       // not in RMS norm
  bool apart = true;         // sums of g x and g apart, for the input's gradient
  bool weight_apart = true;  // and for the weight's
};
// The gradients of input, weight and bias that `wanted` asks for.
Expected gradients(const Arithmetic& m, const Backward& b, const std::vector<bool>& wanted) {
  if (b.dy.dims != b.x.dims) throw Undefined("a gradient of another shape");
  if (static_cast<int64_t>(b.mean.size()) != b.groups.groups ||
      static_cast<int64_t>(b.rstd.size()) != b.groups.groups) {
    throw Undefined("statistics of another size");
  }
  const Factors weight = factors(b.weight, 1, b.weights);
  const auto dy = [&](int64_t i) { return b.dy.value[static_cast<size_t>(i)]; };
  const auto x = [&](int64_t i) { return b.x.value[static_cast<size_t>(i)]; };
  Expected e;
  e.results.resize(wanted.size());
  if (wanted[0]) {
    Array out = empty_array(b.x.dims);
    const auto n = static_cast<double>(b.groups.size());
    each(m, b.groups.groups, [&](int64_t group) {
      const Estimate mean = b.mean[static_cast<size_t>(group)];
      const Estimate rstd = b.rstd[static_cast<size_t>(group)];
      Sums s;
      for (int64_t k = 0; k < b.groups.size() && b.project; ++k) {
        const int64_t i = b.groups.at(group, k);
        const double g = dy(i) * weight.of(i), d = x(i) - mean.value;
        s.g += g, s.abs_g += std::fabs(g);
        s.gd += g * d, s.abs_gd += std::fabs(g * d);
        s.spread += std::fabs(g) * (std::fabs(x(i)) + std::fabs(mean.value));
      }
      for (int64_t k = 0; k < b.groups.size(); ++k) {
        const int64_t i = b.groups.at(group, k);
        if (b.project) {
          out.set(i, input_gradient(m, n, s, dy(i) * weight.of(i), x(i), mean, rstd, b.apart,
                                    b.centred));
        } else {
          out.set(i, m.more(Arithmetic::product({dy(i) * weight.of(i), 0}, rstd), 4 * m.unit));
        }
      }
    });
    e.results[0] = std::move(out);
  }
  const bool of_weight = wanted[1], of_bias = wanted.size() > 2 && wanted[2];
  if (!of_weight && !of_bias) return e;
  Dims dims = b.weight ? b.weight->dims : Dims{b.weights.groups};
  Array grad = empty_array(dims), shift = empty_array(dims);
  const int64_t n = b.weights.size();
  each(m, b.weights.groups, [&](int64_t w) {
    double value = 0, size = 0, spread = 0, given = 0, total = 0, abs_total = 0;
    for (int64_t k = 0; k < n; ++k) {
      const int64_t i = b.weights.at(w, k);
      const auto g = static_cast<size_t>(b.groups.group_of(i));
      const double d = x(i) - b.mean[g].value, r = b.rstd[g].value;
      const double p = std::fabs(dy(i));
      value += dy(i) * d * r;
      size += std::fabs(dy(i) * d * r);
      spread += p * (std::fabs(x(i)) + std::fabs(b.mean[g].value)) * std::fabs(r);
      given += p * (std::fabs(d) * b.rstd[g].radius + std::fabs(r) * b.mean[g].radius);
      total += dy(i), abs_total += p;
    }
    Estimate e_w = weight_gradient(m, n, value, size, spread, b.weight_apart);
    e_w.radius += finite(value) ? given : 0;
    grad.set(w, e_w);
    shift.set(w, !finite(total)           ? Estimate{total, 0}
                 : abs_total < m.overflow ? m.rounded({total, m.of_sum(n) * abs_total})
                                          : Estimate{total, kInfinity});
  });
  if (of_weight) e.results[1] = std::move(grad);
  if (of_bias) e.results[2] = std::move(shift);
  return e;
}
std::vector<Estimate> estimates_of(const Array& from) {
  std::vector<Estimate> out;
  for (int64_t i = 0; i < from.size(); ++i) out.push_back(from.at(i));
  return out;
}
std::vector<bool> mask_of(const Arguments& a, size_t position, size_t n) {
  const Dims mask = a.integers(position, "output_mask", Dims(n, 1));
  if (mask.size() != n) throw Undefined("an output_mask of another size");
  std::vector<bool> out;
  for (const int64_t wanted : mask) out.push_back(wanted != 0);
  return out;
}

Expected batch_backward(const Arguments& a, Backward b, bool train, double eps,
                        std::string_view saved_second, const std::vector<bool>& wanted) {
  b.weight = a.maybe(2, "weight");
  b.groups = b.weights = channels_of(b.x.dims);
  b.project = train;
  if (train) {
    b.mean = estimates_of(a.array(5, "save_mean"));
    b.rstd = estimates_of(a.array(6, saved_second));
  } else {
    b.mean = estimates_of(a.array(3, "running_mean"));
    for (const Estimate var : estimates_of(a.array(4, "running_var")))
      b.rstd.push_back(inverse(a.m, var, eps));
  }
  return gradients(a.m, b, wanted);
}
Expected native_batch_norm_backward(const Arguments& a) {
  Backward b;
  b.dy = a.array(0, "grad_out"), b.x = a.array(1, "input");
  b.apart = b.weight_apart = false;
  return batch_backward(a, std::move(b), a.flag(7, "train", true), a.number(8, "eps", 1e-5),
                        "save_invstd", mask_of(a, 9, 3));
}
Expected batch_norm_backward(const Arguments& a) {
  Backward b;
  b.dy = a.array(0, "grad_out"), b.x = a.array(1, "input");
  // A workspace means cuDNN, whose sums are not known.
  b.apart = b.weight_apart = a.has(10, "reserve") && a.view(10, "reserve").elements() > 0;
  return batch_backward(a, std::move(b), a.flag(7, "update", true), a.number(8, "eps", 1e-5),
                        "save_var", mask_of(a, 9, 3));
}
Expected cudnn_batch_norm_backward(const Arguments& a) {
  Backward b;
  b.x = a.array(0, "input"), b.dy = a.array(1, "grad_output");
  return batch_backward(a, std::move(b), true, a.number(7, "epsilon", 1e-5), "save_var",
                        {true, true, true});
}

// ---- Layer, group and root-mean-square normalisation -------------------------------------------

struct Rows {
  Layout groups, weights;
  Dims dims;  // of the statistics
};
Rows rows_of(const Dims& dims, const Dims& shape) {
  const size_t rank = rows_rank(dims, shape);
  Rows r;
  r.dims = dims;
  std::fill(r.dims.begin() + static_cast<int64_t>(rank), r.dims.end(), 1);
  r.groups = {1, count(r.dims), count(shape)};
  r.weights = {count(r.dims), count(shape), 1};
  return r;
}
// Of an input without elements only the output's shape is defined.
Expected nothing(const Array& x, size_t results) {
  Expected e;
  e.results.resize(results);
  e.results[0] = filled(x.dims, 0);
  return e;
}
Expected layer_norm(const Arguments& a) {
  const Array x = a.array(0, "input");
  const Rows r = rows_of(x.dims, a.integers(1, "normalized_shape", {}));
  if (x.size() == 0) return nothing(x, 3);
  const Statistics s = statistics(a.m, x, r.groups, a.number(4, "eps", 1e-5), false);
  Expected e(apply(a.m, x, r.groups, s, factors(a.maybe(2, "weight"), 1, r.weights),
                   factors(a.maybe(3, "bias"), 0, r.weights)));
  e.results.emplace_back(array_from(s.mean, r.dims));
  e.results.emplace_back(array_from(s.inv, r.dims));
  return e;
}
Expected only_output(Expected e) {
  e.results.resize(1);
  return e;
}
Expected functional_layer_norm(const Arguments& a) { return only_output(layer_norm(a)); }
Expected layer_norm_backward(const Arguments& a) {
  Backward b;
  b.dy = a.array(0, "grad_out"), b.x = a.array(1, "input");
  const Dims shape = a.integers(2, "normalized_shape", {});
  const Rows r = rows_of(b.x.dims, shape);
  if (b.x.size() == 0) throw Undefined("an input without elements");
  b.groups = r.groups, b.weights = r.weights;
  b.mean = estimates_of(a.array(3, "mean")), b.rstd = estimates_of(a.array(4, "rstd"));
  b.weight = a.maybe(5, "weight");
  b.weight_apart = false;
  Expected e = gradients(a.m, b, mask_of(a, 7, 3));
  for (size_t i = 1; i < 3; ++i) {
    if (e.results[i]) e.results[i]->dims = shape;
  }
  return e;
}

// The CPU's kernel for inputs whose channels come last sums x and x^2 in one pass.
bool channels_first(const TensorView& view) {
  int64_t stride = 1;
  for (size_t d = view.dims.size(); d-- > 0;) {
    if (view.dims[d] != 1 && view.strides[d] != stride) return false;
    stride *= view.dims[d];
  }
  return true;
}
Expected group(const Arguments& a, int64_t groups, size_t weight_at, double eps) {
  const Array x = a.array(0, "input");
  const Layout channels = channels_of(x.dims);
  if (groups < 1 || channels.groups % groups != 0) throw Undefined("groups that do not divide");
  if (x.size() == 0) return nothing(x, 3);
  const Layout layout{1, channels.outer * groups, x.size() / (channels.outer * groups)};
  const Statistics s = statistics(a.m, x, layout, eps, !channels_first(a.view(0, "input")));
  Expected e(apply(a.m, x, layout, s, factors(a.maybe(weight_at, "weight"), 1, channels),
                   factors(a.maybe(weight_at + 1, "bias"), 0, channels)));
  e.results.emplace_back(array_from(s.mean, {channels.outer, groups}));
  e.results.emplace_back(array_from(s.inv, {channels.outer, groups}));
  return e;
}
Expected group_norm(const Arguments& a) {
  return group(a, a.integer(6, "group", 1), 1, a.number(7, "eps", 1e-5));
}
Expected functional_group_norm(const Arguments& a) {
  return only_output(group(a, a.integer(1, "num_groups", 1), 2, a.number(4, "eps", 1e-5)));
}
Expected group_norm_backward(const Arguments& a) {
  Backward b;
  b.dy = a.array(0, "grad_out"), b.x = a.array(1, "input");
  const int64_t groups = a.integer(8, "group", 1);
  b.weights = channels_of(b.x.dims);
  if (b.x.size() == 0 || groups < 1) throw Undefined("an input without elements");
  b.groups = {1, b.weights.outer * groups, b.x.size() / (b.weights.outer * groups)};
  b.mean = estimates_of(a.array(2, "mean")), b.rstd = estimates_of(a.array(3, "rstd"));
  b.weight = a.maybe(4, "weight");
  return gradients(a.m, b, mask_of(a, 9, 3));
}

double rms_eps(const Arguments& a, size_t position) {
  if (a.has(position, "eps")) return a.number(position, "eps", 0);
  // Of half precision some versions take the input's epsilon, others binary32's.
  const Element type = a.view(0, "input").element;
  if (type == Element::kF32) return 0x1p-23;
  if (type == Element::kF64) return 0x1p-52;
  throw Undefined("half precision without eps");
}
Expected rms_norm(const Arguments& a) {
  const Arithmetic& m = a.m;
  const Array x = a.array(0, "input");
  const Rows r = rows_of(x.dims, a.integers(1, "normalized_shape", {}));
  const std::optional<Array> given = a.maybe(2, "weight");
  const double eps = rms_eps(a, 3);
  if (x.size() == 0) return nothing(x, 2);
  const Factors weight = factors(given, 1, r.weights);
  std::vector<Estimate> inv(static_cast<size_t>(r.groups.groups));
  each(m, r.groups.groups, [&](int64_t g) {
    const auto at = [&](int64_t k) { return x.value[static_cast<size_t>(r.groups.at(g, k))]; };
    inv[static_cast<size_t>(g)] = inverse(m, mean_square(m, r.groups.size(), at), eps);
  });
  // Some versions store x * rstd in the input's type before they multiply by the weight.
  const Element type = a.view(0, "input").element;
  const bool twice = given.has_value() && (type == Element::kBF16 || type == Element::kF16);
  Array out = empty_array(x.dims);
  in_ranges(m, out.size(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Estimate rstd = inv[static_cast<size_t>(r.groups.group_of(i))];
      Estimate y = m.mul(x.at(i), rstd);
      if (twice) y = stored(y, type);
      out.set(i, given ? m.more(Arithmetic::product(y, {weight.of(i), 0}), 2 * m.unit) : y);
    }
  });
  Expected e(std::move(out));
  e.results.emplace_back(array_from(inv, r.dims));
  return e;
}
Expected functional_rms_norm(const Arguments& a) { return only_output(rms_norm(a)); }
Expected rms_norm_backward(const Arguments& a) {
  Backward b;
  b.dy = a.array(0, "grad_out"), b.x = a.array(1, "input");
  const Dims shape = a.integers(2, "normalized_shape", {});
  const Rows r = rows_of(b.x.dims, shape);
  if (b.x.size() == 0) throw Undefined("an input without elements");
  b.groups = r.groups, b.weights = r.weights;
  b.rstd = estimates_of(a.array(3, "rstd"));
  b.mean.assign(b.rstd.size(), Estimate{0, 0});
  b.weight = a.maybe(4, "weight");
  b.centred = b.weight_apart = false;
  Expected e = gradients(a.m, b, mask_of(a, 5, 2));
  if (e.results[1]) e.results[1]->dims = shape;
  return e;
}

constexpr Definition kDefinitions[] = {
    {"aten.native_batch_norm", batch_norm},
    {"aten._native_batch_norm_legit", batch_norm},
    {"aten._native_batch_norm_legit.no_stats", batch_norm_no_stats},
    {"aten._native_batch_norm_legit_functional", batch_norm},
    {"aten._batch_norm_with_update", batch_norm_with_update},
    {"aten._batch_norm_with_update_functional", batch_norm_with_update},
    {"aten._batch_norm_no_update", batch_norm_no_update},
    {"aten.cudnn_batch_norm", cudnn_batch_norm},
    {"aten.native_batch_norm_backward", native_batch_norm_backward},
    {"aten.batch_norm_backward", batch_norm_backward},
    {"aten.cudnn_batch_norm_backward", cudnn_batch_norm_backward},
    {"aten.native_layer_norm", layer_norm},
    {"aten.native_layer_norm_backward", layer_norm_backward},
    {"aten.native_group_norm", group_norm},
    {"aten.native_group_norm_backward", group_norm_backward},
    {"aten._fused_rms_norm", rms_norm},
    {"aten._fused_rms_norm_backward", rms_norm_backward},
    {"torch.nn.functional.batch_norm", functional_batch_norm},
    {"torch.nn.functional.layer_norm", functional_layer_norm},
    {"torch.nn.functional.group_norm", functional_group_norm},
    {"torch.nn.functional.rms_norm", functional_rms_norm},
};

}  // namespace

std::span<const Definition> normalization_definitions() { return kDefinitions; }

}  // namespace twinrun::aten
