// Elementwise arithmetic, comparisons and logic.
#include <cmath>
#include <limits>

#include "backends/aten/definitions.h"

namespace twinrun::aten {
namespace {

// In integer arithmetic all results are exact, below 2^53.
bool integers(const Arguments& a) {
  for (const Value& v : a.call().args) {
    if (v.kind == Value::Kind::kNumber) return false;
    if (v.kind == Value::Kind::kTensor && !is_integer(v.tensor.element)) return false;
  }
  return true;
}
Array exact_map(const Arguments& a, const std::function<double(double, double)>& f) {
  Array out = map(
      a.m, [&](Estimate x, Estimate y) { return exactly(f(x.value, y.value)); }, a.array(0, "self"),
      exact_operand(a));
  out.radius.clear();
  return out;
}
Expected unary(const Arguments& a, const std::function<Estimate(Estimate)>& f) {
  return map(a.m, f, a.array(0, "self"));
}
// A function of a number that is exact, such as floor.
Expected rule(const Arguments& a, const std::function<double(double)>& f) {
  Array out = map(
      a.m, [&](Estimate x) { return exactly(f(x.value)); }, a.array(0, "self"));
  out.radius.clear();
  return out;
}
// A function of libm, whose value in binary64 is good to an ulp; `units` as in Arithmetic.
Estimate function(const Arithmetic& m, double value, double units = 8) {
  return m.more({value, 0}, units * m.unit);
}

// The type in which the call stores its first result.
Element type_of_result(const Arguments& a) {
  if (a.has_result(0)) return a.result(0).element;
  const Value* self = a.find(0, "self");
  return self != nullptr && self->kind == Value::Kind::kTensor ? self->tensor.element
                                                               : Element::kOther;
}

// An operand. Promotion rounds a tensor without dimensions to the shorter type of the result, and a
// number to half precision, or a kernel takes it as it is.
Array operand(const Arguments& a, size_t position, std::string_view name) {
  Array x = a.array(position, name);
  if (!x.dims.empty()) return x;
  const Value* v = a.find(position, name);
  const Element to = type_of_result(a);
  const bool shorter = v->kind == Value::Kind::kTensor
                           ? is_float(v->tensor.element) && size_of(to) < size_of(v->tensor.element)
                           : is_half(to);
  if (shorter) {
    const Estimate e = stored(x.at(0), to);
    x.radius.assign(1, e.radius);
  }
  return x;
}

Expected linear(const Arguments& a, double sign, bool reversed) {
  const double alpha = sign * a.number(2, "alpha", 1);
  Array x = operand(a, 0, "self"), y = operand(a, 1, "other");
  if (reversed) std::swap(x, y);
  // In half precision alpha is rounded to that type, and the product too where a kernel takes one
  // element at a time: at the end of a row, for example.
  const Element to = type_of_result(a);
  const bool half = is_half(to);
  const Estimate factor = half ? stored(exactly(alpha), to) : exactly(alpha);
  return map(
      a.m,
      [&](Estimate p, Estimate q) {
        if (alpha == 1) return a.m.add(p, q);
        if (alpha == -1) return a.m.sub(p, q);
        const Estimate scaled = a.m.mul(factor, q);
        return a.m.add(p, half ? stored(scaled, to) : scaled);
      },
      x, y);
}
Expected add(const Arguments& a) { return linear(a, 1, false); }
Expected sub(const Arguments& a) { return linear(a, -1, false); }
Expected rsub(const Arguments& a) { return linear(a, -1, true); }
Expected mul(const Arguments& a) {
  return map(
      a.m, [&](Estimate x, Estimate y) { return a.m.mul(x, y); }, operand(a, 0, "self"),
      operand(a, 1, "other"));
}
// What a remainder or a whole quotient is taken of jumps, so the divisor must be known.
Array divisor(const Arguments& a) {
  const Array y = exact_operand(a);
  const Value* x = a.find(0, "self");
  if (y.dims.empty() && x != nullptr && x->kind == Value::Kind::kTensor &&
      limit_of(a, y.at(0).value, x->tensor.element).reach > 0)
    throw Undefined("a divisor that half precision does not hold");
  return y;
}
// A quotient as an integer, downwards or towards zero. Kernels divide and round, so one that is as near
// to an integer as that rounding may be the next one.
Array whole_quotient(const Arguments& a, bool floors) {
  return map(
      a.m,
      [&](Estimate x, Estimate y) {
        const double exact = x.value / y.value, near = std::nearbyint(exact);
        if (!finite(exact)) return Estimate{exact, kInfinity};
        const bool divides = std::fmod(x.value, y.value) == 0;
        const double value = divides ? near : floors ? std::floor(exact) : std::trunc(exact);
        const bool open = !divides && std::fabs(exact - near) <= 2 * a.m.unit * std::fabs(exact);
        return a.m.rounded({value, open ? 1.0 : 0.0});
      },
      a.array(0, "self"), divisor(a));
}
Expected div(const Arguments& a) {
  const std::string mode = a.text(2, "rounding_mode", "");
  if (!mode.empty()) {
    const bool floors = mode == "floor";
    return integers(a) ? exact_map(a,
                                   [&](double x, double y) {
                                     return floors ? std::floor(x / y) : std::trunc(x / y);
                                   })
                       : whole_quotient(a, floors);
  }
  return map(
      a.m, [&](Estimate x, Estimate y) { return a.m.div(x, y); }, operand(a, 0, "self"),
      operand(a, 1, "other"));
}
Expected floor_divide(const Arguments& a) {
  if (!integers(a)) return whole_quotient(a, true);
  return exact_map(a, [](double x, double y) { return std::floor(x / y); });
}
Expected remainder(const Arguments& a) {
  if (integers(a))
    return exact_map(a, [](double x, double y) { return x - std::floor(x / y) * y; });
  // fmod is exact; the divisor is added where their signs differ.
  return map(
      a.m,
      [&](Estimate x, Estimate y) {
        const double r = std::fmod(x.value, y.value);
        return r == 0 || (r < 0) == (y.value < 0) ? exactly(r) : a.m.add(exactly(r), y);
      },
      a.array(0, "self"), divisor(a));
}
Expected heaviside(const Arguments& a) {
  return map(
      a.m,
      [](Estimate x, Estimate at_zero) {
        return x.value == 0 ? at_zero : exactly(x.value > 0 ? 1 : x.value < 0 ? 0 : NAN);
      },
      a.array(0, "self"), a.array(1, "values"));
}
Expected fmod(const Arguments& a) {
  divisor(a);
  return exact_map(a, [](double x, double y) { return std::fmod(x, y); });
}
Expected maximum(const Arguments& a) {
  return exact_map(a, [](double x, double y) { return Arithmetic::max({x}, {y}).value; });
}
Expected minimum(const Arguments& a) {
  return exact_map(a, [](double x, double y) { return -Arithmetic::max({-x}, {-y}).value; });
}
Expected power(const Arguments& a) {
  const Element to = type_of_result(a);
  return map(
      a.m,
      [&](Estimate x, Estimate y) {
        const double v = std::pow(x.value, y.value);
        if (y.value == 1 || y.value == 0) return exactly(v);
        if (y.value == 2) return a.m.mul(x, x);
        if (is_half(to)) {  // what is computed on the way is rounded too
          if (y.value == 3) return a.m.mul(stored(a.m.mul(x, x), to), x);
          if (y.value == -2) return a.m.div(exactly(1), stored(a.m.mul(x, x), to));
          if (y.value == -0.5) return a.m.div(exactly(1), stored(a.m.sqrt(x), to));
        }
        // Powers of whole numbers may be products; others exp(y log x), with the error of the
        // logarithm enlarged by the exponent.
        const double l = x.value == 0 ? 0 : std::fabs(y.value * std::log(std::fabs(x.value)));
        Estimate e = function(a.m, v, 8 + 2 * std::fmin(std::fabs(y.value), 64) + 2 * l);
        if (x.value == 0 || !(e.radius < kInfinity)) return e;
        // x^(y + r) = x^y exp(r log x), and (x + s)^y = x^y exp(y log(1 + s / x)).
        const double off = y.radius * std::fabs(std::log(std::fabs(x.value))) -
                           std::fabs(y.value) * std::log1p(-x.radius / std::fabs(x.value));
        if (off > 0) e.radius += std::fabs(v) * std::expm1(off);
        return e;
      },
      operand(a, 0, "self"), operand(a, 1, "exponent"));
}
Expected square(const Arguments& a) {
  return unary(a, [&](Estimate x) { return a.m.mul(x, x); });
}

template <typename F>
Expected compare(const Arguments& a, F f) {
  Expected e = exact_map(a, [&](double x, double y) { return f(x, y) ? 1.0 : 0.0; });
  // A number that meets half precision may be rounded to that type or not: what is as near to it as
  // that rounding is open.
  const Value* self = a.find(0, "self");
  if (self == nullptr || self->kind != Value::Kind::kTensor || !is_half(self->tensor.element))
    return e;
  const Array x = a.array(0, "self"), y = a.array(1, "other");
  if (x.dims.empty() || !y.dims.empty()) return e;
  const Limit limit = limit_of(a, y.at(0).value, self->tensor.element);
  Array& out = *e.results[0];
  out.radius.assign(out.value.size(), 0);
  for (int64_t i = 0; i < x.size(); ++i)
    if (limit.is_open(x.at(i).value)) out.set(i, {out.at(i).value, kInfinity});
  return e;
}
Expected eq(const Arguments& a) { return compare(a, std::equal_to<>()); }
Expected ne(const Arguments& a) { return compare(a, std::not_equal_to<>()); }
Expected lt(const Arguments& a) { return compare(a, std::less<>()); }
Expected le(const Arguments& a) { return compare(a, std::less_equal<>()); }
Expected gt(const Arguments& a) { return compare(a, std::greater<>()); }
Expected ge(const Arguments& a) { return compare(a, std::greater_equal<>()); }
Expected logical_and(const Arguments& a) {
  return compare(a, [](double x, double y) { return x != 0 && y != 0; });
}
Expected logical_or(const Arguments& a) {
  return compare(a, [](double x, double y) { return x != 0 || y != 0; });
}
Expected logical_xor(const Arguments& a) {
  return compare(a, [](double x, double y) { return (x != 0) != (y != 0); });
}
Expected bits(const Arguments& a, const std::function<int64_t(int64_t, int64_t)>& f) {
  return exact_map(
      a, [&](double x, double y) { return static_cast<double>(f(as_integer(x), as_integer(y))); });
}
Expected bitwise_and(const Arguments& a) { return bits(a, std::bit_and<int64_t>()); }
Expected bitwise_or(const Arguments& a) { return bits(a, std::bit_or<int64_t>()); }
Expected bitwise_xor(const Arguments& a) { return bits(a, std::bit_xor<int64_t>()); }
Expected bitwise_not(const Arguments& a) {
  const bool truth = a.view(0, "self").element == Element::kBool;
  return rule(a, [&](double x) { return truth ? (x == 0 ? 1.0 : 0.0) : -x - 1; });
}
Expected logical_not(const Arguments& a) {
  return rule(a, [](double x) { return x == 0 ? 1.0 : 0.0; });
}

Expected neg(const Arguments& a) {
  return rule(a, [](double x) { return -x; });
}
Expected absolute(const Arguments& a) {
  return rule(a, [](double x) { return std::fabs(x); });
}
Expected sign(const Arguments& a) {
  return rule(a, [](double x) { return static_cast<double>((x > 0) - (x < 0)); });
}
Expected ceil(const Arguments& a) {
  return rule(a, [](double x) { return std::ceil(x); });
}
Expected floor(const Arguments& a) {
  return rule(a, [](double x) { return std::floor(x); });
}
Expected trunc(const Arguments& a) {
  return rule(a, [](double x) { return std::trunc(x); });
}
Expected round(const Arguments& a) {
  if (a.integer(1, "decimals", 0) != 0) throw Undefined("rounding to decimals");
  return rule(a, [](double x) { return std::nearbyint(x); });
}
Expected isnan(const Arguments& a) {
  return rule(a, [](double x) { return x != x ? 1.0 : 0.0; });
}
Expected isinf(const Arguments& a) {
  return rule(a, [](double x) { return std::isinf(x) ? 1.0 : 0.0; });
}
Expected isfinite(const Arguments& a) {
  return rule(a, [](double x) { return std::isfinite(x) ? 1.0 : 0.0; });
}
Expected exp(const Arguments& a) {
  return unary(a, [&](Estimate x) { return a.m.exp(x); });
}
Expected log(const Arguments& a) {
  return unary(a, [&](Estimate x) { return a.m.log(x); });
}
Expected tanh(const Arguments& a) {
  return unary(a, [&](Estimate x) { return a.m.tanh(x); });
}
Expected erf(const Arguments& a) {
  Arithmetic m = a.m;
  if (is_half(type_of_result(a)) && !m.gpu) m.erf_of_one = Arithmetic::kErfOfVectors;
  return unary(a, [&](Estimate x) { return m.erf(x); });
}
Expected square_root(const Arguments& a) {
  return unary(a, [&](Estimate x) { return a.m.sqrt(x); });
}
Expected rsqrt(const Arguments& a) {
  const Element to = type_of_result(a);
  return unary(a, [&](Estimate x) {
    const Estimate root = is_half(to) ? stored(a.m.sqrt(x), to) : a.m.sqrt(x);
    return a.m.more(a.m.div(exactly(1), root), a.m.unit);
  });
}
Expected reciprocal(const Arguments& a) {
  return unary(a, [&](Estimate x) { return a.m.div(exactly(1), x); });
}
Expected sigmoid(const Arguments& a) {
  return unary(a, [&](Estimate x) { return a.m.sigmoid(x); });
}
Expected expm1(const Arguments& a) {
  return unary(a, [&](Estimate x) { return function(a.m, std::expm1(x.value)); });
}
Expected log1p(const Arguments& a) {
  return unary(a, [&](Estimate x) { return function(a.m, std::log1p(x.value)); });
}
Expected log2(const Arguments& a) {
  return unary(a, [&](Estimate x) { return function(a.m, std::log2(x.value)); });
}
Expected log10(const Arguments& a) {
  return unary(a, [&](Estimate x) { return function(a.m, std::log10(x.value)); });
}
Expected erfc(const Arguments& a) {
  return unary(a, [&](Estimate x) { return function(a.m, std::erfc(x.value), 16); });
}
// Sine and cosine lose accuracy near their zeros only through the reduction of large arguments.
Expected sin(const Arguments& a) {
  return unary(a, [&](Estimate x) { return function(a.m, std::sin(x.value)); });
}
Expected cos(const Arguments& a) {
  return unary(a, [&](Estimate x) { return function(a.m, std::cos(x.value)); });
}
Expected exp2(const Arguments& a) {
  return unary(a, [&](Estimate x) { return function(a.m, std::exp2(x.value)); });
}
Expected atan(const Arguments& a) {
  return unary(a, [&](Estimate x) { return function(a.m, std::atan(x.value)); });
}

Expected acos(const Arguments& a) {
  return unary(a, [&](Estimate x) { return function(a.m, std::acos(x.value)); });
}
Expected asin(const Arguments& a) {
  return unary(a, [&](Estimate x) { return function(a.m, std::asin(x.value)); });
}
Expected sinh(const Arguments& a) {
  return unary(a, [&](Estimate x) { return function(a.m, std::sinh(x.value)); });
}
Expected cosh(const Arguments& a) {
  return unary(a, [&](Estimate x) { return function(a.m, std::cosh(x.value)); });
}
Expected asinh(const Arguments& a) {
  return unary(a, [&](Estimate x) { return function(a.m, std::asinh(x.value)); });
}
Expected acosh(const Arguments& a) {
  return unary(a, [&](Estimate x) { return function(a.m, std::acosh(x.value)); });
}
Expected atanh(const Arguments& a) {
  return unary(a, [&](Estimate x) { return function(a.m, std::atanh(x.value)); });
}
// By Halley's steps from Winitzki's approximation, which is right to 2 in 1000.
double inverse_of_erf(double x) {
  if (!(std::fabs(x) < 1)) return std::fabs(x) == 1 ? std::copysign(kInfinity, x) : std::nan("");
  if (x == 0) return x;
  constexpr double kA = 0.147, kPi = 3.14159265358979323846;
  const double ln = std::log1p(-x * x), half = 2 / (kPi * kA) + ln / 2;
  double y = std::copysign(std::sqrt(std::sqrt(half * half - ln / kA) - half), x);
  for (int i = 0; i < 3; ++i) {
    const double off = (std::erf(y) - x) * std::sqrt(kPi) / 2 * std::exp(y * y);
    y -= off / (1 + y * off);
  }
  return y;
}
Expected erfinv(const Arguments& a) {
  return unary(a, [&](Estimate x) { return function(a.m, inverse_of_erf(x.value), 16); });
}
// The larger one + log1p(exp(-|self - other|)).
Expected logaddexp(const Arguments& a) {
  const Arithmetic& m = a.m;
  return map(
      m,
      [&](Estimate x, Estimate y) {
        const Estimate top = Arithmetic::max(x, y);
        if (!finite(top.value) || x.value == -kInfinity || y.value == -kInfinity) return top;
        const Estimate gap = m.sub(exactly(std::fmin(x.value, y.value)), top), part = m.exp(gap);
        // log1p of a number from 0 to 1 has a slope of at most 1.
        const Estimate more = m.more({std::log1p(part.value), part.radius}, m.elementary * m.unit);
        return m.add(top, more);
      },
      a.array(0, "self"), a.array(1, "other"));
}

Expected where(const Arguments& a) {
  Array out = map(
      a.m, [](Estimate p, Estimate x, Estimate y) { return p.value != 0 ? x : y; },
      a.array(0, "condition"), a.array(1, "self"), a.array(2, "other"));
  out.radius.clear();
  return out;
}
Expected masked_fill(const Arguments& a) {
  Array out = map(
      a.m, [](Estimate x, Estimate p, Estimate v) { return p.value != 0 ? v : x; },
      a.array(0, "self"), a.array(1, "mask"), a.array(2, "value"));
  out.radius.clear();
  return out;
}
// self + weight (end - self), or end - (1 - weight) (end - self).
Expected lerp(const Arguments& a) {
  const Arithmetic& m = a.m;
  return map(
      m,
      [&](Estimate x, Estimate end, Estimate w) {
        const Estimate moved = m.add(x, m.mul(w, m.sub(end, x)));
        const double size = std::fabs(x.value) + std::fabs(end.value);
        return Estimate{moved.value, moved.radius + 4 * m.unit * size};
      },
      a.array(0, "self"), a.array(1, "end"), a.array(2, "weight"));
}
Expected addcmul(const Arguments& a) {
  const Arithmetic& m = a.m;
  const double value = a.number(3, "value", 1);
  return map(
      m,
      [&](Estimate x, Estimate p, Estimate q) {
        return m.add(x, m.mul(exactly(value), m.mul(p, q)));
      },
      a.array(0, "self"), a.array(1, "tensor1"), a.array(2, "tensor2"));
}
Expected addcdiv(const Arguments& a) {
  const Arithmetic& m = a.m;
  const double value = a.number(3, "value", 1);
  return map(
      m,
      [&](Estimate x, Estimate p, Estimate q) {
        return m.add(x, m.mul(exactly(value), m.div(p, q)));
      },
      a.array(0, "self"), a.array(1, "tensor1"), a.array(2, "tensor2"));
}
Expected bounded(const Arguments& a, bool below, bool above, size_t low_at, size_t high_at) {
  Array x = a.array(0, "self");
  const auto cut = [&](const Array& limit, double sign) {
    x = map(
        a.m,
        [&](Estimate v, Estimate l) {
          return exactly(sign * Arithmetic::max({sign * v.value}, {sign * l.value}).value);
        },
        x, limit);
  };
  if (below && a.has(low_at, "min")) cut(a.array(low_at, "min"), 1);
  if (above && a.has(high_at, "max")) cut(a.array(high_at, "max"), -1);
  x.radius.clear();
  return x;
}
Expected clamp(const Arguments& a) { return bounded(a, true, true, 1, 2); }
Expected clamp_min(const Arguments& a) { return bounded(a, true, false, 1, 1); }
Expected clamp_max(const Arguments& a) { return bounded(a, false, true, 1, 1); }
// Without a number for it, an infinity becomes the largest number of its type.
Expected nan_to_num(const Arguments& a) {
  const Element to = type_of_result(a);
  const double largest = to == Element::kF64    ? std::numeric_limits<double>::max()
                         : to == Element::kF16  ? 65504
                         : to == Element::kBF16 ? 0x1.fep127
                                                : std::numeric_limits<float>::max();
  const double of_nan = a.number(1, "nan", 0), above = a.number(2, "posinf", largest),
               below = a.number(3, "neginf", -largest);
  return map(
      a.m,
      [&](Estimate x) {
        if (std::isnan(x.value)) return a.m.rounded(exactly(of_nan));
        if (!std::isinf(x.value)) return exactly(x.value);
        const double limit = x.value > 0 ? above : below;
        return std::fabs(limit) == largest ? exactly(limit) : a.m.rounded(exactly(limit));
      },
      a.array(0, "self"));
}
Expected copysign(const Arguments& a) {
  return exact_map(a, [](double x, double y) { return std::copysign(x, y); });
}
Expected atan2(const Arguments& a) {
  return map(
      a.m, [&](Estimate y, Estimate x) { return function(a.m, std::atan2(y.value, x.value)); },
      a.array(0, "self"), a.array(1, "other"));
}
Expected xlogy(const Arguments& a) {
  return map(
      a.m, [&](Estimate x, Estimate y) { return x.value == 0 ? x : a.m.mul(x, a.m.log(y)); },
      operand(a, 0, "self"), operand(a, 1, "other"));
}

constexpr Definition kPointwiseDefinitions[] = {
    {"aten.add", add},
    {"aten.sub", sub},
    {"aten.rsub", rsub},
    {"aten.mul", mul},
    {"aten.div", div},
    {"aten.true_divide", div},
    {"aten.floor_divide", floor_divide},
    {"aten.remainder", remainder},
    {"aten.maximum", maximum},
    {"aten.minimum", minimum},
    {"aten.pow", power},
    {"aten.square", square},
    {"aten.heaviside", heaviside},
    {"aten.eq", eq},
    {"aten.ne", ne},
    {"aten.lt", lt},
    {"aten.le", le},
    {"aten.gt", gt},
    {"aten.ge", ge},
    {"aten.logical_and", logical_and},
    {"aten.logical_or", logical_or},
    {"aten.logical_xor", logical_xor},
    {"aten.logical_not", logical_not},
    {"aten.bitwise_and", bitwise_and},
    {"aten.bitwise_or", bitwise_or},
    {"aten.bitwise_xor", bitwise_xor},
    {"aten.__and__", bitwise_and},
    {"aten.__or__", bitwise_or},
    {"aten.bitwise_not", bitwise_not},
    {"aten.neg", neg},
    {"aten.abs", absolute},
    {"aten.sign", sign},
    {"aten.sgn", sign},
    {"aten.ceil", ceil},
    {"aten.floor", floor},
    {"aten.trunc", trunc},
    {"aten.round", round},
    {"aten.nan_to_num", nan_to_num},
    {"aten.isnan", isnan},
    {"aten.isinf", isinf},
    {"aten.isfinite", isfinite},
    {"aten.exp", exp},
    {"aten.exp2", exp2},
    {"aten.expm1", expm1},
    {"aten.log", log},
    {"aten.log1p", log1p},
    {"aten.log2", log2},
    {"aten.log10", log10},
    {"aten.tanh", tanh},
    {"aten.erf", erf},
    {"aten.erfc", erfc},
    {"aten.erfinv", erfinv},
    {"aten.asinh", asinh},
    {"aten.acosh", acosh},
    {"aten.atanh", atanh},
    {"aten.fmod", fmod},
    {"aten.sin", sin},
    {"aten.cos", cos},
    {"aten.atan", atan},
    {"aten.acos", acos},
    {"aten.asin", asin},
    {"aten.sinh", sinh},
    {"aten.cosh", cosh},
    {"aten.logaddexp", logaddexp},
    {"aten.atan2", atan2},
    {"aten.sqrt", square_root},
    {"aten.rsqrt", rsqrt},
    {"aten.reciprocal", reciprocal},
    {"aten.sigmoid", sigmoid},
    {"aten.where", where},
    {"aten.masked_fill", masked_fill},
    {"aten.lerp", lerp},
    {"aten.addcmul", addcmul},
    {"aten.addcdiv", addcdiv},
    {"aten.clamp", clamp},
    {"aten.clamp_min", clamp_min},
    {"aten.clamp_max", clamp_max},
    {"aten.copysign", copysign},
    {"aten.xlogy", xlogy},
};

}  // namespace

std::span<const Definition> pointwise_definitions() { return kPointwiseDefinitions; }

}  // namespace twinrun::aten
