// The machine's own limits, and our share of them: fused multiply-adds in registers, and a triad
// over arrays that no cache holds.
//   `ours` is a 1024^3 f32 dot, or an elementwise add; `peer` is the ceiling.
//
//   twinrun_bench --filter '^ceiling'
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <immintrin.h>

#include "bench/bench.h"

namespace twinrun {
namespace {

constexpr int64_t kLoops = 1'000'000;
constexpr int kChains = 12;  // more than latency times throughput on any x86-64

// kChains independent chains; the values stay near 1.
void fma_avx2() {
  __m256 sum[kChains];
  for (auto& s : sum) s = _mm256_set1_ps(1.0f);
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
  for (int64_t i = 0; i < kLoops; ++i) {
#pragma GCC unroll 12
    for (auto& s : sum) s = _mm256_fmadd_ps(s, a, b);
  }
  for (auto& s : sum) benchmark::DoNotOptimize(_mm256_cvtss_f32(s));
}

__attribute__((target("avx512f"))) void fma_avx512() {
  __m512 sum[kChains];
  for (auto& s : sum) s = _mm512_set1_ps(1.0f);
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
  for (int64_t i = 0; i < kLoops; ++i) {
#pragma GCC unroll 12
    for (auto& s : sum) s = _mm512_fmadd_ps(s, a, b);
  }
  for (auto& s : sum) benchmark::DoNotOptimize(_mm512_cvtss_f32(s));
}

void share_of_fma(Suite& suite, Isa isa, int threads) {
  constexpr int64_t kSize = 1024;
  const int lanes = isa == Isa::kAvx2 ? 8 : 16;
  if (!suite.begin({.name = fmt::format("ceiling fma {}, dot f32 1024^3", to_string(isa)),
                    .threads = threads,
                    .unit = "GFLOP/s",
                    .ours_work = 2.0 * kSize * kSize * kSize,
                    .peer_work = 2.0 * kLoops * kChains * lanes * threads})) {
    return;
  }
  const Isa before = active_isa();
  force_isa(isa);
  ThreadPool pool(threads);
  KernelCase dot({{kSize, kSize}, {kSize, kSize}},
                 [](GraphBuilder& b, const auto& x) { return b.dot(x[0], x[1]); });
  suite.measure(
      [&] {
        dot.run({&pool, {}});
      },
      [&] {
        pool.parallel_for(threads, [&](int64_t) { isa == Isa::kAvx2 ? fma_avx2() : fma_avx512(); });
      });
  force_isa(before);
}

void share_of_triad(Suite& suite, int threads) {
  constexpr int64_t kFloats = 32 << 20;  // 3 arrays of 128 MiB
  constexpr double kBytes = 3.0 * kFloats * sizeof(float);
  if (!suite.begin({.name = "ceiling triad, add of 128 MiB",
                    .threads = threads,
                    .unit = "GB/s",
                    .ours_work = kBytes,
                    .peer_work = kBytes})) {
    return;
  }
  ThreadPool pool(threads);
  KernelCase add({{kFloats}, {kFloats}},
                 [](GraphBuilder& b, const auto& x) { return b.add(x[0], x[1]); });
  Tensor out = Tensor::zeros(add.output.type());
  suite.measure(
      [&] {
        add.run({&pool, {}});
      },
      [&] {
        pool.parallel_for(threads, [&](int64_t piece) {
          const float *a = add.input(0), *b = add.input(1);
          float* c = out.as<float>().data();
          const int64_t end = kFloats * (piece + 1) / threads;
          for (int64_t i = kFloats * piece / threads; i < end; ++i) {
            c[i] = a[i] + 3.0f * b[i];
          }
          benchmark::ClobberMemory();
        });
      });
}

}  // namespace

void bench_ceilings(Suite& suite) {
  suite.section("ceiling: our share of what the machine can do at all (peer: the machine)");
  for (const int threads : suite.threads()) {
    for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
      if (isa == Isa::kAvx512 && !__builtin_cpu_supports("avx512f")) {
        suite.skip("ceiling fma avx512", "this machine has no AVX-512");
      } else {
        share_of_fma(suite, isa, threads);
      }
    }
    share_of_triad(suite, threads);
  }
}

}  // namespace twinrun
