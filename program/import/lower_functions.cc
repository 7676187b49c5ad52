// Rules for rounding to whole numbers, and for functions that our ops lack: tan, cbrt, erf_inv and
// next_after.
#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "program/import/integers.h"

namespace twinrun {
namespace {

constexpr double kWhole = 0x1p23;  // from here on every binary32 number is whole

ValueId as_f32(Site& s) {
  s.expect(1);
  if (!is_floating(s.type(0).dtype))
    s.refuse(fmt::format("{} of {}; allowed: f32, bf16", s.in.opcode, to_string(s.type(0))));
  return s.convert(s.x[0], DType::kF32, "as_f32");
}
ValueId result_of(Site& s, ValueId y) { return s.convert(y, s.type(0).dtype, "result_dtype"); }

ValueId below_whole(Site& s, ValueId size) {
  const ValueId limit = s.scalar_like(size, kWhole, "limit");
  return s.b.compare(CompareKind::kLt, size, limit, s.name("has_fraction"));
}

// The whole number nearest to `size`, 0 <= size, with the sign of x; x where it is whole already.
ValueId with_sign_of(Site& s, ValueId x, ValueId size, ValueId whole) {
  const ValueId zero = s.scalar_like(x, 0, "zero");
  const ValueId negative = s.b.compare(CompareKind::kLt, x, zero, s.name("negative"));
  const ValueId flipped = s.b.unary(OpKind::kNegate, whole, s.name("flipped"));
  const ValueId rounded = s.b.select(negative, flipped, whole, s.name("with_sign"));
  const ValueId is_zero = s.b.compare(CompareKind::kEq, x, zero, s.name("is_zero"));
  const ValueId kept = s.b.select(is_zero, x, rounded, s.name("kept"));  // -0
  const ValueId fraction = below_whole(s, size);
  return s.b.select(fraction, kept, x, s.name());
}

ValueId round_even(Site& s) {
  const ValueId x = as_f32(s), size = s.b.unary(OpKind::kAbs, x, s.name("size"));
  const ValueId limit = s.scalar_like(size, kWhole, "limit");
  const ValueId raised = s.b.add(size, limit, s.name("raised"));
  return result_of(s, with_sign_of(s, x, size, s.b.sub(raised, limit, s.name("whole"))));
}

ValueId round_away(Site& s) {
  const ValueId x = as_f32(s), size = s.b.unary(OpKind::kAbs, x, s.name("size"));
  const ValueId whole = truncated(s, size, "whole");
  const ValueId fraction = s.b.sub(size, whole, s.name("fraction"));
  const ValueId half = s.scalar_like(x, 0.5, "half"), one = s.scalar_like(x, 1, "one");
  const ValueId up = s.b.compare(CompareKind::kGe, fraction, half, s.name("up"));
  const ValueId next = s.b.add(whole, one, s.name("next"));
  return result_of(s, with_sign_of(s, x, size, s.b.select(up, next, whole, s.name("nearest"))));
}

ValueId floor_of(Site& s, ValueId x) {
  const ValueId size = s.b.unary(OpKind::kAbs, x, s.name("size"));
  const ValueId whole = truncated(s, x, "whole");
  const ValueId above = s.b.compare(CompareKind::kGt, whole, x, s.name("above"));
  const ValueId lower = s.b.sub(whole, s.scalar_like(x, 1, "one"), s.name("lower"));
  const ValueId floor = s.b.select(above, lower, whole, s.name("floor"));
  const ValueId is_zero =
      s.b.compare(CompareKind::kEq, x, s.scalar_like(x, 0, "zero"), s.name("is_zero"));
  const ValueId kept = s.b.select(is_zero, x, floor, s.name("kept"));
  const ValueId fraction = below_whole(s, size);
  return s.b.select(fraction, kept, x, s.name());
}

ValueId floor(Site& s) { return result_of(s, floor_of(s, as_f32(s))); }

ValueId ceil(Site& s) {
  const ValueId flipped = s.b.unary(OpKind::kNegate, as_f32(s), s.name("negated"));
  return result_of(s, s.b.unary(OpKind::kNegate, floor_of(s, flipped), s.name("ceil")));
}

ValueId tan(Site& s) {
  s.note("tan is computed as sin / cos: three roundings");
  const ValueId x = as_f32(s), sine = s.b.unary(OpKind::kSine, x, s.name("sine")),
                cosine = s.b.unary(OpKind::kCosine, x, s.name("cosine"));
  return result_of(s, s.b.div(sine, cosine, s.name()));
}

// exp(log |x| / 3), and a step of Newton's method.
ValueId cbrt(Site& s) {
  s.note("cbrt is computed as exp(log(x) / 3) and a step of Newton's method: within 3 ulps");
  const ValueId x = as_f32(s), size = s.b.unary(OpKind::kAbs, x, s.name("size"));
  const ValueId three = s.scalar_like(x, 3, "three"), zero = s.scalar_like(x, 0, "zero");
  const ValueId third =
      s.b.div(s.b.unary(OpKind::kLog, size, s.name("log")), three, s.name("third"));
  const ValueId rough = s.b.unary(OpKind::kExponential, third, s.name("rough"));
  const ValueId ratio = s.b.div(s.b.div(size, rough, s.name("once")), rough, s.name("twice"));
  const ValueId error = s.b.div(s.b.sub(ratio, rough, s.name("gap")), three, s.name("step"));
  const ValueId root = s.b.add(rough, error, s.name("root"));
  const ValueId negative = s.b.compare(CompareKind::kLt, x, zero, s.name("negative"));
  const ValueId flipped = s.b.unary(OpKind::kNegate, root, s.name("flipped"));
  const ValueId signed_root = s.b.select(negative, flipped, root, s.name("with_sign"));
  const ValueId half = s.b.mul(x, s.scalar_like(x, 0.5, "half"), s.name("halved"));
  // 0, infinities and NaN are their own halves.
  const ValueId own = s.b.compare(CompareKind::kEq, half, x, s.name("is_own_root"));
  return result_of(s, s.b.select(own, x, signed_root, s.name()));
}

// M. Giles, "Approximating the erfinv function", GPU Computing Gems, Jade Edition (2011), in
// single precision: x times a polynomial in w = -log(1 - x^2), or in its root.
ValueId erf_inv(Site& s) {
  constexpr float kCentral[] = {2.81022636e-08F,  3.43273939e-07F, -3.5233877e-06F,
                                -4.39150654e-06F, 0.00021858087F,  -0.00125372503F,
                                -0.00417768164F,  0.246640727F,    1.50140941F};
  constexpr float kTail[] = {-0.000200214257F, 0.000100950558F, 0.00134934322F,
                             -0.00367342844F,  0.00573950773F,  -0.0076224613F,
                             0.00943887047F,   1.00167406F,     2.83297682F};
  s.note("erf_inv is computed by the polynomial that XLA uses: up to some ulps from the function");
  const ValueId x = as_f32(s);
  const auto number = [&](double v, std::string_view local) { return s.scalar_like(x, v, local); };
  const ValueId minus_square =
      s.b.unary(OpKind::kNegate, s.b.mul(x, x, s.name("square")), s.name("minus_square"));
  const ValueId w = s.b.unary(OpKind::kNegate,
                              s.b.unary(OpKind::kLog1p, minus_square, s.name("log")), s.name("w"));
  const ValueId central = s.b.compare(CompareKind::kLt, w, number(5, "five"), s.name("central"));
  const ValueId inner = s.b.sub(w, number(2.5, "centre"), s.name("from_centre"));
  const ValueId root = s.b.unary(OpKind::kSqrt, w, s.name("root"));
  const ValueId outer = s.b.sub(root, number(3, "three"), s.name("from_three"));
  const ValueId z = s.b.select(central, inner, outer, s.name("z"));
  ValueId p = kNoValue;
  for (size_t i = 0; i < std::size(kCentral); ++i) {
    const ValueId a = number(kCentral[i], "c"), b = number(kTail[i], "t");
    const ValueId c = s.b.select(central, a, b, s.name("coefficient"));
    p = i == 0 ? c : s.b.add(c, s.b.mul(p, z, s.name("times_z")), s.name("polynomial"));
  }
  const ValueId infinite = s.b.mul(x, number(HUGE_VAL, "infinity"), s.name("infinite"));
  const ValueId size = s.b.unary(OpKind::kAbs, x, s.name("size"));
  const ValueId edge = s.b.compare(CompareKind::kEq, size, number(1, "one"), s.name("edge"));
  const ValueId product = s.b.mul(p, x, s.name("product"));
  return result_of(s, s.b.select(edge, infinite, product, s.name()));
}

// The neighbour of x in the direction of y: one more or less in its bits.
ValueId next_after(Site& s) {
  s.expect(2);
  if (s.type(0) != s.type(1) || s.type(0).dtype != DType::kF32)
    s.refuse(fmt::format("next_after of {} and {}; allowed: f32 of one shape", to_string(s.type(0)),
                         to_string(s.type(1))));
  const ValueId a = s.b.bitcast(s.x[0], DType::kI32, s.name("bits")),
                b = s.b.bitcast(s.x[1], DType::kI32, s.name("bits_of_goal"));
  const auto number = [&](double v, std::string_view local) { return s.scalar_like(a, v, local); };
  const auto size_of_bits = [&](ValueId v) { return masked(s, v, 0x7FFFFFFF, "size"); };
  const auto sign_of_bits = [&](ValueId v) { return masked(s, v, 0x80000000, "sign"); };
  const ValueId zero = number(0, "zero"), one = number(1, "one"), minus = number(-1, "minus_one");
  const ValueId size = size_of_bits(a), goal = size_of_bits(b);
  const ValueId sign = sign_of_bits(a), goal_sign = sign_of_bits(b);
  const ValueId larger = s.b.compare(CompareKind::kGt, size, goal, s.name("larger"));
  const ValueId across = s.b.compare(CompareKind::kNe, sign, goal_sign, s.name("across"));
  const ValueId step = s.b.select(s.logical_or(larger, across), minus, one, s.name("step"));
  const ValueId moved = s.b.add(a, step, s.name("moved"));
  const ValueId least = s.b.binary(OpKind::kOr, goal_sign, one, s.name("least"));
  const ValueId goal_zero = s.b.compare(CompareKind::kEq, goal, zero, s.name("goal_is_zero"));
  const ValueId from_zero = s.b.select(goal_zero, b, least, s.name("from_zero"));
  const ValueId at_zero = s.b.compare(CompareKind::kEq, size, zero, s.name("is_zero"));
  ValueId next = s.b.select(at_zero, from_zero, moved, s.name("next_bits"));
  const ValueId equal = s.b.compare(CompareKind::kEq, s.x[0], s.x[1], s.name("equal"));
  next = s.b.select(equal, b, next, s.name("or_goal"));
  const ValueId number_next = s.b.bitcast(next, DType::kF32, s.name("number"));
  const ValueId sum = s.b.add(s.x[0], s.x[1], s.name("sum"));
  const ValueId own = s.b.compare(CompareKind::kEq, s.x[0], s.x[0], s.name("x_is_number")),
                other = s.b.compare(CompareKind::kEq, s.x[1], s.x[1], s.name("y_is_number"));
  return s.b.select(s.logical_and(own, other), number_next, sum, s.name());
}

ValueId circular(Site& s) {
  s.expect(1);
  return s.b.unary(s.in.opcode == "sine" ? OpKind::kSine : OpKind::kCosine, s.x[0], s.name());
}

}  // namespace

ValueId truncated(Site& s, ValueId x, std::string_view local) {
  const ValueId size = s.b.unary(OpKind::kAbs, x, s.name("size"));
  const ValueId number = s.b.convert(x, DType::kI32, s.name("number"));
  const ValueId whole = s.b.convert(number, DType::kF32, s.name("whole"));
  const ValueId fraction = below_whole(s, size);
  return s.b.select(fraction, whole, x, s.name(local));
}

void add_functions(LoweringTable& table) {
  table["floor"] = floor;
  table["ceil"] = ceil;
  table["round-nearest-even"] = round_even;
  table["round-nearest-afz"] = round_away;
  table["sine"] = circular;
  table["cosine"] = circular;
  table["tan"] = tan;
  table["cbrt"] = cbrt;
  table["erf-inv"] = erf_inv;
  table["next-after"] = next_after;
}

}  // namespace twinrun
