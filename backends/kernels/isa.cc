#include <atomic>
#include <cstdlib>
#include <string_view>

#include "backends/kernels/gemm.h"

namespace twinrun {
namespace {

Isa best_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512cd");
  return avx512 ? Isa::kAvx512 : Isa::kAvx2;
#else
  return Isa::kScalar;
#endif
}

Isa limited(Isa wanted) { return wanted < best_isa() ? wanted : best_isa(); }

Isa initial_isa() {
  const char* text = std::getenv("TWINRUN_ISA");
  if (text != nullptr) {
    for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
      if (to_string(isa) == text) return limited(isa);
    }
  }
  return best_isa();
}

std::atomic<Isa>& current() {
  static std::atomic<Isa> isa{initial_isa()};
  return isa;
}

}  // namespace

std::string_view to_string(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAmx:
      return "amx";
  }
  return "?";
}

Isa active_isa() { return current().load(std::memory_order_relaxed); }
void force_isa(Isa isa) { current().store(limited(isa), std::memory_order_relaxed); }

// A tile set for AMX takes the place of kGemmAvx512's bf16 member here.
const GemmKernels& gemm_kernels(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return kGemmScalar;
    case Isa::kAvx2:
      return kGemmAvx2;
    case Isa::kAvx512:
    case Isa::kAmx:
      return kGemmAvx512;
  }
  return kGemmScalar;
}

}  // namespace twinrun
