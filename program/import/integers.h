// Integers of HLO as the i32 of our graphs. u32 has the same bits; u8, s8, u16 and s16 have their
// values; s64 and u64 have their values where it can be shown that these fit in 32 bits, and are
// refused elsewhere. Building blocks of the rules that compute with integers.
//
//   s.b.compare(kind, ordered(s, 0), ordered(s, 1), s.name());      // also where they are unsigned
#pragma once

#include "program/import/site.h"

namespace twinrun {

bool is_integer(std::string_view hlo);      // "s8" .. "u64"
bool is_unsigned(std::string_view hlo);     // "u8" .. "u64"
int bits_of_integer(std::string_view hlo);  // 8, 16, 32, 64

// The numbers that a value may have: those of its i32, as signed numbers.
struct Range {
  int64_t low = INT32_MIN, high = INT32_MAX;
};
// From the ops that compute it: constants, iota, sums of those, masks, shifts.
Range range_of(Site& s, ValueId x);
// The same for a value of this HLO type: that of u32 and u64 is not negative.
Range range_of(Site& s, ValueId x, std::string_view hlo);

Range product_of(const Range& a, const Range& b);

// Operand i in an order that comparing i32 gives: the top bit of u32 is flipped, unless no number
// has it.
ValueId ordered(Site& s, size_t i);
bool has_top_bit(Site& s, size_t i);  // whether an operand of u32 or u64 may have it

// i32 that are ordered as the f32 x are in total order: -0 is before +0, and NaN is last.
ValueId in_total_order(Site& s, ValueId x);

// The result of + - * and the like, computed in i32, in the range of the instruction's type: small
// integers wrap to theirs. `range` has the exact results; throws Unsupported if the type has 64
// bits and they do not fit in 32.
ValueId as_declared(Site& s, ValueId x, Range range);

// The quotient of two integers.
ValueId lower_integer_divide(Site& s);
// x of HLO type `from` as the instruction's type.
ValueId convert_integer(Site& s, ValueId x, std::string_view from);

ValueId shift(Site& s, OpKind kind, ValueId x, int bits, std::string_view local);
// x without its fraction, for floats: -0.5 becomes 0.
ValueId truncated(Site& s, ValueId x, std::string_view local);
ValueId masked(Site& s, ValueId x, uint32_t mask, std::string_view local);

}  // namespace twinrun
