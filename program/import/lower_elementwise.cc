// Rules for arithmetic, comparison, conversion, logic and elementary functions.
#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "program/import/integers.h"

namespace twinrun {
namespace {

OpKind kind_of(std::string_view opcode) {
  static const std::map<std::string_view, OpKind> kinds = {
      {"add", OpKind::kAdd},
      {"subtract", OpKind::kSubtract},
      {"multiply", OpKind::kMultiply},
      {"divide", OpKind::kDivide},
      {"maximum", OpKind::kMaximum},
      {"minimum", OpKind::kMinimum},
      {"sqrt", OpKind::kSqrt},
      {"rsqrt", OpKind::kRsqrt},
      {"exponential", OpKind::kExponential},
      {"log", OpKind::kLog},
      {"tanh", OpKind::kTanh},
      {"logistic", OpKind::kLogistic},
      {"erf", OpKind::kErf},
      {"log-plus-one", OpKind::kLog1p},
      {"negate", OpKind::kNegate},
      {"abs", OpKind::kAbs},
  };
  return kinds.at(opcode);
}

ValueId unary(Site& s) {
  s.expect(1);
  if (is_integer(s.hlo_type(0))) {  // negate, abs
    const Range r = range_of(s, s.x[0], s.hlo_type(0));
    if (s.in.opcode == "abs" && is_unsigned(s.hlo_type(0))) return s.x[0];
    const ValueId y = s.b.unary(kind_of(s.in.opcode), s.x[0], s.name());
    const int64_t size = std::max(-r.low, r.high);
    return as_declared(s, y, s.in.opcode == "abs" ? Range{0, size} : Range{-r.high, -r.low});
  }
  return s.b.unary(kind_of(s.in.opcode), s.x[0], s.name());
}

// The larger or smaller of unsigned numbers, some of which may have a top bit.
ValueId unsigned_extreme(Site& s, CompareKind kind) {
  const ValueId a = ordered(s, 0), b = ordered(s, 1);
  const ValueId first = s.b.compare(kind, a, b, s.name("first"));
  return s.b.select(first, s.x[0], s.x[1], s.name());
}

ValueId of_integers(Site& s) {
  const OpKind kind = kind_of(s.in.opcode);
  const Range a = range_of(s, s.x[0], s.hlo_type(0)), b = range_of(s, s.x[1], s.hlo_type(1));
  if (kind == OpKind::kDivide) return lower_integer_divide(s);
  if (kind == OpKind::kMaximum || kind == OpKind::kMinimum) {
    if (has_top_bit(s, 0) || has_top_bit(s, 1))
      return unsigned_extreme(s, kind == OpKind::kMaximum ? CompareKind::kGe : CompareKind::kLe);
    return s.b.binary(kind, s.x[0], s.x[1], s.name());
  }
  const ValueId y = s.b.binary(kind, s.x[0], s.x[1], s.name());
  return as_declared(s, y,
                     kind == OpKind::kAdd        ? Range{a.low + b.low, a.high + b.high}
                     : kind == OpKind::kSubtract ? Range{a.low - b.high, a.high - b.low}
                                                 : product_of(a, b));
}

ValueId binary(Site& s) {
  s.expect(2);
  if (s.type(0).dtype == DType::kPred && s.type(0) == s.type(1)) {
    const std::string& op = s.in.opcode;
    if (op == "multiply" || op == "minimum") return s.logical_and(s.x[0], s.x[1], "");
    if (op == "add" || op == "maximum") return s.logical_or(s.x[0], s.x[1], "");
  }
  if (s.type(0).dtype == DType::kI32 && s.type(0) == s.type(1)) return of_integers(s);
  return s.b.binary(kind_of(s.in.opcode), s.x[0], s.x[1], s.name());
}

ValueId compare(Site& s) {
  static const std::map<std::string, CompareKind> kinds = {
      {"EQ", CompareKind::kEq}, {"NE", CompareKind::kNe}, {"LT", CompareKind::kLt},
      {"LE", CompareKind::kLe}, {"GT", CompareKind::kGt}, {"GE", CompareKind::kGe}};
  s.expect(2);
  const auto kind = kinds.find(text_attribute(s.in, "direction"));
  if (kind == kinds.end())
    s.refuse(
        fmt::format("direction={}; allowed: EQ NE LT LE GT GE", text_attribute(s.in, "direction")));
  if (text_attribute(s.in, "type") == "TOTALORDER" && is_floating(s.type(0).dtype)) {
    const ValueId a = in_total_order(s, s.x[0]), b = in_total_order(s, s.x[1]);
    return s.b.compare(kind->second, a, b, s.name());
  }
  if (has_top_bit(s, 0) || has_top_bit(s, 1)) {
    const ValueId a = ordered(s, 0), b = ordered(s, 1);
    return s.b.compare(kind->second, a, b, s.name());
  }
  return s.b.compare(kind->second, s.x[0], s.x[1], s.name());
}

ValueId select(Site& s) {
  s.expect(3);
  const TensorType like = s.type(1);
  return s.b.select(s.spread(s.x[0], like), s.x[1], s.x[2], s.name());
}

ValueId clamp(Site& s) {
  s.expect(3);
  const TensorType like = s.type(1);
  if (has_top_bit(s, 0) || has_top_bit(s, 1) || has_top_bit(s, 2)) {
    // max(low, x), then min(that, high), in the order of unsigned numbers.
    const ValueId low = s.spread(ordered(s, 0), like), x = ordered(s, 1),
                  high = s.spread(ordered(s, 2), like);
    const ValueId above = s.b.binary(OpKind::kMaximum, x, low, s.name("from"));
    const ValueId inside = s.b.binary(OpKind::kMinimum, above, high, s.name("to"));
    const ValueId top = s.scalar_like(inside, static_cast<double>(INT32_MIN), "top_bit");
    return s.b.binary(OpKind::kXor, inside, top, s.name());
  }
  const ValueId low = s.b.binary(OpKind::kMaximum, s.x[1], s.spread(s.x[0], like), s.name("from"));
  return s.b.binary(OpKind::kMinimum, low, s.spread(s.x[2], like), s.name());
}

ValueId convert(Site& s) {
  s.expect(1);
  const DType to = s.result().dtype, from = s.type(0).dtype;
  const ValueId integer = convert_integer(s, s.x[0], s.hlo_type(0));
  if (integer != kNoValue) return integer;
  if (from == to) return s.x[0];
  // Conversions between integers, predicates and bf16 go through f32, where a predicate is 0 or 1.
  const bool direct = from == DType::kF32 || to == DType::kF32;
  if (direct) return s.b.convert(s.x[0], to, s.name());
  if (to == DType::kPred) {
    const ValueId zero = s.scalar_like(s.x[0], 0, "zero");
    return s.b.compare(CompareKind::kNe, s.x[0], zero, s.name());
  }
  if (from == DType::kI32 && to == DType::kBF16)
    s.note("convert of s32 to bf16 rounds twice (to f32, then to bf16)");
  return s.b.convert(s.b.convert(s.x[0], DType::kF32, s.name("as_f32")), to, s.name());
}

// 1, -1, or x itself where x is a zero of either sign or NaN.
ValueId sign(Site& s) {
  s.expect(1);
  if (is_unsigned(s.hlo_type(0))) {
    const ValueId none = s.scalar_like(s.x[0], 0, "zero"), some = s.scalar_like(s.x[0], 1, "one");
    const ValueId is_zero = s.b.compare(CompareKind::kEq, s.x[0], none, s.name("is_zero"));
    return s.b.select(is_zero, none, some, s.name());
  }
  const ValueId zero = s.scalar_like(s.x[0], 0, "zero");
  const ValueId one = s.scalar_like(s.x[0], 1, "one"),
                minus = s.scalar_like(s.x[0], -1, "minus_one");
  const ValueId below = s.b.compare(CompareKind::kLt, s.x[0], zero, s.name("below"));
  const ValueId above = s.b.compare(CompareKind::kGt, s.x[0], zero, s.name("above"));
  return s.b.select(above, one, s.b.select(below, minus, s.x[0], s.name("not_above")), s.name());
}

ValueId is_finite(Site& s) {
  s.expect(1);
  const ValueId infinity = s.scalar_like(s.x[0], HUGE_VAL, "infinity");
  const ValueId size = s.b.unary(OpKind::kAbs, s.x[0], s.name("abs"));
  return s.b.compare(CompareKind::kLt, size, infinity, s.name());
}

// e^x - 1 = tanh(x / 2) (e^x + 1), which has no cancellation.
ValueId expm1(Site& s) {
  s.expect(1);
  s.note(
      "exponential-minus-one is computed as tanh(x / 2) * (exp(x) + 1): four roundings, no "
      "cancellation");
  const ValueId half = s.b.mul(s.x[0], s.scalar_like(s.x[0], 0.5, "half"), s.name("halved"));
  const ValueId slope = s.b.unary(OpKind::kTanh, half, s.name("tanh"));
  const ValueId power = s.b.unary(OpKind::kExponential, s.x[0], s.name("exp"));
  const ValueId more = s.b.add(power, s.scalar_like(s.x[0], 1, "one"), s.name("exp_plus_one"));
  return s.b.mul(slope, more, s.name());
}

// 1 - erf(x) below 0.5; from 0.5 on e^(-x^2) t P(t) with t = 1 / (1 + 0.4 x). P is fitted by least
// squares of the relative error on 400 Chebyshev nodes of 0.5 <= x <= 10.5, where the range of f32
// ends; with these coefficients the fit is within 2^-26.
ValueId erfc(Site& s) {
  constexpr float kP[] = {0.22568077F,   0.22553648F, 0.20930637F,  0.16007198F, 0.16972505F,
                          -0.061861984F, 0.23462272F, -0.22412711F, 0.061058637F};
  s.expect(1);
  if (!is_floating(s.type(0).dtype))
    s.refuse(fmt::format("erfc of {}; allowed: f32, bf16", to_string(s.type(0))));
  s.note(
      "erfc is computed as 1 - erf(x) below 0.5, as exp(-x^2) times a fit from there: relative "
      "error up to about 2^-21 (1 + x^2 / 8)");
  const ValueId x = s.convert(s.x[0], DType::kF32, "as_f32");
  const auto number = [&](double v, std::string_view local) { return s.scalar_like(x, v, local); };
  const ValueId one = number(1, "one"), size = s.b.unary(OpKind::kAbs, x, s.name("abs"));
  const ValueId slope = s.b.mul(size, number(0.4F, "slope"), s.name("scaled"));
  const ValueId t = s.b.div(one, s.b.add(one, slope, s.name("from_one")), s.name("t"));
  ValueId p = number(kP[std::size(kP) - 1], "p");
  for (size_t i = std::size(kP) - 1; i-- > 0;)
    p = s.b.add(s.b.mul(p, t, s.name("times_t")), number(kP[i], "p"), s.name("plus_p"));
  const ValueId square = s.b.mul(x, x, s.name("square"));
  const ValueId bell =
      s.b.unary(OpKind::kExponential, s.b.unary(OpKind::kNegate, square, s.name("minus_square")),
                s.name("bell"));
  const ValueId tail = s.b.mul(s.b.mul(bell, t, s.name("bell_t")), p, s.name("tail"));
  const ValueId near = s.b.sub(one, s.b.unary(OpKind::kErf, x, s.name("erf")), s.name("near"));
  const ValueId below = s.b.compare(CompareKind::kLt, x, number(0.5, "half"), s.name("below"));
  return s.convert(s.b.select(below, near, tail, s.name()), s.type(0).dtype, "result_dtype");
}

// x^n by squaring, as XLA and JAX expand small integer powers.
ValueId integer_power(Site& s, ValueId x, int n) {
  ValueId result = kNoValue, square = x;
  for (int rest = n;;) {
    if (rest & 1) {
      const bool last = rest == 1;
      result = result == kNoValue ? square
                                  : s.b.mul(result, square, last ? s.name() : s.name("product"));
    }
    rest >>= 1;
    if (rest == 0) return result;
    square = s.b.mul(square, square, rest == 1 && result == kNoValue ? s.name() : s.name("square"));
  }
}

ValueId power(Site& s) {
  s.expect(2);
  if (!is_floating(s.type(0).dtype) || s.type(0) != s.type(1))
    s.refuse(fmt::format("power of {} and {}; allowed: floats of one shape", to_string(s.type(0)),
                         to_string(s.type(1))));
  const auto exponent = splat_of(s.b.graph(), s.x[1]), base = splat_of(s.b.graph(), s.x[0]);
  if (exponent) {
    const double e = *exponent, n = std::fabs(e);
    constexpr double kMax = 64;
    if (e == 0) return s.scalar_like(s.x[0], 1, "one");
    if (e == 0.5) return s.b.unary(OpKind::kSqrt, s.x[0], s.name());
    if (e == -0.5) return s.b.unary(OpKind::kRsqrt, s.x[0], s.name());
    if (n == std::floor(n) && n <= kMax) {
      s.note("power with a constant integer exponent is computed by squaring");
      const ValueId p = integer_power(s, s.x[0], static_cast<int>(n));
      return e > 0 ? p : s.b.div(s.scalar_like(p, 1, "one"), p, s.name("reciprocal"));
    }
  }
  s.note(
      "power with another exponent is computed as exp(y * log(x)): relative error up to 2^-23 (1 + "
      "|y log x|)");
  const ValueId log =
      base && *base > 0
          ? s.scalar_like(s.x[1], static_cast<double>(static_cast<float>(std::log(*base))), "log")
          : s.b.unary(OpKind::kLog, s.x[0], s.name("log"));
  return s.b.unary(OpKind::kExponential, s.b.mul(s.x[1], log, s.name("product")), s.name());
}

ValueId reduce_precision(Site& s) {
  s.expect(1);
  const int64_t exponent = number_attribute(s.in, "exponent_bits"),
                mantissa = number_attribute(s.in, "mantissa_bits");
  if (exponent == 8 && (mantissa == 23 || (mantissa == 7 && s.type(0).dtype == DType::kBF16)))
    return s.x[0];
  if (exponent == 8 && mantissa == 7 && s.type(0).dtype == DType::kF32)
    return s.b.convert(s.b.convert(s.x[0], DType::kBF16, s.name()), DType::kF32, s.name("as_f32"));
  s.refuse(fmt::format(
      "reduce-precision to {} exponent and {} mantissa bits; allowed: 8 and 7, 8 and 23", exponent,
      mantissa));
}

}  // namespace

void add_elementwise(LoweringTable& table) {
  for (const char* opcode : {"sqrt", "rsqrt", "exponential", "log", "tanh", "logistic", "erf",
                             "log-plus-one", "negate", "abs"})
    table[opcode] = unary;
  for (const char* opcode : {"add", "subtract", "multiply", "divide", "maximum", "minimum"})
    table[opcode] = binary;
  table["compare"] = compare;
  table["select"] = select;
  table["clamp"] = clamp;
  table["convert"] = convert;
  table["sign"] = sign;
  table["is-finite"] = is_finite;
  table["exponential-minus-one"] = expm1;
  table["erfc"] = erfc;
  table["power"] = power;
  table["reduce-precision"] = reduce_precision;
}

}  // namespace twinrun
