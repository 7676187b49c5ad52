// What batch, layer, group and root-mean-square normalisation share: statistics, their application
// and the gradients. A part of normalizations.cc and row_normalizations.cc.
//
// Kernels differ in how they sum (Welford, two passes, sums of x and x^2) and in how they apply the
// statistics: (x - mean) * invstd * weight + bias, or x * alpha + (bias - mean * alpha). The second
// form loses a few units of |x| + |mean| before the mean cancels, which the bounds allow.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "backends/aten/definitions.h"

namespace twinrun::aten::normalizing {

inline void each(const Arithmetic& m, int64_t n, const std::function<void(int64_t)>& f) {
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
inline Layout channels_of(const Dims& dims) {
  if (dims.size() < 2) throw Undefined("an input without channels");
  return {dims[0], dims[1], count(dims.part(2))};
}
// How many of the first dimensions are not normalised over.
inline size_t rows_rank(const Dims& dims, const Dims& shape) {
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
inline Factors factors(std::optional<Array> given, double otherwise, const Layout& layout) {
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
inline Estimate inverse(const Arithmetic& m, Estimate var, double eps) {
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
inline Estimate normalized(const Arithmetic& m, double x, Estimate mean, Estimate inv,
                           double weight, double bias) {
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
  Checked<Estimate> mean, inv;
  explicit Statistics(int64_t n) : mean(static_cast<size_t>(n)), inv(static_cast<size_t>(n)) {}
};
inline Array array_from(const Checked<Estimate>& from, Dims dims) {
  Array out = empty_array(std::move(dims));
  for (int64_t i = 0; i < out.size(); ++i) out.set(i, from[static_cast<size_t>(i)]);
  return out;
}
inline Array apply(const Arithmetic& m, const Array& x, const Layout& layout, const Statistics& s,
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
inline Statistics statistics(const Arithmetic& m, const Array& x, const Layout& layout, double eps,
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
inline Estimate input_gradient(const Arithmetic& m, double n, const Sums& s, double g, double x,
                               Estimate mean, Estimate rstd, bool apart, bool centred,
                               double coarse) {
  const double d = x - mean.value, r = rstd.value, cube = r * r * r / n;
  const double slope = cube * s.gd, shift = centred ? r / n * s.g : 0.0;
  const double v = r * g - slope * d - shift;
  if (!finite(v)) return {v, 0};
  const double relative = m.of_sum(static_cast<int64_t>(n)) + 8 * m.unit + coarse;
  const double off = std::fabs(cube) * (relative * (apart ? s.spread : s.abs_gd) +
                                        8 * m.unit * s.abs_gd + mean.radius * s.abs_g);
  const double size = apart ? std::fabs(x) + std::fabs(mean.value) : std::fabs(d);
  const double radius = off * std::fabs(d) + 6 * m.unit * (std::fabs(slope) + off) * size +
                        (centred ? relative * std::fabs(r) / n * s.abs_g : 0.0) +
                        6 * m.unit * std::fabs(r * g) + 4 * m.smallest * (1 + std::fabs(r));
  return m.rounded({v, radius});
}
// r * sum(g d) with d = x - mean: the gradient of a weight, of one or several groups.
inline Estimate weight_gradient(const Arithmetic& m, int64_t n, double value, double size,
                                double spread, bool apart) {
  if (!finite(value)) return {value, 0};
  if (!(size + spread < m.overflow)) return {value, kInfinity};
  const double relative = m.of_sum(n);
  return m.rounded({value, relative * (apart ? spread : size) + 8 * m.unit * spread +
                               static_cast<double>(n) * m.smallest});
}

struct Backward {
  Array dy, x;
  Checked<Estimate> mean, rstd;
  Layout groups, weights;
  std::optional<Array> weight;
  bool project = true;       // not in evaluation, where the statistics are constants
  bool centred = true;       // not in RMS norm
  bool apart = true;         // sums of g x and g apart, for the input's gradient
  bool weight_apart = true;  // and for the weight's
  double buffer = 0;  // unit of the type in which the gradients of weight and bias are summed
  double tree = 0;    // unit of the type in which all sums are added up pair by pair
};
// The gradients of input, weight and bias that `wanted` asks for.
inline Expected gradients(const Arithmetic& m, const Backward& b, const Checked<bool>& wanted) {
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
    const double coarse = b.tree * (1 + std::log2(n));
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
                                    b.centred, coarse));
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
  Arithmetic buffer = m;
  buffer.unit = b.buffer;
  const double coarse = (b.buffer > 0 ? buffer.of_sum(n + 1) : 0.0) +
                        b.tree * (1 + std::log2(static_cast<double>(std::max<int64_t>(1, n))));
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
    e_w.radius += finite(value) ? given + coarse * size : 0;
    grad.set(w, e_w);
    shift.set(w, !finite(total)           ? Estimate{total, 0}
                 : abs_total < m.overflow ? m.rounded({total, (m.of_sum(n) + coarse) * abs_total})
                                          : Estimate{total, kInfinity});
  });
  if (of_weight) e.results[1] = std::move(grad);
  if (of_bias) e.results[2] = std::move(shift);
  return e;
}
inline Checked<Estimate> estimates_of(const Array& from) {
  Checked<Estimate> out;
  for (int64_t i = 0; i < from.size(); ++i) out.push_back(from.at(i));
  return out;
}
inline Checked<bool> mask_of(const Arguments& a, size_t position, size_t n) {
  const Dims mask = a.integers(position, "output_mask", Dims(n, 1));
  if (mask.size() != n) throw Undefined("an output_mask of another size");
  Checked<bool> out;
  for (const int64_t wanted : mask) out.push_back(wanted != 0);
  return out;
}

}  // namespace twinrun::aten::normalizing
