// exp, log, tanh, erf, log1p, sin and cos within the declared ulps: the unrounded value plus an error that is
// a function of the argument and the seed, then rounded.
#include "backends/kernels/elementary.h"

#include <cmath>

#include "backends/kernels/float_mode.h"
#include "backends/kernels/kernels.h"
#include "backends/variants/internal.h"
#include "program/base/philox.h"

namespace twinrun::variants {
namespace {

// The ulp of binary32 in the binade of x. The factor puts exact powers of two, and values just
// above, into the binade below, whose ulp is smaller.
double ulp(double x) {
  int exponent;
  std::frexp(x * (1 - 0x1p-45), &exponent);
  return std::ldexp(1.0, std::max(exponent - 24, -149));
}

// The error at x, in units of off_by: in [-1, 1), or on one side of 0 if `side` says so.
double error_at(const Variant& v, OpKind kind, float x) {
  const RandomKey key{v.seed, kStreamVariant};
  const double u = uniform(draw(key, 1, static_cast<uint32_t>(kind), to_bits(x) >> v.coarse));
  return v.side == 0 ? 2 * u - 1 : v.side * u;
}

// The result with its error added. `rounded` is the correctly rounded result, `value` the unrounded
// one. Returns `rounded` where the error would leave the declared bound.
float moved(const Variant& v, OpKind kind, float x, float rounded, double value) {
  const double spacing = ulp(value);
  const auto result = narrowed(value + v.off_by * error_at(v, kind, x) * spacing);
  // Above a power of two the final rounding is twice as coarse, so the bound is checked here. A
  // result must also stay in the range of the function.
  const double most = v.declared.elementary_ulps * spacing - std::fabs(value) * 0x1p-46;
  const bool limited = kind == OpKind::kTanh || kind == OpKind::kErf || kind == OpKind::kSine ||
                       kind == OpKind::kCosine;
  const bool outside = limited && std::fabs(result) > 1;
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
    case OpKind::kSine:
      y = sin_f32(x), unrounded = sin_unrounded;
      break;
    case OpKind::kCosine:
      y = cos_f32(x), unrounded = cos_unrounded;
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
