// Rules for integers and bits: logic, shifts, division, bit counts, and numbers as bits.
#include <fmt/format.h>

#include "program/import/integers.h"

namespace twinrun {
namespace {

void check_alike(Site& s, size_t operands) {
  s.expect(operands);
  for (size_t i = 1; i < operands; ++i) {
    if (s.type(0) != s.type(i)) s.refuse(fmt::format("{} of two types", s.in.opcode));
  }
}

ValueId logic(Site& s) {
  const std::string& op = s.in.opcode;
  check_alike(s, op == "not" ? 1 : 2);
  if (s.type(0).dtype == DType::kPred) {
    if (op == "not") return s.logical_not(s.x[0], "");
    if (op == "and") return s.logical_and(s.x[0], s.x[1], "");
    if (op == "or") return s.logical_or(s.x[0], s.x[1], "");
    return s.b.compare(CompareKind::kNe, s.x[0], s.x[1], s.name());  // xor
  }
  if (s.type(0).dtype != DType::kI32)
    s.refuse(fmt::format("{} of {}; allowed: pred and integers", op, to_string(s.type(0))));
  if (op == "not") {
    const ValueId ones = s.scalar_like(s.x[0], -1, "ones");
    const ValueId flipped = s.b.binary(OpKind::kXor, s.x[0], ones, s.name());
    const Range r = range_of(s, s.x[0], s.hlo_type(0));
    const int64_t most = is_unsigned(s.hlo_type(0)) ? int64_t{UINT32_MAX} : -1;
    const bool wide = s.hlo_type(0) == "u64";  // its upper bits become ones
    return as_declared(s, flipped, wide ? Range{-1, -1} : Range{most - r.high, most - r.low});
  }
  // The operands' upper bits are those of their signs, so the result is in the range of its type.
  return s.b.binary(op == "and"  ? OpKind::kAnd
                    : op == "or" ? OpKind::kOr
                                 : OpKind::kXor,
                    s.x[0], s.x[1], s.name());
}

ValueId shifted(Site& s) {
  check_alike(s, 2);
  const std::string& op = s.in.opcode;
  const std::string_view hlo = s.hlo_type(0);
  const int bits = bits_of_integer(hlo);
  if (bits == 0) s.refuse(fmt::format("{} of {}; allowed: integers", op, to_string(s.type(0))));
  const OpKind kind = op == "shift-left"            ? OpKind::kShiftLeft
                      : op == "shift-right-logical" ? OpKind::kShiftRightLogical
                                                    : OpKind::kShiftRightArithmetic;
  // A constant amount is written as one, so that the ops that compute it can be left out.
  const KnownValue* known = s.shared().constants.of(s.x[1]);
  ValueId by = s.x[1], x = s.x[0];
  if (known != nullptr && known->splat()) by = s.scalar_like(by, known->numbers[0], "bits");
  const Range r = range_of(s, x, hlo);
  if (bits == 64) {
    const Range amount = range_of(s, by);
    if (amount.low < 0 || amount.high > 63 || (r.low < 0 && kind == OpKind::kShiftRightLogical) ||
        (kind == OpKind::kShiftLeft && (amount.high > 31 || amount.low != amount.high)))
      s.refuse(fmt::format("{} of {}, whose numbers may not fit in 32 bits", op, hlo));
    // An unsigned number has a sign bit of 0, above the 32 bits that are stored.
    if (kind == OpKind::kShiftRightArithmetic && is_unsigned(hlo))
      return s.b.binary(OpKind::kShiftRightLogical, x, by, s.name());
    const ValueId out = s.b.binary(kind, x, by, s.name());
    if (kind != OpKind::kShiftLeft) return out;
    const int64_t factor = int64_t{1} << amount.low;
    return as_declared(s, out, {r.low * factor, r.high * factor});
  }
  if (bits < 32) {
    if (kind == OpKind::kShiftRightLogical && !is_unsigned(hlo))
      x = masked(s, x, (1u << bits) - 1, "bits_of");
    if (kind == OpKind::kShiftRightArithmetic && is_unsigned(hlo)) {
      x = shift(s, OpKind::kShiftLeft, x, 32 - bits, "to_top");
      x = shift(s, OpKind::kShiftRightArithmetic, x, 32 - bits, "signed");
    }
  }
  const ValueId out = s.b.binary(kind, x, by, s.name());
  return bits < 32 ? as_declared(s, out, {}) : out;
}

// From signed division, for b > 0 by half of a (Warren, Hacker's Delight, 2nd ed., 9-3): the
// quotient of a / 2 doubled is one too small where the rest is at least b. For b with its top bit
// the quotient is whether a >= b.
ValueId unsigned_quotient(Site& s, ValueId a, ValueId b) {
  const ValueId zero = s.scalar_like(b, 0, "zero"), one = s.scalar_like(b, 1, "one");
  const auto top = [&](ValueId v) {
    const ValueId bit = s.scalar_like(v, static_cast<double>(INT32_MIN), "top_bit");
    return s.b.binary(OpKind::kXor, v, bit, s.name("ordered"));
  };
  const ValueId half = shift(s, OpKind::kShiftRightLogical, a, 1, "half");
  const ValueId rough =
      shift(s, OpKind::kShiftLeft, s.b.div(half, b, s.name("half_quotient")), 1, "rough_quotient");
  const ValueId rest = s.b.sub(a, s.b.mul(rough, b, s.name("multiple")), s.name("rest"));
  const ValueId ordered_b = top(b);
  const ValueId more = s.b.compare(CompareKind::kGe, top(rest), ordered_b, s.name("more"));
  const ValueId small =
      s.b.add(rough, s.b.select(more, one, zero, s.name("carry")), s.name("small_quotient"));
  const ValueId reached = s.b.compare(CompareKind::kGe, top(a), ordered_b, s.name("reached"));
  const ValueId large = s.b.select(reached, one, zero, s.name("large_quotient"));
  const ValueId wide = s.b.compare(CompareKind::kLt, b, zero, s.name("has_top_bit"));
  const ValueId out = s.b.select(wide, large, small, s.name("quotient"));
  const ValueId none = s.b.compare(CompareKind::kEq, b, zero, s.name("by_zero"));
  return s.b.select(none, s.scalar_like(b, -1, "all_ones"), out, s.name());
}

ValueId divide(Site& s) {
  if (has_top_bit(s, 0) || has_top_bit(s, 1)) return unsigned_quotient(s, s.x[0], s.x[1]);
  const ValueId out = s.b.div(s.x[0], s.x[1], s.name());
  // Of two numbers, only the quotient by 0 or -1 can be larger than the first.
  const Range a = range_of(s, s.x[0]), b = range_of(s, s.x[1]);
  const bool plain = b.low > 0 || b.high < -1;
  if (plain || bits_of_integer(s.in.shape.dtype) == 32) return out;
  return as_declared(s, out, {-a.high, std::max(-a.low, int64_t{1})});
}

// Of floats: the exact remainder, as long as the quotient has at most 24 bits.
ValueId float_remainder(Site& s) {
  s.note(
      "the remainder of floats is computed as a - b * trunc(a / b), corrected by b: exact for "
      "quotients below 2^24 whose product with b is exact, else within 2^-24 of a");
  const ValueId a = s.convert(s.x[0], DType::kF32, "as_f32"),
                b = s.convert(s.x[1], DType::kF32, "as_f32");
  const ValueId x = s.b.unary(OpKind::kAbs, a, s.name("size")),
                y = s.b.unary(OpKind::kAbs, b, s.name("size_of_divisor"));
  const ValueId zero = s.scalar_like(x, 0, "zero");
  const ValueId quotient = truncated(s, s.b.div(x, y, s.name("quotient")), "whole");
  ValueId rest = s.b.sub(x, s.b.mul(quotient, y, s.name("multiple")), s.name("rest"));
  const ValueId below = s.b.compare(CompareKind::kLt, rest, zero, s.name("below"));
  rest = s.b.select(below, s.b.add(rest, y, s.name("raised")), rest, s.name("from_zero"));
  const ValueId above = s.b.compare(CompareKind::kGe, rest, y, s.name("above"));
  rest = s.b.select(above, s.b.sub(rest, y, s.name("lowered")), rest, s.name("inside"));
  const ValueId smaller = s.b.compare(CompareKind::kLt, x, y, s.name("smaller"));
  rest = s.b.select(smaller, x, rest, s.name("either"));
  const ValueId negative = s.b.compare(CompareKind::kLt, a, zero, s.name("negative"));
  const ValueId flipped = s.b.unary(OpKind::kNegate, rest, s.name("flipped"));
  return s.convert(s.b.select(negative, flipped, rest, s.name()), s.type(0).dtype, "result_dtype");
}

ValueId remainder(Site& s) {
  check_alike(s, 2);
  if (is_floating(s.type(0).dtype)) return float_remainder(s);
  if (s.type(0).dtype != DType::kI32)
    s.refuse(fmt::format("remainder of {}; allowed: f32, bf16, integers", to_string(s.type(0))));
  if (!has_top_bit(s, 0) && !has_top_bit(s, 1))
    return s.b.binary(OpKind::kRemainder, s.x[0], s.x[1], s.name());
  const ValueId zero = s.scalar_like(s.x[1], 0, "zero");
  const ValueId quotient = unsigned_quotient(s, s.x[0], s.x[1]);
  const ValueId rest =
      s.b.sub(s.x[0], s.b.mul(quotient, s.x[1], s.name("multiple")), s.name("rest"));
  const ValueId none = s.b.compare(CompareKind::kEq, s.x[1], zero, s.name("by_zero"));
  return s.b.select(none, s.x[0], rest, s.name());
}

ValueId bitcast(Site& s) {
  s.expect(1);
  const std::string& to = s.in.shape.dtype;
  const std::string_view from = s.hlo_type(0);
  if (s.type(0).dims != s.in.shape.dims)
    s.refuse(fmt::format("bitcast-convert of {} to {}; allowed: types of one size", from, to));
  const int bits = bits_of_integer(to);
  if (from == to) return s.x[0];
  if (from == "f32" && bits == 32) return s.b.bitcast(s.x[0], DType::kI32, s.name());
  if (to == "f32" && bits_of_integer(from) == 32) return s.b.bitcast(s.x[0], DType::kF32, s.name());
  if (bits != 0 && bits < 64 && bits == bits_of_integer(from))
    return as_declared(s, s.x[0], range_of(s, s.x[0], from));
  s.refuse(
      fmt::format("bitcast-convert of {} to {}; allowed: f32 and integers of 32 bits", from, to));
}

// Sums of neighbouring groups of bits, then all groups by a product (Hacker's Delight, 5-1).
ValueId ones(Site& s, ValueId x) {
  const auto right = [&](ValueId v, int by) {
    return shift(s, OpKind::kShiftRightLogical, v, by, "right");
  };
  const ValueId pairs = s.b.sub(x, masked(s, right(x, 1), 0x55555555, "odd"), s.name("pairs"));
  const ValueId low = masked(s, pairs, 0x33333333, "low");
  const ValueId fours =
      s.b.add(low, masked(s, right(pairs, 2), 0x33333333, "high"), s.name("fours"));
  const ValueId eights =
      masked(s, s.b.add(fours, right(fours, 4), s.name("sums")), 0x0F0F0F0F, "eights");
  return right(s.b.mul(eights, s.scalar_like(x, 0x01010101, "all"), s.name("total")), 24);
}

ValueId count_bits(Site& s) {
  s.expect(1);
  const int bits = bits_of_integer(s.hlo_type(0));
  if (bits == 0 || bits > 32)
    s.refuse(
        fmt::format("{} of {}; allowed: integers of up to 32 bits", s.in.opcode, s.hlo_type(0)));
  ValueId x = s.x[0];
  if (bits < 32) x = masked(s, x, (1u << bits) - 1, "bits_of");
  if (s.in.opcode == "popcnt") return ones(s, x);
  for (int by = 1; by < 32; by *= 2)  // all bits below the highest one become ones
    x = s.b.binary(OpKind::kOr, x, shift(s, OpKind::kShiftRightLogical, x, by, "right"),
                   s.name("filled"));
  const ValueId filled = ones(s, x), size = s.scalar_like(filled, bits, "size");
  return s.b.sub(size, filled, s.name());
}

}  // namespace

ValueId lower_integer_divide(Site& s) { return divide(s); }

void add_integers(LoweringTable& table) {
  for (const char* opcode : {"and", "or", "xor", "not"}) table[opcode] = logic;
  for (const char* opcode : {"shift-left", "shift-right-logical", "shift-right-arithmetic"})
    table[opcode] = shifted;
  table["remainder"] = remainder;
  table["bitcast-convert"] = bitcast;
  table["popcnt"] = count_bits;
  table["count-leading-zeros"] = count_bits;
}

}  // namespace twinrun
