// What this machine can do at all: fused multiply-adds in registers, and a triad over arrays that no cache holds. The measured profile's
// and the benchmarks' peaks.
//
//   const Ceilings c = measure_ceilings(2);   // a tenth of a second
//   c.flops;  c.bandwidth;
#pragma once

#include <cstdint>
#include <string>

#include "backends/kernels/kernels.h"

namespace twinrun {

// Chains of fused multiply-adds in the registers of one thread, some milliseconds long, of AVX2 or AVX-512 (which the machine must
// have); fma_flop() of them.
void run_fma(Isa isa);
double fma_flop(Isa isa);

// c[i] = a[i] + 3 b[i] for i in [begin, end): 12 bytes each (STREAM's count).
void run_triad(const float* a, const float* b, float* c, int64_t begin, int64_t end);

struct Ceilings {
  std::string isa;
  double flops = 0;      // binary32, a second, of all threads
  double bandwidth = 0;  // bytes a second, of all threads
};
// The best of several runs on so many threads.
Ceilings measure_ceilings(int threads);

}  // namespace twinrun
