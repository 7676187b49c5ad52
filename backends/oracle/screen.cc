// Dispatches the screen by class of op, and compares numbers with tolerances.
#include "backends/oracle/screen.h"

#include "backends/oracle/screen_internal.h"

namespace twinrun {
namespace screen {

bool agrees(double x, double value, double radius) {
  if (x != x || value != value) return x != x && value != value;
  if (x == value) return true;
  if (!finite(x)) return std::fabs(value) >= 0x1.fep127 && (x > 0) == (value > 0);
  return std::fabs(x - value) <= radius;
}

bool within(const float* x, const double* value, const double* radius, int64_t n) {
  const int64_t whole = n / 4 * 4;
  auto of_four = [=](int64_t i, D4) { return i < whole ? D4::of(radius + i) : D4(radius[i]); };
  if (all_close(x, value, n, of_four)) return true;
  for (int64_t i = 0; i < n; ++i) {
    // The sum may have overflowed on the way.
    if (finite(value[i]) && !(radius[i] < kMayOverflow)) continue;
    // If a term is a NaN or infinity, the result must be non-finite; which one is not known.
    if (!finite(value[i]) ? std::isfinite(x[i]) : !agrees(x[i], value[i], radius[i])) return false;
  }
  return true;
}

}  // namespace screen

bool plausible(const Capabilities& declared, const Op& op, std::span<const Tensor> inputs,
               const Tensor& output, ThreadPool* pool, unsigned unrounded) {
  if (output.elements() == 0 || output.dtype() == DType::kF64) return true;
  for (const Tensor& t : inputs) {
    if (t.dtype() == DType::kF64) return true;
  }
  const screen::Call call{declared, op, inputs, output, pool, unrounded};
  switch (class_of(op.kind)) {
    case OpClass::kSource:
    case OpClass::kRandom:
      return screen::source(call);
    case OpClass::kMove:
      return screen::move(call);
    case OpClass::kElementwise:
      return screen::elementwise(call);
    case OpClass::kDot:
      return screen::worst_row(call) <= 1;
    case OpClass::kReduce:
      return op.kind == OpKind::kScatterAdd ? screen::scatter_add(call) : screen::reduce(call);
    case OpClass::kWindow:
      return screen::window(call);
    case OpClass::kCollective:
      return screen::all_reduce(call);
  }
  return true;
}

}  // namespace twinrun
