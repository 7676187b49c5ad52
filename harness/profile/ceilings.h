// Peak rates of this machine: fused multiply-adds in registers, and a triad over arrays larger than
// any cache. The peaks of measured profiles and of the benchmarks.
//   const Ceilings c = measure_ceilings(2);   // a tenth of a second
//   c.flops;  c.bandwidth;
#pragma once

#include <cstdint>
#include <string>

#include "backends/kernels/kernels.h"

namespace twinrun {

// Runs chains of fused multiply-adds in the registers of one thread, for some milliseconds, with
// AVX2, AVX-512 or VDPBF16PS, or on AArch64 with NEON (which the machine must have); fma_flop() is their number of operations.
void run_fma(Isa isa);
double fma_flop(Isa isa);

// c[i] = a[i] + 3 b[i] for i in [begin, end): 12 bytes per element (STREAM's count).
void run_triad(const float* a, const float* b, float* c, int64_t begin, int64_t end);

struct Ceilings {
  std::string isa;
  double flops = 0;      // binary32, per second, all threads together
  double bandwidth = 0;  // bytes per second, all threads together
};
// The best of several runs on that many threads.
Ceilings measure_ceilings(int threads);

}  // namespace twinrun
