// exp, log, tanh, erf and log1p over arrays, correctly rounded. elementwise.cc feeds them chunks; kernels.h has
// the scalar forms.
//
//   exp_array(x, y, 256);       // y may be x; n is at most kElementaryChunk
//
// Method: binary64 arithmetic with a bound on its error, then Ziv's test: where value and bound do
// not decide the rounding, the quotient or series is evaluated again in binary128. Under FTZ/DAZ
// the last conversion flushes, as the contract says. Vectors are AVX2's or AVX-512's, their bits the same.
#pragma once

#include <cstdint>

#include "backends/kernels/elementary_kernels.h"
#include "backends/kernels/kernels.h"

namespace twinrun {

// Of AVX2 (which scalar code has too), or of AVX-512, which the machine must have. The same bits.
const ElementaryKernels& elementary_kernels(Isa isa);

// Those that this machine runs.
void exp_array(const float* x, float* y, int64_t n);
void log_array(const float* x, float* y, int64_t n);
void tanh_array(const float* x, float* y, int64_t n);
void erf_array(const float* x, float* y, int64_t n);
void log1p_array(const float* x, float* y, int64_t n);

// The same functions before they are rounded: relative error at most 2^-48. For arguments whose binary32 result is
// neither 0 nor infinite nor NaN; tanh up to |x| = 20, erf up to 4.
double exp_unrounded(float x);
double log_unrounded(float x);
double tanh_unrounded(float x);
double erf_unrounded(float x);
double log1p_unrounded(float x);

}  // namespace twinrun
