#include "backends/kernels/blocks_wide.h"

namespace twinrun {
namespace {

template <typename F>
inline void each(const float* a, const float* b, float* out, int64_t n, F of) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float x = of(a[i], b[i]);
    out[i] = x != x ? __builtin_bit_cast(float, 0x7FC00000u) : x;
  }
}

void add(const float* a, const float* b, float* out, int64_t n) {
  each(a, b, out, n, [](float x, float y) { return x + y; });
}
void subtract(const float* a, const float* b, float* out, int64_t n) {
  each(a, b, out, n, [](float x, float y) { return x - y; });
}
void multiply(const float* a, const float* b, float* out, int64_t n) {
  each(a, b, out, n, [](float x, float y) { return x * y; });
}
void divide(const float* a, const float* b, float* out, int64_t n) {
  each(a, b, out, n, [](float x, float y) { return x / y; });
}

}  // namespace

const WideArithmetic kWideArithmetic = {add, subtract, multiply, divide};

}  // namespace twinrun
