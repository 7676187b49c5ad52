// The same bits by two instructions: bf16 products by VDPBF16PS against those by AVX-512's FMA, and
// how many multiply-adds this machine makes by either in registers.
//
//   twinrun_bench --filter 'bf16/fma'
#include <fmt/format.h>

#include "bench/bench.h"
#include "harness/profile/ceilings.h"

namespace twinrun {
namespace {

constexpr int64_t kShapes[][3] = {{512, 512, 512},  {1024, 1024, 1024}, {2048, 2048, 2048},
                                  {128, 1024, 784}, {1024, 256, 1152},  {3136, 1024, 128},
                                  {25088, 64, 800}, {2048, 512, 128},   {131072, 16, 144}};

// Runs f with an instruction set; false if this machine lacks it.
template <typename F>
bool with(Isa isa, F&& f) {
  const Isa before = active_isa();
  force_isa(isa);
  const bool there = active_isa() == isa;
  if (there) f();
  force_isa(before);
  return there;
}

void registers(Suite& suite, int threads) {
  const double flop = fma_flop(Isa::kAvx512Bf16) * threads;
  if (!suite.begin(
          {.name = "ceiling bf16/fma", .threads = threads, .unit = "GFLOP/s", .work = flop}))
    return;
  ThreadPool pool(threads);
  const auto run = [&](Isa isa) { pool.parallel_for(threads, [&](int64_t) { run_fma(isa); }); };
  suite.measure([&] { run(Isa::kAvx512Bf16); },
                {timed(
                    "FMA", [&] { run(Isa::kAvx512); }, fma_flop(Isa::kAvx512) * threads)});
}

void products(Suite& suite, int threads) {
  ThreadPool pool(threads);
  const KernelContext context{&pool, {.dot = DotArithmetic::kBf16, .flush = true}};
  for (const auto& [m, n, k] : kShapes) {
    const double flop = 2.0 * static_cast<double>(m * n * k);
    if (!suite.begin({.name = fmt::format("dot bf16/fma {}x{}x{}", m, n, k),
                      .threads = threads,
                      .unit = "GFLOP/s",
                      .work = flop}))
      continue;
    KernelCase product({{m, k}, {k, n}},
                       [](GraphBuilder& b, const auto& x) { return b.dot(x[0], x[1]); });
    suite.measure([&] { with(Isa::kAvx512Bf16, [&] { product.run(context); }); },
                  {timed("FMA", [&] { with(Isa::kAvx512, [&] { product.run(context); }); })});
  }
}

}  // namespace

void bench_instructions(Suite& suite) {
  suite.section("bf16/fma: bf16 by VDPBF16PS; peer: the same bits by AVX-512's FMA");
  if (!with(Isa::kAvx512Bf16, [] {})) {
    suite.skip("bf16/fma", std::string(avx512bf16_refusal()));
    return;
  }
  for (const int threads : suite.threads()) {
    registers(suite, threads);
    products(suite, threads);
  }
}

}  // namespace twinrun
