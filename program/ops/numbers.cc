// Single numbers: integers modulo 2^32, comparisons, the larger of two.
#include "program/ops/numbers.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace twinrun {

int32_t as_i32(int64_t x) { return static_cast<int32_t>(static_cast<uint32_t>(x)); }

double whole_number(OpKind kind, int64_t a, int64_t b) {
  const bool out_of_range = b < 0 || b > 31;
  switch (kind) {
    case OpKind::kAdd:
      return as_i32(a + b);
    case OpKind::kSubtract:
      return as_i32(a - b);
    case OpKind::kMultiply:
      return as_i32(a * b);
    case OpKind::kDivide:
      return b == 0 ? -1 : as_i32(a / b);
    case OpKind::kRemainder:
      return static_cast<double>(b == 0 ? a : a % b);
    case OpKind::kMaximum:
      return static_cast<double>(std::max(a, b));
    case OpKind::kMinimum:
      return static_cast<double>(std::min(a, b));
    case OpKind::kAnd:
      return static_cast<double>(a & b);
    case OpKind::kOr:
      return static_cast<double>(a | b);
    case OpKind::kXor:
      return static_cast<double>(a ^ b);
    case OpKind::kShiftLeft:
      return out_of_range ? 0 : as_i32(a * (int64_t{1} << b));
    case OpKind::kShiftRightLogical:
      return out_of_range ? 0 : as_i32((a & 0xFFFFFFFF) >> b);
    case OpKind::kShiftRightArithmetic:
      return static_cast<double>(a >> (out_of_range ? 31 : b));
    case OpKind::kNegate:
      return as_i32(-a);
    case OpKind::kAbs:
      return as_i32(a < 0 ? -a : a);
    default:
      return std::numeric_limits<double>::quiet_NaN();
  }
}

bool holds(CompareKind kind, double a, double b) {
  switch (kind) {
    case CompareKind::kEq:
      return a == b;
    case CompareKind::kNe:
      return a != b;
    case CompareKind::kLt:
      return a < b;
    case CompareKind::kLe:
      return a <= b;
    case CompareKind::kGt:
      return a > b;
    case CompareKind::kGe:
      return a >= b;
  }
  return false;
}

double larger(double a, double b) {
  if (a != a || b != b) return std::numeric_limits<double>::quiet_NaN();
  if (a == b) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}

}  // namespace twinrun
