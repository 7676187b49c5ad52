// exp, log, tanh, erf, log1p, sin and cos over arrays, correctly rounded. blocks.cc calls them chunk by
// chunk; kernels.h has the scalar forms.
//
//   exp_array(x, y, 256);       // y may be x; n is at most kElementaryChunk
//
// Method: binary64 arithmetic with a bound on its error, then Ziv's test: where value and bound do
// not decide the rounding, the quotient or series is evaluated again in binary128. Under FTZ/DAZ
// the last conversion flushes, as the contract says. The vector code is AVX2 or AVX-512, with the
// same bits.
#pragma once

#include <cstdint>

#include "backends/kernels/elementary_kernels.h"
#include "backends/kernels/kernels.h"

namespace twinrun {

// The functions compiled for AVX-512 if `isa` is kAvx512, which the machine must have; else those
// compiled for AVX2 (also for kScalar). The bits are the same.
const ElementaryKernels& elementary_kernels(Isa isa);

// The functions for the instruction set that is active on this machine.
void exp_array(const float* x, float* y, int64_t n);
void log_array(const float* x, float* y, int64_t n);
void tanh_array(const float* x, float* y, int64_t n);
void erf_array(const float* x, float* y, int64_t n);
void log1p_array(const float* x, float* y, int64_t n);

// The same functions before rounding: relative error at most 2^-48. For arguments whose binary32
// result is neither 0 nor infinite nor NaN; tanh up to |x| = 20, erf up to 4.
double exp_unrounded(float x);
double log_unrounded(float x);
double tanh_unrounded(float x);
double erf_unrounded(float x);
double log1p_unrounded(float x);
double sin_unrounded(float x);
double cos_unrounded(float x);

}  // namespace twinrun
