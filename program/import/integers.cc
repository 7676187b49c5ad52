// Ranges of integers, and unsigned and narrow integers from operations on i32.
#include "program/import/integers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace twinrun {
namespace {

constexpr int64_t kTwo31 = int64_t{1} << 31, kTwo32 = int64_t{1} << 32;

bool fits(const Range& r) { return r.low >= -kTwo31 && r.high < kTwo31; }
Range or_any(const Range& r) { return fits(r) ? r : Range{}; }

std::optional<Range> of_known(Site& s, ValueId x) {
  const KnownValue* k = s.shared().constants.of(x);
  if (k == nullptr || k->numbers.empty()) return std::nullopt;
  const auto [low, high] = std::ranges::minmax(k->numbers);
  return Range{static_cast<int64_t>(low), static_cast<int64_t>(high)};
}

Range computed(Site& s, ValueId x, int& left) {
  const Op op = s.b.graph().op(x);
  if (op.type.dtype == DType::kPred) return {0, 1};
  if (op.type.dtype != DType::kI32 || --left < 0) return {};
  if (const auto known = of_known(s, x)) return *known;
  const auto of = [&](size_t i) { return computed(s, op.operands[i], left); };
  switch (op.kind) {
    case OpKind::kIota:
      return {0, op.type.dims[static_cast<size_t>(op.attrs.dims[0])] - 1};
    case OpKind::kBroadcastInDim:
    case OpKind::kReshape:
    case OpKind::kTranspose:
    case OpKind::kSlice:
    case OpKind::kGather:
      return of(0);
    case OpKind::kConvert:
      return s.b.type(op.operands[0]).dtype == DType::kPred ? Range{0, 1} : Range{};
    case OpKind::kConcatenate:
    case OpKind::kPad:
    case OpKind::kSelect: {
      const Range a = of(op.kind == OpKind::kSelect ? 1 : 0),
                  b = op.kind == OpKind::kPad ? Range{0, 0} : of(op.operands.size() - 1);
      return {std::min(a.low, b.low), std::max(a.high, b.high)};
    }
    case OpKind::kAdd:
    case OpKind::kSubtract:
    case OpKind::kMultiply: {
      const Range a = of(0), b = of(1);
      return or_any(op.kind == OpKind::kAdd        ? Range{a.low + b.low, a.high + b.high}
                    : op.kind == OpKind::kSubtract ? Range{a.low - b.high, a.high - b.low}
                                                   : product_of(a, b));
    }
    case OpKind::kMaximum:
    case OpKind::kMinimum: {
      const Range a = of(0), b = of(1);
      return op.kind == OpKind::kMaximum ? Range{std::max(a.low, b.low), std::max(a.high, b.high)}
                                         : Range{std::min(a.low, b.low), std::min(a.high, b.high)};
    }
    case OpKind::kAnd: {
      const Range a = of(0), b = of(1);
      if (a.low >= 0 && b.low >= 0) return {0, std::min(a.high, b.high)};
      return a.low >= 0 ? Range{0, a.high} : b.low >= 0 ? Range{0, b.high} : Range{};
    }
    case OpKind::kShiftRightLogical: {
      const auto by = of_known(s, op.operands[1]);
      if (!by || by->low != by->high || by->low < 1) return {};
      if (by->low > 31) return {0, 0};
      const Range a = of(0);
      return {0, (a.low >= 0 ? a.high : kTwo32 - 1) >> by->low};
    }
    case OpKind::kRemainder: {
      const Range a = of(0), b = of(1);
      if (b.low < 1) return {};
      const int64_t most = b.high - 1;
      return {a.low >= 0 ? 0 : std::max(a.low, -most), a.high < 0 ? 0 : std::min(a.high, most)};
    }
    default:
      return {};
  }
}

}  // namespace

bool is_integer(std::string_view hlo) { return bits_of_integer(hlo) != 0; }
bool is_unsigned(std::string_view hlo) { return hlo.starts_with('u'); }
int bits_of_integer(std::string_view hlo) {
  const std::string_view size = hlo.substr(std::min<size_t>(1, hlo.size()));
  if (!hlo.starts_with('s') && !hlo.starts_with('u')) return 0;
  return size == "8" ? 8 : size == "16" ? 16 : size == "32" ? 32 : size == "64" ? 64 : 0;
}

// Products of two u32 do not fit in 64 bits with a sign: what is beyond 2^62 is beyond 32 bits, too.
Range product_of(const Range& a, const Range& b) {
  constexpr int64_t kMost = int64_t{1} << 62;
  const auto product = [&](int64_t x, int64_t y) {
    int64_t out = 0;
    if (__builtin_mul_overflow(x, y, &out)) return (x < 0) != (y < 0) ? -kMost : kMost;
    return std::clamp(out, -kMost, kMost);
  };
  const auto [low, high] = std::minmax({product(a.low, b.low), product(a.low, b.high),
                                        product(a.high, b.low), product(a.high, b.high)});
  return {low, high};
}

Range range_of(Site& s, ValueId x) {
  int left = 64;  // ops that are looked at: enough for counters, and few for any text
  return computed(s, x, left);
}

Range range_of(Site& s, ValueId x, std::string_view hlo) {
  const Range r = range_of(s, x);
  if (!is_unsigned(hlo) || r.low >= 0) return r;
  if (r.high < 0) return {r.low + kTwo32, r.high + kTwo32};
  return {0, kTwo32 - 1};
}

bool has_top_bit(Site& s, size_t i) {
  return is_unsigned(s.hlo_type(i)) && bits_of_integer(s.hlo_type(i)) >= 32 &&
         range_of(s, s.x[i]).low < 0;
}

ValueId ordered(Site& s, size_t i) {
  if (!is_unsigned(s.hlo_type(i)) || bits_of_integer(s.hlo_type(i)) < 32) return s.x[i];
  const ValueId top = s.scalar_like(s.x[i], -static_cast<double>(kTwo31), "top_bit");
  return s.b.binary(OpKind::kXor, s.x[i], top, s.name("ordered"));
}

// The bits of numbers, and those of negative ones with all but the sign flipped.
ValueId in_total_order(Site& s, ValueId x) {
  x = s.convert(x, DType::kF32, "as_f32");
  const ValueId bits = s.b.bitcast(x, DType::kI32, s.name("bits"));
  const ValueId sign = shift(s, OpKind::kShiftRightArithmetic, bits, 31, "sign");
  const ValueId others = masked(s, sign, 0x7FFFFFFF, "others");
  return s.b.binary(OpKind::kXor, bits, others, s.name("ordered"));
}

ValueId shift(Site& s, OpKind kind, ValueId x, int bits, std::string_view local) {
  return s.b.binary(kind, x, s.scalar_like(x, bits, "bits"), s.name(local));
}

ValueId masked(Site& s, ValueId x, uint32_t mask, std::string_view local) {
  const ValueId bits = s.scalar_like(x, static_cast<int32_t>(mask), "mask");
  return s.b.binary(OpKind::kAnd, x, bits, s.name(local));
}

ValueId as_declared(Site& s, ValueId x, Range range) {
  const std::string& hlo = s.in.shape.dtype;
  const int bits = bits_of_integer(hlo);
  if (bits == 64) {
    const bool inside = is_unsigned(hlo) ? range.low >= 0 && range.high < kTwo32 : fits(range);
    if (!inside)
      s.refuse(
          fmt::format("{} of {}, whose numbers may not fit in 32 bits; allowed: counts and "
                      "indices that do; compute in 32 bits",
                      s.in.opcode, hlo));
  }
  if (bits >= 32 || bits == 0) return x;
  const int64_t size = int64_t{1} << bits;
  const bool inside = is_unsigned(hlo) ? range.low >= 0 && range.high < size
                                       : range.low >= -size / 2 && range.high < size / 2;
  if (inside) return x;
  if (is_unsigned(hlo)) return masked(s, x, static_cast<uint32_t>(size - 1), "wrapped");
  return shift(s, OpKind::kShiftRightArithmetic,
               shift(s, OpKind::kShiftLeft, x, 32 - bits, "to_top"), 32 - bits, "wrapped");
}

namespace {

// Rounds once: the bit that a shift by one loses is kept as the lowest one, which cannot be the
// last of the 24 bits that stay.
ValueId float_of_unsigned(Site& s, ValueId x, DType to) {
  const ValueId half = shift(s, OpKind::kShiftRightLogical, x, 1, "half"),
                lost = masked(s, x, 1, "lost");
  const ValueId sticky = s.b.binary(OpKind::kOr, half, lost, s.name("sticky"));
  const ValueId halves = s.b.convert(sticky, DType::kF32, s.name("halves"));
  const ValueId large = s.b.add(halves, halves, s.name("large"));
  const ValueId small = s.b.convert(x, DType::kF32, s.name("small"));
  const ValueId zero = s.scalar_like(x, 0, "zero");
  const ValueId top = s.b.compare(CompareKind::kLt, x, zero, s.name("has_top_bit"));
  return s.convert(s.b.select(top, large, small, s.name()), to, "rounded");
}

// Toward zero, saturating, NaN to 0, as the conversion to i32.
ValueId unsigned_of_float(Site& s, ValueId x) {
  const ValueId limit = s.scalar_like(x, static_cast<double>(kTwo31), "two_to_31"),
                zero = s.scalar_like(x, 0, "zero");
  const ValueId above = s.b.compare(CompareKind::kGe, x, limit, s.name("above"));
  const ValueId rest = s.b.sub(x, limit, s.name("rest"));
  const ValueId positive = s.b.binary(OpKind::kMaximum, x, zero, s.name("positive"));
  const ValueId number = s.b.convert(s.b.select(above, rest, positive, s.name("either")),
                                     DType::kI32, s.name("number"));
  const ValueId top = s.scalar_like(number, -static_cast<double>(kTwo31), "top_bit");
  return s.b.select(above, s.b.binary(OpKind::kXor, number, top, s.name("with_top")), number,
                    s.name());
}

ValueId integer_of_float(Site& s, ValueId x) {
  const std::string& hlo = s.in.shape.dtype;
  const int bits = bits_of_integer(hlo);
  x = s.convert(x, DType::kF32, "as_f32");
  if (bits == 64) s.refuse(fmt::format("convert of floats to {}; convert to 32 bits", hlo));
  if (hlo == "u32") return unsigned_of_float(s, x);
  if (bits == 32) return s.b.convert(x, DType::kI32, s.name());
  const double size = std::ldexp(1.0, bits), low = is_unsigned(hlo) ? 0 : -size / 2;
  const ValueId least = s.scalar_like(x, low, "least"),
                most = s.scalar_like(x, low + size - 1, "most");
  const ValueId above = s.b.binary(OpKind::kMaximum, x, least, s.name("from_least"));
  // A NaN passes both, and becomes 0.
  return s.b.convert(s.b.binary(OpKind::kMinimum, above, most, s.name("to_most")), DType::kI32,
                     s.name());
}

}  // namespace

ValueId convert_integer(Site& s, ValueId x, std::string_view from) {
  const std::string& hlo = s.in.shape.dtype;
  const DType to = s.result().dtype;
  if (!is_integer(hlo)) {
    if (is_floating(to) && is_unsigned(from) && bits_of_integer(from) >= 32 &&
        range_of(s, x).low < 0)
      return float_of_unsigned(s, x, to);
    return kNoValue;  // signed numbers, and unsigned ones below 2^31
  }
  if (is_floating(s.b.type(x).dtype)) return integer_of_float(s, x);
  if (!is_integer(from)) return kNoValue;
  // The lower 32 bits are those of the wider type.
  if (bits_of_integer(hlo) == 32) return x;
  return as_declared(s, x, range_of(s, x, from));
}

}  // namespace twinrun
