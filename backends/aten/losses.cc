// Loss functions and their gradients, and the functions of torch.nn.functional that are defined by
// their documentation: those are judged as wholes, whatever calls they are composed of.
#include <cmath>

#include "backends/aten/definitions.h"

namespace twinrun::aten {
namespace {

constexpr int64_t kNone = 0, kMean = 1, kSum = 2, kBatchMean = 3;

void widen(Arithmetic& m, Element e) {
  if (e == Element::kBF16) m.unit = std::fmax(m.unit, 0x1p-8);
  if (e == Element::kF16) {
    m.unit = std::fmax(m.unit, 0x1p-11);
    m.overflow = 65520;
    m.smallest = 0x1p-14;
  }
}
// Losses whose results are of half precision are composed of calls whose results are rounded to it,
// and the CPU's kernels add them up in it. Autocast computes losses in binary32: their inputs may be
// of half precision, but their results are not.
Arithmetic arithmetic_of(const Arguments& a) {
  Arithmetic m = a.m;
  Checked<const TensorView*> views;
  collect(a.call().result, views);
  for (const TensorView* view : views) widen(m, view->element);
  return m;
}

int64_t reduction_named(const Arguments& a, size_t position) {
  const std::string name = a.text(position, "reduction", "mean");
  if (name == "none") return kNone;
  if (name == "mean") return kMean;
  if (name == "sum") return kSum;
  return name == "batchmean" ? kBatchMean : throw Undefined("an unknown reduction");
}
void without(const Arguments& a, size_t position, std::string_view name) {
  if (a.has(position, name)) throw Undefined("a loss with " + std::string(name));
}
Array reduced(const Arithmetic& m, Array losses, int64_t reduction) {
  if (reduction == kNone) return losses;
  if (reduction == kMean) return mean(m, losses, {});
  return sum(m, losses, {});
}
// The gradient of the mean is divided by the number of elements.
double share(const Array& x, int64_t reduction) {
  return reduction == kMean ? 1 / static_cast<double>(x.size()) : 1;
}

// The loss of each element, from the input and the target.
using Loss = std::function<Estimate(const Arithmetic&, double, double)>;
Expected aten_loss(const Arguments& a, const Loss& f) {
  const Arithmetic m = arithmetic_of(a);
  return reduced(m,
                 map(
                     m, [&](Estimate x, Estimate y) { return f(m, x.value, y.value); },
                     a.array(0, "self"), a.array(1, "target")),
                 a.integer(2, "reduction", kMean));
}
Expected functional_loss(const Arguments& a, const Loss& f) {
  without(a, 2, "size_average");
  without(a, 3, "reduce");
  without(a, 99, "weight");
  const Arithmetic m = arithmetic_of(a);
  const Array x = a.array(0, "input");
  const int64_t reduction = reduction_named(a, 4);
  const Array losses = map(
      m, [&](Estimate p, Estimate q) { return f(m, p.value, q.value); }, x, a.array(1, "target"));
  Array out = reduced(m, losses, reduction);
  if (reduction != kBatchMean) return out;
  const double samples = x.dims.empty() ? 1 : static_cast<double>(x.dims[0]);
  return map(
      m, [&](Estimate e) { return m.div(e, exactly(samples)); }, out);
}
// The slope of each element's loss times grad_output, over the number of elements.
using Slope = std::function<Estimate(const Arithmetic&, double, double)>;
Expected aten_slope(const Arguments& a, const Slope& f) {
  const Arithmetic m = arithmetic_of(a);
  const Array x = a.array(1, "self");
  const double part = share(x, a.integer(3, "reduction", kMean));
  return map(
      m,
      [&](Estimate dy, Estimate p, Estimate q) {
        const Estimate slope = f(m, p.value, q.value);
        const Estimate scaled = m.mul(slope, m.more(exactly(part), 2 * m.unit));
        return m.more(m.mul(dy, scaled), m.unit);
      },
      a.array(0, "grad_output"), x, a.array(2, "target"));
}

Estimate squared(const Arithmetic& m, double x, double y) {
  const Estimate d = m.sub({x, 0}, {y, 0});
  return m.mul(d, d);
}
Estimate absolute_difference(const Arithmetic& m, double x, double y) {
  const Estimate d = m.sub({x, 0}, {y, 0});
  return {std::fabs(d.value), d.radius};
}
// Both branches meet at the bend with the same value and slope: an error of the difference does not
// matter more there than elsewhere.
Loss smooth_l1_of(double beta) {
  return [beta](const Arithmetic& m, double x, double y) {
    const double z = std::fabs(x - y);
    if (z < beta) return within(m, 0.5 * z * z / beta, 0.5 * z * z / beta, 7);
    return within(m, z - 0.5 * beta, z + 0.5 * std::fabs(beta), beta == 0 ? 1 : 4);
  };
}
Loss huber_of(double delta) {
  return [delta](const Arithmetic& m, double x, double y) {
    const double z = std::fabs(x - y);
    if (z <= delta) return within(m, 0.5 * z * z, 0.5 * z * z, 5);
    return within(m, delta * (z - 0.5 * delta), delta * (z + 0.5 * delta), 5);
  };
}
Expected mse_loss(const Arguments& a) { return aten_loss(a, squared); }
Expected mse_loss_backward(const Arguments& a) {
  return aten_slope(a, [](const Arithmetic& m, double x, double y) {
    return m.mul({2, 0}, m.sub({x, 0}, {y, 0}));
  });
}
Expected smooth_l1_loss(const Arguments& a) {
  return aten_loss(a, smooth_l1_of(a.number(3, "beta", 1)));
}
Expected smooth_l1_loss_backward(const Arguments& a) {
  const double beta = a.number(4, "beta", 1);
  if (!(beta > 0)) throw Undefined("a bend of no width");
  return aten_slope(a, [beta](const Arithmetic& m, double x, double y) {
    const double z = x - y;
    const double slope = z <= -beta ? -1 : z >= beta ? 1 : z / beta;
    return within(m, slope, std::fabs(slope), std::fabs(z) > 1.01 * beta ? 0 : 5);
  });
}
Expected huber_loss(const Arguments& a) { return aten_loss(a, huber_of(a.number(3, "delta", 1))); }
Expected huber_loss_backward(const Arguments& a) {
  const double delta = a.number(4, "delta", 1);
  return aten_slope(a, [delta](const Arithmetic& m, double x, double y) {
    const double z = x - y, slope = z < -delta ? -delta : z > delta ? delta : z;
    return within(m, slope, std::fabs(slope), 3);
  });
}
// log(exp(-x y) + 1), also where the exponential has overflowed: what comes then is not defined.
Expected soft_margin_loss(const Arguments& a) {
  return aten_loss(a, [](const Arithmetic& m, double x, double y) {
    const double z = -x * y, power = std::exp(z);
    if (!(power < 0.9 * m.overflow)) return Estimate{power, kInfinity};
    const double v = std::log1p(power);
    // The exponential's relative error counts where it does; 1 + exp rounds.
    const double s = power / (1 + power);
    return within(m, v, v + s * (1 + (power > 0 ? std::fabs(z) : 0)) + std::fmin(1, power), 10);
  });
}
Expected soft_margin_loss_backward(const Arguments& a) {
  return aten_slope(a, [](const Arithmetic& m, double x, double y) {
    const double z = -x * y, power = std::exp(z);
    if (!(power < 0.9 * m.overflow)) return Estimate{-y, kInfinity};
    const double slope = -y * power / (1 + power);
    return within(m, slope, std::fabs(slope) * (1 + (power > 0 ? std::fabs(z) : 0)), 16);
  });
}

// -(y log x + (1 - y) log(1 - x)), with logarithms of at least -100.
Estimate cross(const Arithmetic& m, double x, double y) {
  if (x != x || y != y) return {std::nan(""), 0};
  if (x < 0 || x > 1) throw Undefined("a probability outside of 0 to 1");
  const double yes = std::fmax(std::log(x), -100), no = std::fmax(std::log1p(-x), -100);
  // 1 - x may be rounded before its logarithm is taken.
  const double rounding = std::fabs(1 - y) * (x > 0 && x < 1 ? 2 : 0);
  return within(m, -(y * yes + (1 - y) * no),
                std::fabs(y * yes) + std::fabs((1 - y) * no) + rounding / 12, 12);
}
Array binary(const Arguments& a, const Arithmetic& m, std::string_view input, int64_t reduction) {
  Array losses = map(
      m, [&](Estimate x, Estimate y) { return cross(m, x.value, y.value); }, a.array(0, input),
      a.array(1, "target"));
  if (const auto weight = a.maybe(2, "weight")) {
    losses = map(
        m, [&](Estimate e, Estimate w) { return m.mul(e, w); }, losses, *weight);
  }
  return reduced(m, std::move(losses), reduction);
}
Expected binary_cross_entropy(const Arguments& a) {
  return binary(a, arithmetic_of(a), "self", a.integer(3, "reduction", kMean));
}
Expected functional_binary_cross_entropy(const Arguments& a) {
  without(a, 3, "size_average");
  without(a, 4, "reduce");
  return binary(a, arithmetic_of(a), "input", reduction_named(a, 5));
}
Expected binary_cross_entropy_backward(const Arguments& a) {
  const Arithmetic m = arithmetic_of(a);
  const Array x = a.array(1, "self");
  const double part = share(x, a.integer(4, "reduction", kMean));
  const Array weight = a.has(3, "weight") ? a.array(3, "weight") : scalar(1);
  return map(
      m,
      [&](Estimate dy, Estimate p, Estimate q, Estimate w) {
        const double below = std::fmax((1 - p.value) * p.value, 1e-12);
        const double v = dy.value * (p.value - q.value) / below * w.value * part;
        return within(m, v, std::fabs(v), 11);
      },
      a.array(0, "grad_output"), x, a.array(2, "target"), weight);
}

Array with_logits(const Arguments& a, const Arithmetic& m, std::string_view input, size_t pos_at,
                  int64_t reduction) {
  const Array pos = a.has(pos_at, "pos_weight") ? a.array(pos_at, "pos_weight") : scalar(1);
  Array losses = map(
      m,
      [&](Estimate x, Estimate y, Estimate w) {
        const double soft = std::log1p(std::exp(-std::fabs(x.value))) + std::fmax(-x.value, 0);
        const double factor = (w.value - 1) * y.value + 1;
        const double size = std::fabs((w.value - 1) * y.value) + 1;
        const double linear = (1 - y.value) * x.value;
        // The older form takes log(exp(-max) + exp(-x - max)), with an error relative to 1.
        return within(m, linear + factor * soft, std::fabs(linear) + size * (soft + 1), 20);
      },
      a.array(0, input), a.array(1, "target"), pos);
  if (const auto weight = a.maybe(2, "weight")) {
    losses = map(
        m, [&](Estimate e, Estimate w) { return m.mul(e, w); }, losses, *weight);
  }
  return reduced(m, std::move(losses), reduction);
}
Expected binary_cross_entropy_with_logits(const Arguments& a) {
  return with_logits(a, arithmetic_of(a), "self", 3, a.integer(4, "reduction", kMean));
}
Expected functional_with_logits(const Arguments& a) {
  without(a, 3, "size_average");
  without(a, 4, "reduce");
  return with_logits(a, arithmetic_of(a), "input", 6, reduction_named(a, 5));
}

Expected functional_mse(const Arguments& a) { return functional_loss(a, squared); }
Expected functional_l1(const Arguments& a) { return functional_loss(a, absolute_difference); }
Expected functional_smooth_l1(const Arguments& a) {
  return functional_loss(a, smooth_l1_of(a.number(5, "beta", 1)));
}
Expected functional_huber(const Arguments& a) {
  without(a, 4, "weight");
  const Arithmetic m = arithmetic_of(a);
  const Loss f = huber_of(a.number(3, "delta", 1));
  return reduced(m,
                 map(
                     m, [&](Estimate x, Estimate y) { return f(m, x.value, y.value); },
                     a.array(0, "input"), a.array(1, "target")),
                 reduction_named(a, 2));
}
Expected kl_div(const Arguments& a) {
  const bool log_target = a.flag(5, "log_target", false);
  return functional_loss(a, [log_target](const Arithmetic& m, double x, double t) {
    if (log_target) {
      const double power = std::exp(t), v = power * (t - x);
      if (power == 0)
        return Estimate{0, m.smallest * (finite(t - x) ? std::fabs(t - x) : kInfinity)};
      return within(m, v, power * (std::fabs(t) + std::fabs(x)), 12);
    }
    // Nothing, or before 2.0 also for infinite x.
    if (t == 0) return Estimate{0, finite(x) ? 0 : kInfinity};
    const double own = t * std::log(t);
    return within(m, own - t * x, std::fabs(own) + std::fabs(t * x), 12);
  });
}

// Scores by class, as [samples, classes, places], with a target and perhaps a weight per class.
struct Classes {
  Array scores;
  int64_t samples = 1, classes = 0, places = 1;
  Dims rest;  // without the classes
  explicit Classes(Array x) : scores(std::move(x)) {
    const Dims& dims = scores.dims;
    if (dims.empty()) throw Undefined("scores without classes");
    const size_t axis = dims.size() == 1 ? 0 : 1;
    classes = dims[axis];
    for (size_t i = 0; i < dims.size(); ++i) {
      if (i != axis) rest.push_back(dims[i]);
      if (i < axis) samples *= dims[i];
      if (i > axis) places *= dims[i];
    }
  }
  int64_t cells() const { return samples * places; }
  int64_t index(int64_t cell, int64_t c) const {
    return (cell / places * classes + c) * places + cell % places;
  }
};
Checked<int64_t> targets_of(const Classes& k, const TensorView& view, int64_t ignore) {
  Checked<int64_t> out = integers_of(view);
  if (static_cast<int64_t>(out.size()) != k.cells()) throw Undefined("targets of another shape");
  for (const int64_t t : out) {
    if (t != ignore && (t < 0 || t >= k.classes)) throw Undefined("a target that is no class");
  }
  return out;
}
Array weights_of(const Arguments& a, size_t position, int64_t classes) {
  const auto weight = a.maybe(position, "weight");
  if (!weight) return filled({classes}, 1);
  if (weight->size() != classes) throw Undefined("weights of another shape");
  return *weight;
}

struct Likelihood {
  Array loss, total;
};
Likelihood likelihood(const Arithmetic& m, const Classes& k, const Checked<int64_t>& targets,
                      const Array& weight, int64_t ignore, int64_t reduction) {
  Array losses = empty_array(k.rest);
  Array weights = empty_array(k.rest, true);
  for (int64_t i = 0; i < k.cells(); ++i) {
    const int64_t t = targets[static_cast<size_t>(i)];
    const bool counts = t != ignore;
    const Estimate w = counts ? weight.at(t) : exactly(0);
    const Estimate x = counts ? k.scores.at(k.index(i, t)) : exactly(0);
    losses.set(i, counts ? m.mul({-x.value, x.radius}, w) : exactly(0));
    weights.value[static_cast<size_t>(i)] = w.value;
  }
  Likelihood out{std::move(losses), sum(m, weights, {})};
  if (reduction == kNone) return out;
  out.loss = sum(m, out.loss, {});
  // Over nothing, 0 / 0.
  if (reduction == kMean)
    out.loss = map(
        m, [&](Estimate p, Estimate q) { return m.div(p, q); }, out.loss, out.total);
  return out;
}
Expected nll_loss_forward(const Arguments& a) {
  const Arithmetic m = arithmetic_of(a);
  const Classes k(a.array(0, "self"));
  const int64_t reduction = a.integer(3, "reduction", kMean),
                ignore = a.integer(4, "ignore_index", -100);
  Likelihood l = likelihood(m, k, targets_of(k, a.view(1, "target"), ignore),
                            weights_of(a, 2, k.classes), ignore, reduction);
  Expected out(std::move(l.loss));
  // Without a reduction nothing is summed, and the total is not used.
  if (reduction == kNone)
    out.results.emplace_back(std::nullopt);
  else
    out.results.emplace_back(std::move(l.total));
  return out;
}
Expected nll_loss_backward(const Arguments& a) {
  const Arithmetic m = arithmetic_of(a);
  const Array grad = a.array(0, "grad_output");
  const Classes k(a.array(1, "self"));
  const int64_t reduction = a.integer(4, "reduction", kMean),
                ignore = a.integer(5, "ignore_index", -100);
  const Checked<int64_t> targets = targets_of(k, a.view(2, "target"), ignore);
  const Array weight = weights_of(a, 3, k.classes);
  const Estimate total = reduction == kMean ? a.array(6, "total_weight").at(0) : exactly(1);
  if (grad.size() != 1 && grad.size() != k.cells()) throw Undefined("a gradient of another shape");
  Array out = empty_array(k.scores.dims);
  for (int64_t i = 0; i < out.size(); ++i) out.set(i, exactly(0));
  for (int64_t i = 0; i < k.cells(); ++i) {
    const int64_t t = targets[static_cast<size_t>(i)];
    if (t == ignore) continue;
    const Estimate w = weight.at(t), dy = grad.at(grad.size() == 1 ? 0 : i);
    out.set(k.index(i, t), m.div(m.mul({-w.value, 0}, dy), total));
  }
  return out;
}
Expected functional_nll(const Arguments& a) {
  without(a, 3, "size_average");
  without(a, 5, "reduce");
  const Arithmetic m = arithmetic_of(a);
  const Classes k(a.array(0, "input"));
  const int64_t ignore = a.integer(4, "ignore_index", -100);
  return likelihood(m, k, targets_of(k, a.view(1, "target"), ignore), weights_of(a, 2, k.classes),
                    ignore, reduction_named(a, 6))
      .loss;
}

// log_softmax over the classes.
Array log_probabilities(const Arithmetic& m, const Classes& k) {
  Array out = empty_array(k.scores.dims);
  in_ranges(m, out.size() == 0 ? 0 : k.cells(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      double top = -kInfinity, all = 0, error = 0;
      for (int64_t c = 0; c < k.classes; ++c)
        top = Arithmetic::max({top, 0}, k.scores.at(k.index(i, c))).value;
      for (int64_t c = 0; c < k.classes; ++c) {
        const double z = k.scores.at(k.index(i, c)).value - top, e = std::exp(z);
        all += e;
        if (e > 0) error += e * (z == 0 ? 0 : m.fast_exp + std::fabs(z)) * m.unit;
      }
      const double log = std::log(all);
      error = (error + m.of_sum(k.classes) * all) / all + m.elementary * m.unit * std::fabs(log);
      for (int64_t c = 0; c < k.classes; ++c) {
        const double z = k.scores.at(k.index(i, c)).value - top;
        if (!finite(z) || !finite(log)) {
          out.set(k.index(i, c), {z - log, 0});
          continue;
        }
        // The maximum and the logarithm may be added before they are subtracted.
        const double rounding =
            k.classes == 1 ? 0 : 2 * m.unit * (std::fabs(top) + std::fabs(z) + std::fabs(log));
        out.set(k.index(i, c), m.rounded({z - log, error + rounding}));
      }
    }
  });
  return out;
}
// With class indices: (1 - s) w_y (-log p_y) + s / C sum_c w_c (-log p_c), where the mean divides
// by the sum of w_y, and ignored samples count nowhere. (In 1.10 they were counted by the mean.)
// With probabilities: sum_c w_c t_c (-log p_c) of smoothed t, where the mean divides by the samples.
Expected cross_entropy(const Arguments& a) {
  without(a, 3, "size_average");
  without(a, 5, "reduce");
  const Arithmetic m = arithmetic_of(a);
  const Classes k(a.array(0, "input"));
  const int64_t ignore = a.integer(4, "ignore_index", -100), reduction = reduction_named(a, 6);
  const double smoothing = a.number(7, "label_smoothing", 0),
               each = smoothing / static_cast<double>(k.classes);
  Array weight = weights_of(a, 2, k.classes), logs = log_probabilities(m, k);
  // Autocast of CUDA stores the logarithms in the type of the input.
  if (const Element kept = a.view(0, "input").element; m.gpu && is_half(kept))
    logs = stored(m, logs, kept);
  const TensorView& target = a.view(1, "target");
  const auto cost = [&](int64_t cell, int64_t c) {
    const Estimate l = logs.at(k.index(cell, c));
    return m.mul({-l.value, l.radius}, weight.at(c));
  };
  // The sum of all classes' costs, each times a factor.
  const auto over_classes = [&](int64_t cell, const std::function<Estimate(int64_t)>& factor) {
    Estimate all{0, 0};
    double size = 0;
    for (int64_t c = 0; c < k.classes; ++c) {
      const Estimate term = m.mul(cost(cell, c), factor(c));
      all.value += term.value, all.radius += term.radius, size += std::fabs(term.value);
    }
    if (finite(all.value)) all.radius += m.of_sum(k.classes) * (size + all.radius);
    return all;
  };
  Array losses = empty_array(k.rest);
  Array total = scalar(static_cast<double>(k.cells()));
  if (is_float(target.element) && target.dims == k.scores.dims) {
    const Array wanted = array_of(target, m.pool);
    for (int64_t i = 0; i < k.cells(); ++i) {
      losses.set(i, over_classes(i, [&](int64_t c) {
                   const Estimate t = wanted.at(k.index(i, c));
                   return smoothing == 0 ? t : m.add(m.mul(t, {1 - smoothing, 0}), {each, 0});
                 }));
    }
  } else {
    const Checked<int64_t> targets = targets_of(k, target, ignore);
    Array weights = empty_array(k.rest, true);
    for (int64_t i = 0; i < k.cells(); ++i) {
      const int64_t t = targets[static_cast<size_t>(i)];
      weights.value[static_cast<size_t>(i)] =
          t == ignore ? 0 : weight.value[static_cast<size_t>(t)];
      Estimate loss = exactly(0);
      if (t != ignore) {
        loss = cost(i, t);
        if (smoothing != 0) {
          const Estimate even = over_classes(i, [](int64_t) { return exactly(1); });
          loss = m.add(m.mul(loss, {1 - smoothing, 0}), m.mul(even, m.more({each, 0}, m.unit)));
        }
      }
      losses.set(i, loss);
    }
    total = sum(m, weights, {});
  }
  if (reduction == kNone) return losses;
  Array out = sum(m, losses, {});
  if (reduction == kMean) {
    out = map(
        m, [&](Estimate p, Estimate q) { return m.div(p, q); }, out, total);
    // The two parts of a smoothed loss are summed and divided one by one.
    if (smoothing != 0)
      out = map(
          m, [&](Estimate e) { return m.more(e, 4 * m.unit); }, out);
  }
  return out;
}

// The norm over one dimension, which stays with size 1.
Array norm(const Arithmetic& m, const Array& x, double p, int64_t axis) {
  if (p == 2) {
    return map(
        m, [&](Estimate e) { return m.sqrt(e); },
        sum(m,
            map(
                m, [&](Estimate e) { return m.mul(e, e); }, x),
            {axis}, true));
  }
  const Array sizes = map(
      m,
      [](Estimate e) {
        return Estimate{std::fabs(e.value), e.radius};
      },
      x);
  if (p == 1) return sum(m, sizes, {axis}, true);
  if (p == kInfinity) return largest(m, sizes, {axis}, true);
  throw Undefined("a norm other than 1, 2 or infinity");
}
// x over its norm, which counts as eps at least.
Array unit_length(const Arithmetic& m, const Array& x, double p, int64_t axis, double eps) {
  const Array length = map(
      m, [&](Estimate e) { return Arithmetic::max(e, m.given(exactly(eps))); },
      norm(m, x, p, axis));
  return map(
      m, [&](Estimate e, Estimate n) { return m.div(e, n); }, x, length);
}
Expected normalize(const Arguments& a) {
  const Array x = a.array(0, "input");
  const int64_t axis = axis_of(a.integer(2, "dim", 1), static_cast<int64_t>(x.dims.size()));
  return unit_length(arithmetic_of(a), x, a.number(1, "p", 2), axis, a.number(3, "eps", 1e-12));
}
Expected cosine_similarity(const Arguments& a) {
  const Arithmetic m = arithmetic_of(a);
  Array x = a.array(0, "x1"), y = a.array(1, "x2");
  const Dims dims = broadcast_dims(x.dims, y.dims);
  const int64_t axis = axis_of(a.integer(2, "dim", 1), static_cast<int64_t>(dims.size()));
  const double eps = a.number(3, "eps", 1e-8);
  x = unit_length(m, broadcast(x, dims), 2, axis, eps);
  y = unit_length(m, broadcast(y, dims), 2, axis, eps);
  return sum(m,
             map(
                 m, [&](Estimate p, Estimate q) { return m.mul(p, q); }, x, y),
             {axis});
}
Expected triplet_margin_loss(const Arguments& a) {
  without(a, 7, "size_average");
  without(a, 8, "reduce");
  const Arithmetic m = arithmetic_of(a);
  const double margin = a.number(3, "margin", 1), p = a.number(4, "p", 2),
               eps = a.number(5, "eps", 1e-6);
  const Array anchor = a.array(0, "anchor"), positive = a.array(1, "positive"),
              negative = a.array(2, "negative");
  const auto apart = [&](const Array& x, const Array& y) {
    const Array d = map(
        m, [&](Estimate u, Estimate v) { return m.add(m.sub(u, v), exactly(eps)); }, x, y);
    const auto last = static_cast<int64_t>(d.dims.size()) - 1;
    if (last < 0) throw Undefined("vectors without a dimension");
    const Array n = norm(m, d, p, last);
    return reshaped(n, d.dims.part(0, -1));
  };
  Array off = apart(anchor, negative);
  if (a.flag(6, "swap", false)) {
    off = map(
        m,
        [](Estimate u, Estimate v) {
          const Estimate e = Arithmetic::max({-u.value, u.radius}, {-v.value, v.radius});
          return Estimate{-e.value, e.radius};
        },
        off, apart(positive, negative));
  }
  return reduced(
      m,
      map(
          m,
          [&](Estimate near, Estimate far) {
            const Estimate e = m.sub(m.add(near, exactly(margin)), far);
            const double size = std::fabs(near.value) + std::fabs(far.value);
            const Estimate wide{e.value, e.radius + 2 * m.unit * (size + std::fabs(margin))};
            if (wide.value + wide.radius < 0) return exactly(0);
            return Arithmetic::max(wide, exactly(0));
          },
          apart(anchor, positive), off),
      reduction_named(a, 9));
}

constexpr Definition kLossDefinitions[] = {
    {"aten.nll_loss_forward", nll_loss_forward},
    {"aten.nll_loss2d_forward", nll_loss_forward},
    {"aten.nll_loss_backward", nll_loss_backward},
    {"aten.nll_loss2d_backward", nll_loss_backward},
    {"aten.binary_cross_entropy", binary_cross_entropy},
    {"aten.binary_cross_entropy_backward", binary_cross_entropy_backward},
    {"aten.binary_cross_entropy_with_logits", binary_cross_entropy_with_logits},
    {"aten.mse_loss", mse_loss},
    {"aten.mse_loss_backward", mse_loss_backward},
    {"aten.smooth_l1_loss", smooth_l1_loss},
    {"aten.smooth_l1_loss_backward", smooth_l1_loss_backward},
    {"aten.huber_loss", huber_loss},
    {"aten.huber_loss_backward", huber_loss_backward},
    {"aten.soft_margin_loss", soft_margin_loss},
    {"aten.soft_margin_loss_backward", soft_margin_loss_backward},
    {"torch.nn.functional.cross_entropy", cross_entropy},
    {"torch.nn.functional.nll_loss", functional_nll},
    {"torch.nn.functional.binary_cross_entropy", functional_binary_cross_entropy},
    {"torch.nn.functional.binary_cross_entropy_with_logits", functional_with_logits},
    {"torch.nn.functional.mse_loss", functional_mse},
    {"torch.nn.functional.l1_loss", functional_l1},
    {"torch.nn.functional.smooth_l1_loss", functional_smooth_l1},
    {"torch.nn.functional.huber_loss", functional_huber},
    {"torch.nn.functional.kl_div", kl_div},
    {"torch.nn.functional.cosine_similarity", cosine_similarity},
    {"torch.nn.functional.normalize", normalize},
    {"torch.nn.functional.triplet_margin_loss", triplet_margin_loss},
};

}  // namespace

std::span<const Definition> loss_definitions() { return kLossDefinitions; }

}  // namespace twinrun::aten
