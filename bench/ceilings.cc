// The machine's limits and the fraction of them that we reach: fused multiply-adds in registers,
// and a triad over arrays that exceed all caches. `ours` is a 1024^3 f32 dot or an elementwise add;
// `peer` is the limit.
//
//   twinrun_bench --filter '^ceiling'
#include "harness/profile/ceilings.h"

#include <fmt/format.h>

#include "bench/bench.h"

namespace twinrun {
namespace {

void share_of_fma(Suite& suite, Isa isa, int threads) {
  constexpr int64_t kSize = 1024;
  if (!suite.begin({.name = fmt::format("ceiling fma {}, dot f32 1024^3", to_string(isa)),
                    .threads = threads,
                    .unit = "GFLOP/s",
                    .ours_work = 2.0 * kSize * kSize * kSize,
                    .peer_work = fma_flop(isa) * threads})) {
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
      [&] { pool.parallel_for(threads, [&](int64_t) { run_fma(isa); }); });
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
          run_triad(add.input(0), add.input(1), out.as<float>().data(), kFloats * piece / threads,
                    kFloats * (piece + 1) / threads);
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
