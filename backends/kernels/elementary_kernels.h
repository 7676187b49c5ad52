// The table of elementary functions that each instruction set provides. Private to elementary*.cc.
#pragma once

#include <stdint.h>

namespace twinrun {

constexpr int64_t kElementaryChunk = 256;

// IEEE binary128, which is __float128 on x86-64 and long double on AArch64.
#if defined(__x86_64__)
__extension__ typedef __float128 Quad;
#else
typedef long double Quad;
static_assert(__LDBL_MANT_DIG__ == 113);
#endif

// Correctly rounded; n is at most kElementaryChunk, y may be x.
struct ElementaryKernels {
  void (*exp)(const float* x, float* y, int64_t n);
  void (*log)(const float* x, float* y, int64_t n);
  void (*tanh)(const float* x, float* y, int64_t n);
  void (*erf)(const float* x, float* y, int64_t n);
  void (*log1p)(const float* x, float* y, int64_t n);
  void (*sin)(const float* x, float* y, int64_t n);
  void (*cos)(const float* x, float* y, int64_t n);
};
extern const ElementaryKernels kElementaryAvx512;

// Evaluation in binary128, for the few arguments whose rounding binary64 does not decide. The
// result is flushed if the thread's MXCSR flushes. tanh and erf: x >= 0.
float exp_slow(float x);
float log_slow(float x);
float tanh_slow(float x);
float erf_slow(float x);
float log1p_slow(float x);

// Compiled once, for all instruction sets (trigonometry.cc).
void sin_array(const float* x, float* y, int64_t n);
void cos_array(const float* x, float* y, int64_t n);

}  // namespace twinrun
