// A second look at a result of half precision that is outside of its bound.
//
//   if (const auto digits = digits_with_narrow_sums(call, arithmetic, 0, actual)) ...  // a loss of precision
#pragma once

#include <optional>

#include "backends/aten/arithmetic.h"
#include "backends/aten/call.h"

namespace twinrun::aten {

// The decimal digits of result `which` of a call, `actual`, that are right, relative to the norm of the
// whole result, if a kernel that keeps its sums in the type of half precision of the call's tensors may
// give it (Arithmetic::narrow_sums) and at least one digit is right; nullopt otherwise. That bound is
// vacuous where terms cancel, and a result without a right digit is no loss of precision.
std::optional<double> digits_with_narrow_sums(const Call& call, const Arithmetic& arithmetic,
                                              size_t which, const TensorView& actual);

}  // namespace twinrun::aten
