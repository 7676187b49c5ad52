// Measures the peak rates of this machine with multiply-adds in registers and a triad.
#include "harness/profile/ceilings.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "program/base/thread_pool.h"

namespace twinrun {
namespace {

constexpr int64_t kLoops = 1'000'000;
constexpr int kChains = 12;                 // more than latency times throughput on any x86-64
constexpr int64_t kTriadFloats = 16 << 20;  // 3 arrays of 64 MiB
constexpr int kTimes = 5;

// The values stay near 1; the empty asm makes the compiler keep them.
#if defined(__x86_64__)
void fma_avx2() {
  __m256 sum[kChains];
  for (auto& s : sum) s = _mm256_set1_ps(1.0f);
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
  for (int64_t i = 0; i < kLoops; ++i) {
#pragma GCC unroll 12
    for (auto& s : sum) s = _mm256_fmadd_ps(s, a, b);
  }
  for (auto& s : sum) asm volatile("" : : "x"(s));
}

__attribute__((target("avx512f"))) void fma_avx512() {
  __m512 sum[kChains];
  for (auto& s : sum) s = _mm512_set1_ps(1.0f);
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
  for (int64_t i = 0; i < kLoops; ++i) {
#pragma GCC unroll 12
    for (auto& s : sum) s = _mm512_fmadd_ps(s, a, b);
  }
  for (auto& s : sum) asm volatile("" : : "v"(s));
}

// The same by VDPBF16PS: two multiply-adds a lane.
__attribute__((target("avx512f,avx512bf16"))) void dot_avx512bf16() {
  __m512 sum[kChains];
  for (auto& s : sum) s = _mm512_set1_ps(1.0f);
  const __m512i one_and_tiny = _mm512_set1_epi32(0x3F800080);
  const auto a = __builtin_bit_cast(__m512bh, one_and_tiny);
  for (int64_t i = 0; i < kLoops; ++i) {
#pragma GCC unroll 12
    for (auto& s : sum) s = _mm512_dpbf16_ps(s, a, a);
  }
  for (auto& s : sum) asm volatile("" : : "v"(s));
}

void multiply_adds(Isa isa) {
  if (isa == Isa::kAvx512Bf16) return dot_avx512bf16();
  isa == Isa::kAvx2 ? fma_avx2() : fma_avx512();
}
int lanes_of(Isa isa) { return isa == Isa::kAvx2 ? 8 : isa == Isa::kAvx512 ? 16 : 32; }
Isa widest() { return __builtin_cpu_supports("avx512f") ? Isa::kAvx512 : Isa::kAvx2; }
#else
// 24 chains of NEON, whose 32 registers hold them: more than latency times throughput on any AArch64
// that does up to six multiply-adds in a cycle.
void multiply_adds(Isa) {
  float32x4_t sum[2 * kChains];
  for (auto& s : sum) s = vdupq_n_f32(1.0f);
  const float32x4_t a = vdupq_n_f32(0.999f), b = vdupq_n_f32(0.001f);
  for (int64_t i = 0; i < kLoops; ++i) {
#pragma GCC unroll 24
    for (auto& s : sum) s = vfmaq_f32(b, s, a);
  }
  for (auto& s : sum) asm volatile("" : : "w"(s));
}
int lanes_of(Isa) { return 8; }  // two registers a chain
Isa widest() { return Isa::kNeon; }
#endif

double best_seconds(const std::function<void()>& run) {
  double best = 0;
  for (int i = 0; i < kTimes; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (i == 0 || took.count() < best) best = took.count();
  }
  return best;
}

}  // namespace

void run_fma(Isa isa) { multiply_adds(isa); }

double fma_flop(Isa isa) { return 2.0 * static_cast<double>(kLoops) * kChains * lanes_of(isa); }

void run_triad(const float* a, const float* b, float* c, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) c[i] = a[i] + 3.0f * b[i];
  asm volatile("" : : : "memory");
}

Ceilings measure_ceilings(int threads) {
  ThreadPool pool(threads);
  const Isa isa = widest();
  Ceilings found;
  found.isa = std::string(to_string(isa));
  found.flops = threads * fma_flop(isa) /
                best_seconds([&] { pool.parallel_for(threads, [&](int64_t) { run_fma(isa); }); });
  std::vector<float> a(kTriadFloats, 1), b(kTriadFloats, 2), c(kTriadFloats, 0);
  found.bandwidth = 3.0 * kTriadFloats * sizeof(float) / best_seconds([&] {
                      pool.parallel_for(threads, [&](int64_t piece) {
                        run_triad(a.data(), b.data(), c.data(), kTriadFloats * piece / threads,
                                  kTriadFloats * (piece + 1) / threads);
                      });
                    });
  return found;
}

}  // namespace twinrun
