// Activation functions and their gradients.
#include "backends/aten/definitions.h"

namespace twinrun::aten {
namespace {

constexpr double kRootHalf = 0.70710678118654752440;     // 1 / sqrt(2)
constexpr double kGauss = 0.39894228040143267794;        // 1 / sqrt(2 pi)
constexpr double kRoot2OverPi = 0.79788456080286535588;  // sqrt(2 / pi)
constexpr double kCubic = 0.044715;                      // of the tanh form of gelu

Expected unary(const Arguments& a, const std::function<Estimate(double)>& f) {
  return map(
      a.m, [&](Estimate x) { return f(x.value); }, a.array(0, "self"));
}
// Of grad_output and the input (or the output) of the forward call.
Expected backward(const Arguments& a, const std::function<Estimate(double, double)>& f) {
  return map(
      a.m, [&](Estimate dy, Estimate x) { return f(dy.value, x.value); }, a.array(0, "grad_output"),
      a.array(1, "self"));
}

// The radius of what depends on the side of a limit.
double open(const Limit& limit, double x) { return limit.is_open(x) ? kInfinity : 0; }

Expected relu(const Arguments& a) {
  Array out = map(
      a.m, [](Estimate x) { return exactly(x.value < 0 ? 0 : x.value); }, a.array(0, "self"));
  out.radius.clear();
  return out;
}
Limit limit(const Arguments& a, size_t position, std::string_view name, double otherwise) {
  const size_t self = a.call().op.find("backward") == std::string::npos ? 0 : 1;
  return limit_of(a, a.number(position, name, otherwise), a.view(self, "self").element);
}
Expected threshold(const Arguments& a) {
  const Limit t = limit(a, 1, "threshold", 0);
  const double value = a.number(2, "value", 0);
  return unary(a, [&](double x) { return Estimate{x <= t.at ? value : x, open(t, x)}; });
}
Expected threshold_backward(const Arguments& a) {
  const Limit t = limit(a, 2, "threshold", 0);
  return backward(a, [&](double dy, double x) { return Estimate{x <= t.at ? 0 : dy, open(t, x)}; });
}
// What lies within [-lambda, lambda] becomes 0.
Expected hardshrink(const Arguments& a) {
  const Limit l = limit(a, 1, "lambd", 0.5);
  return unary(a, [&](double x) {
    return Estimate{std::fabs(x) <= l.at ? 0 : x, open(l, std::fabs(x))};
  });
}
Expected shrink_backward(const Arguments& a) {
  const Limit l = limit(a, 2, "lambd", 0.5);
  return map(
      a.m,
      [&](Estimate dy, Estimate x) {
        const double size = std::fabs(x.value);
        return Estimate{size <= l.at ? 0 : dy.value, open(l, size)};
      },
      a.array(0), a.array(1, "self"));
}
Expected softshrink(const Arguments& a) {
  const Limit l = limit(a, 1, "lambd", 0.5);
  return unary(a, [&](double x) {
    if (std::fabs(x) <= l.at) return Estimate{0, std::fmax(l.reach, 0)};
    Estimate e = a.m.add(exactly(x), exactly(x > 0 ? -l.at : l.at));
    e.radius += std::fmax(l.reach, 0);
    return e;
  });
}
Expected leaky_relu(const Arguments& a) {
  const double slope = a.number(1, "negative_slope", 0.01);
  return unary(a, [&](double x) { return x > 0 ? exactly(x) : a.m.mul({x}, {slope}); });
}
Expected leaky_relu_backward(const Arguments& a) {
  const double slope = a.number(2, "negative_slope", 0.01);
  return backward(
      a, [&](double dy, double x) { return x > 0 ? exactly(dy) : a.m.mul({dy}, {slope}); });
}
Expected prelu(const Arguments& a) {
  Array weight = a.array(1, "weight");
  const Array x = a.array(0, "self");
  if (weight.size() > 1 && x.dims.size() > 1) {
    Dims dims(x.dims.size(), 1);
    dims[1] = weight.size();
    weight = reshaped(std::move(weight), dims);
  }
  return map(
      a.m, [&](Estimate v, Estimate w) { return v.value > 0 ? v : a.m.mul(v, w); }, x, weight);
}
Expected prelu_backward(const Arguments& a) {
  const Array dy = a.array(0, "grad_output"), x = a.array(1, "self"), w = a.array(2, "weight");
  Expected e(map(
      a.m, [&](Estimate g, Estimate v, Estimate s) { return v.value > 0 ? g : a.m.mul(s, g); }, dy,
      x, w));
  e.results.emplace_back(map(
      a.m, [&](Estimate g, Estimate v) { return v.value > 0 ? exactly(0) : a.m.mul(v, g); }, dy,
      x));
  return e;
}
Expected silu(const Arguments& a) {
  return unary(a, [&](double x) {
    if (x == -kInfinity) return Estimate{x, kInfinity};
    return a.m.mul({x}, a.m.sigmoid({x}));
  });
}
Expected silu_backward(const Arguments& a) {
  return backward(a, [&](double dy, double x) {
    const double s = a.m.sigmoid({x}).value, inner = x * (1 - s);
    return within(a.m, dy * s * (1 + inner),
                  std::fabs(dy) * s * (1 + std::fabs(inner) + std::fabs(x)), 20);
  });
}
double phi(double x) { return 0.5 * (1 + oracle::error_function(x * kRootHalf)); }
Expected gelu(const Arguments& a) {
  const bool by_tanh = a.text(1, "approximate", "none") == "tanh";
  // torch.nn.functional.gelu calls it `input`.
  const Array given = a.has(0, "self") ? a.array(0, "self") : a.array(0, "input");
  return map(
      a.m,
      [&](Estimate e) {
        const double x = e.value;
        if (!finite(x)) return Estimate{x < 0 ? 0 : x, kInfinity};
        const double inner = kRoot2OverPi * (x + kCubic * x * x * x);
        const double value =
            by_tanh ? 0.5 * x * (1 + oracle::hyperbolic_tangent(inner)) : x * phi(x);
        // 1 + erf cancels for negative x: the error of erf stays, relative to 1. tanh's argument has an
        // error of a few units, times |z| / cosh(z)^2 < 0.45.
        return within(a.m, value, std::fabs(x), 12);
      },
      given);
}
Expected gelu_backward(const Arguments& a) {
  const bool by_tanh = a.text(2, "approximate", "none") == "tanh";
  return backward(a, [&](double dy, double x) {
    if (!finite(x)) return Estimate{dy, kInfinity};
    double slope;
    if (by_tanh) {
      const double t = oracle::hyperbolic_tangent(kRoot2OverPi * (x + kCubic * x * x * x));
      slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kRoot2OverPi * (1 + 3 * kCubic * x * x);
    } else {
      slope = phi(x) + x * kGauss * oracle::exponential(-0.5 * x * x);
    }
    // The density's exponent x^2 / 2 is rounded: |x|^3 exp(-x^2 / 2) < 1.2. In the tanh form
    // 1 - t^2 cancels: up to |x| (1 + 0.13 x^2) units, where t is not yet 1 (|x| < 6).
    const double z = std::fmin(std::fabs(x), 6);
    return within(a.m, dy * slope, std::fabs(dy) * (by_tanh ? 2 + z * (1 + 0.14 * z * z) : 2), 16);
  });
}
Expected elu(const Arguments& a) {
  const double alpha = a.number(1, "alpha", 1), scale = a.number(2, "scale", 1),
               in = a.number(3, "input_scale", 1);
  return unary(a, [&](double x) {
    if (x > 0) return a.m.mul({x}, {scale});
    // Either expm1, or exp - 1.
    return within(a.m, std::expm1(x * in) * alpha * scale, std::fabs(alpha * scale), 12);
  });
}
Expected celu(const Arguments& a) {
  const double alpha = a.number(1, "alpha", 1);
  return unary(a, [&](double x) {
    if (x > 0) return exactly(x);
    return within(a.m, std::expm1(x / alpha) * alpha, std::fabs(alpha), 12);
  });
}
// Of z, limited to [eps, 1 - eps] if there is an eps: ln(z / (1 - z)).
Expected logit(const Arguments& a) {
  const double eps = a.number(1, "eps", -1);
  const Element of = a.view(0, "self").element;
  // PyTorch's CPU kernel rounds 1 - z and the quotient to the type of its input.
  const double unit = is_half(of) ? half_unit(of) : 0;
  return unary(a, [&](double x) {
    const double z = eps < 0 ? x : std::fmin(std::fmax(x, eps), 1 - eps);
    const double v = std::log(z / (1 - z));
    // The upper end is rounded before it is taken from 1.
    const double end = z >= 1 - eps ? 1 / eps : 0;
    Estimate e = within(a.m, v, 1 + std::fabs(v) + end, 16);
    e.radius += unit * (4 + end);
    return e;
  });
}
Expected logit_backward(const Arguments& a) {
  const double eps = a.number(2, "eps", -1);
  const Element of = a.view(1, "self").element;
  const Limit low = limit_of(a, eps, of), high = limit_of(a, 1 - eps, of);
  return backward(a, [&](double dy, double x) {
    if (eps >= 0 && (x < low.at || x > high.at)) return Estimate{0, open(low, x) + open(high, x)};
    if (x < 0 || x > 1) return exactly(NAN);
    const double v = dy / (x * (1 - x));
    Estimate e = within(a.m, v, std::fabs(v), 10);
    if (is_half(of)) e.radius += 4 * half_unit(of) * std::fabs(v);  // 1 - x and the product, too
    if (eps >= 0) e.radius += open(low, x) + open(high, x);
    return e;
  });
}
Expected elu_backward(const Arguments& a) {
  const double alpha = a.number(1, "alpha", 1), scale = a.number(2, "scale", 1),
               in = a.number(3, "input_scale", 1);
  const bool of_result = a.flag(4, "is_result", false);
  return map(
      a.m,
      [&](Estimate dy, Estimate x) {
        if (x.value > 0) return a.m.mul(dy, {scale});
        const double slope = of_result ? in * (x.value + alpha * scale)
                                       : in * alpha * scale * std::exp(x.value * in);
        return within(a.m, dy.value * slope,
                      std::fabs(dy.value * in) * (std::fabs(x.value) + std::fabs(alpha * scale)),
                      12);
      },
      a.array(0, "grad_output"), a.array(5, "self_or_result"));
}
Expected softplus(const Arguments& a) {
  const double beta = a.number(1, "beta", 1), threshold = a.number(2, "threshold", 20);
  return unary(a, [&](double x) {
    if (x * beta > threshold) return exactly(x);
    return within(a.m, std::log1p(std::exp(x * beta)) / beta, std::log1p(std::exp(x * beta)) / beta,
                  16 + 2 * std::fabs(x * beta));
  });
}
Expected softplus_backward(const Arguments& a) {
  const double beta = a.number(2, "beta", 1), threshold = a.number(3, "threshold", 20);
  return backward(a, [&](double dy, double x) {
    if (x * beta > threshold) return exactly(dy);
    const double z = std::exp(x * beta);
    return within(a.m, dy * z / (z + 1), std::fabs(dy * z / (z + 1)), 16 + 2 * std::fabs(x * beta));
  });
}
Expected hardtanh(const Arguments& a) {
  const double low = a.number(1, "min_val", -1), high = a.number(2, "max_val", 1);
  return unary(a, [&](double x) { return exactly(x < low ? low : x > high ? high : x); });
}
Expected hardtanh_backward(const Arguments& a) {
  const Limit low = limit(a, 2, "min_val", -1), high = limit(a, 3, "max_val", 1);
  return backward(a, [&](double dy, double x) {
    return Estimate{x <= low.at || x >= high.at ? 0 : dy, open(low, x) + open(high, x)};
  });
}
Expected hardsigmoid(const Arguments& a) {
  return unary(a, [&](double x) {
    const double v = std::fmin(std::fmax(x + 3, 0), 6) / 6;
    return within(a.m, v, v == 0 || v == 1 ? 0 : 1, 2);
  });
}
Expected hardsigmoid_backward(const Arguments& a) {
  return backward(a, [&](double dy, double x) {
    return x > -3 && x < 3 ? within(a.m, dy / 6, std::fabs(dy) / 6, 3) : exactly(0);
  });
}
Expected hardswish(const Arguments& a) {
  return unary(a, [&](double x) {
    const double v = x * std::fmin(std::fmax(x + 3, 0), 6) / 6;
    return within(a.m, v, std::fabs(x), 4);
  });
}
Expected hardswish_backward(const Arguments& a) {
  return backward(a, [&](double dy, double x) {
    if (x <= -3) return x == -3 ? within(a.m, -0.5 * dy, 2 * std::fabs(dy), 0x1p24) : exactly(0);
    if (x >= 3) return x == 3 ? within(a.m, dy, std::fabs(dy), 0x1p24) : exactly(dy);
    return within(a.m, dy * (x / 3 + 0.5), std::fabs(dy) * (std::fabs(x) / 3 + 0.5), 6);
  });
}
// Rounds what a kernel keeps on the way in half precision, if it does.
auto kept_in(Element type, bool does) {
  return
      [type, rounds = does && is_half(type)](Estimate e) { return rounds ? stored(e, type) : e; };
}
Expected sigmoid_backward(const Arguments& a) {
  // PyTorch's CPU kernel computes in binary16, step by step.
  // Those of CUDA do so in bfloat16, too.
  const Element type = a.view(1, "output").element;
  const auto step = kept_in(type, type == Element::kF16 || a.m.gpu);
  return backward(a, [&](double dy, double y) {
    return a.m.mul(step(a.m.mul({dy}, step(a.m.sub({1}, {y})))), {y});
  });
}
Expected tanh_backward(const Arguments& a) {
  // CUDA's kernel computes in half precision, step by step.
  const auto step = kept_in(a.view(1, "output").element, a.m.gpu);
  return backward(a, [&](double dy, double y) {
    return a.m.mul({dy}, step(a.m.sub({1}, step(a.m.mul({y}, {y})))));
  });
}
Expected log_sigmoid_forward(const Arguments& a) {
  Expected out = unary(a, [&](double x) {
    const double z = std::log1p(std::exp(-std::fabs(x)));
    return within(a.m, std::fmin(0, x) - z, std::fabs(std::fmin(0, x)) + z, 14);
  });
  out.results.emplace_back(std::nullopt);  // a buffer
  return out;
}
Expected log_sigmoid_backward(const Arguments& a) {
  // The forward pass gives exp(-|x|) in the type of its input.
  const Element kept = a.view(1, "self").element;
  const bool half = is_float(kept) && size_of(kept) == 2;
  return backward(a, [&](double dy, double x) {
    const double s = 1 / (1 + std::exp(x)), z = std::exp(-std::fabs(x));
    Estimate e = within(a.m, dy * s, std::fabs(dy) * (s + (x < 0 ? 1 - s : 0)), 16);
    // z / (1 + z) where z is off by r: off by no more than r.
    if (half) e.radius += std::fabs(dy) * stored(a.m.more(exactly(z), 8 * a.m.unit), kept).radius;
    return e;
  });
}
Expected mish(const Arguments& a) {
  return unary(a, [&](double x) {
    const double v = x * std::tanh(std::log1p(std::exp(x)));
    return within(a.m, v, std::fabs(v), 24 + 2 * std::fmin(std::fabs(x), 100));
  });
}
Expected mish_backward(const Arguments& a) {
  return backward(a, [&](double dy, double x) {
    const double s = 1 / (1 + std::exp(-x)), t = std::tanh(std::log1p(std::exp(x)));
    return within(a.m, dy * (t + x * s * (1 - t * t)), std::fabs(dy) * (t + std::fabs(x) * s),
                  30 + 2 * std::fmin(std::fabs(x), 100));
  });
}
Expected glu(const Arguments& a) {
  const Array x = a.array(0, "self");
  const int64_t axis = axis_of(a.integer(1, "dim", -1), static_cast<int64_t>(x.dims.size()));
  const int64_t half = x.dims[static_cast<size_t>(axis)] / 2;
  return map(
      a.m, [&](Estimate p, Estimate q) { return a.m.mul(p, a.m.sigmoid(q)); },
      sliced(x, axis, 0, half), sliced(x, axis, half, 2 * half));
}
Expected glu_backward(const Arguments& a) {
  const Array dy = a.array(0, "grad_output"), x = a.array(1, "self");
  const int64_t axis = axis_of(a.integer(2, "dim", -1), static_cast<int64_t>(x.dims.size()));
  const int64_t half = x.dims[static_cast<size_t>(axis)] / 2;
  const Array p = sliced(x, axis, 0, half), q = sliced(x, axis, half, 2 * half);
  // PyTorch's CPU kernel keeps the sigmoid in the first half of its result.
  const Element kept = a.view(1, "self").element;
  const bool half_precision = is_float(kept) && size_of(kept) == 2;
  const auto gate = [&](Estimate s) {
    return half_precision ? stored(a.m.sigmoid(s), kept) : a.m.sigmoid(s);
  };
  const Array first = map(
      a.m, [&](Estimate d, Estimate s) { return a.m.mul(d, gate(s)); }, dy, q);
  const Array second = map(
      a.m,
      [&](Estimate d, Estimate v, Estimate s) {
        const Estimate at = gate(s);
        const double g = at.value, size = std::fabs(d.value * v.value);
        Estimate e = within(a.m, d.value * v.value * g * (1 - g), size * g, 30);
        // g - g^2 where g is off by r: off by no more than r |1 - 2 g| + r^2.
        if (half_precision) e.radius += size * at.radius * (std::fabs(1 - 2 * g) + at.radius);
        return e;
      },
      dy, p, q);
  return concatenated({first, second}, axis);
}

constexpr Definition kActivationDefinitions[] = {
    {"aten.relu", relu},
    {"aten.threshold", threshold},
    {"aten.threshold_backward", threshold_backward},
    {"aten.hardshrink", hardshrink},
    {"aten.hardshrink_backward", shrink_backward},
    {"aten.softshrink", softshrink},
    {"aten.softshrink_backward", shrink_backward},
    {"aten.celu", celu},
    {"aten.logit", logit},
    {"aten.logit_backward", logit_backward},
    {"aten.leaky_relu", leaky_relu},
    {"aten.leaky_relu_backward", leaky_relu_backward},
    {"aten._prelu_kernel", prelu},
    {"aten._prelu_kernel_backward", prelu_backward},
    {"aten.silu", silu},
    {"aten.silu_backward", silu_backward},
    {"aten.gelu", gelu},
    {"torch.nn.functional.gelu", gelu},
    {"aten.gelu_backward", gelu_backward},
    {"aten.elu", elu},
    {"aten.elu_backward", elu_backward},
    {"aten.softplus", softplus},
    {"aten.softplus_backward", softplus_backward},
    {"aten.hardtanh", hardtanh},
    {"aten.hardtanh_backward", hardtanh_backward},
    {"aten.hardsigmoid", hardsigmoid},
    {"aten.hardsigmoid_backward", hardsigmoid_backward},
    {"aten.hardswish", hardswish},
    {"aten.hardswish_backward", hardswish_backward},
    {"aten.sigmoid_backward", sigmoid_backward},
    {"aten.tanh_backward", tanh_backward},
    {"aten.log_sigmoid_forward", log_sigmoid_forward},
    {"aten.log_sigmoid_backward", log_sigmoid_backward},
    {"aten.mish", mish},
    {"aten.mish_backward", mish_backward},
    {"aten.glu", glu},
    {"aten.glu_backward", glu_backward},
};

}  // namespace

std::span<const Definition> activation_definitions() { return kActivationDefinitions; }

}  // namespace twinrun::aten
