// What some ops are defined to give for single numbers: whole numbers, comparisons and maxima,
// which no engine may round otherwise. Constants of imported steps and the oracle use them.
//
//   whole_number(OpKind::kShiftLeft, 3, 30)        // -1073741824
//   holds(CompareKind::kLt, 1, 2)                  // true
#pragma once

#include <cstdint>

#include "program/ops/op.h"

namespace twinrun {

int32_t as_i32(int64_t x);  // modulo 2^32

// An op of i32 operands modulo 2^32; unary ops ignore b. NaN for ops that are none of integers.
double whole_number(OpKind kind, int64_t a, int64_t b);

bool holds(CompareKind kind, double a, double b);

// IEEE 754-2019 maximum: NaN propagates, +0 > -0.
double larger(double a, double b);

}  // namespace twinrun
