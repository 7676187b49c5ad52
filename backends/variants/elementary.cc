// exp, log, tanh, erf, log1p within the declared ulps: the unrounded value, moved by an error that is a function of the
// argument and the seed, and rounded.
#include "backends/kernels/elementary.h"

#include <cmath>

#include "backends/kernels/kernels.h"
#include "backends/variants/internal.h"
#include "program/base/philox.h"

namespace twinrun::variants {
namespace {

// Of binary32 in the binade of x; a hair below a power of two counts as below it.
double ulp(double x) {
  int exponent;
  std::frexp(x * (1 - 0x1p-45), &exponent);
  return std::ldexp(1.0, std::max(exponent - 24, -149));
}

// In [-1, 1), or on one side of 0.
double error_at(const Variant& v, OpKind kind, float x) {
  const RandomKey key{v.seed, kStreamVariant};
  const double u = uniform(draw(key, 1, static_cast<uint32_t>(kind), to_bits(x) >> v.coarse));
  return v.side == 0 ? 2 * u - 1 : v.side * u;
}

// `rounded` is the correct result, `value` the unrounded one.
float moved(const Variant& v, OpKind kind, float x, float rounded, double value) {
  const double spacing = ulp(value);
  const auto result = static_cast<float>(value + v.off_by * error_at(v, kind, x) * spacing);
  // Across a power of two the last rounding is twice as coarse. No engine leaves the function's range.
  const double most = v.declared.elementary_ulps * spacing - std::fabs(value) * 0x1p-46;
  const bool outside = (kind == OpKind::kTanh || kind == OpKind::kErf) && std::fabs(result) > 1;
  const bool other_sign = std::signbit(result) != std::signbit(rounded);
  if (outside || other_sign || !(std::fabs(static_cast<double>(result) - value) <= most))
    return rounded;
  return result;
}

float of_kind(const Variant& v, OpKind kind, float x) {
  float y;
  double (*unrounded)(float);
  bool saturates = false;
  switch (kind) {
    case OpKind::kExponential:
      y = exp_f32(x), unrounded = exp_unrounded;
      break;
    case OpKind::kLog:
      y = log_f32(x), unrounded = log_unrounded;
      break;
    case OpKind::kTanh:
      y = tanh_f32(x), unrounded = tanh_unrounded, saturates = !(std::fabs(x) <= 10);
      break;
    case OpKind::kErf:
      y = erf_f32(x), unrounded = erf_unrounded, saturates = !(std::fabs(x) <= 4);
      break;
    default:
      y = log1p_f32(x), unrounded = log1p_unrounded;
  }
  if (y != y || y == 0 || std::isinf(y) || saturates) return y;
  return moved(v, kind, x, y, unrounded(x));
}

}  // namespace

float elementary(const Variant& variant, OpKind kind, float x) {
  if (variant.declared.flush) x = flush(x);
  if (kind == OpKind::kLogistic) {
    const float e = of_kind(variant, OpKind::kExponential, -x);
    return 1.0f / (1.0f + e);
  }
  if (kind == OpKind::kRsqrt) return static_cast<float>(1 / std::sqrt(static_cast<double>(x)));
  return of_kind(variant, kind, x);
}

}  // namespace twinrun::variants
