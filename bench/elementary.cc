// exp, log and tanh of arrays, correctly rounded, against a loop over glibc's expf, logf and tanhf,
// which are not correctly rounded, on the same number of threads; ns per element.
//
//   ./dev bench --filter '^elementary'
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cmath>

#include "bench/bench.h"

namespace twinrun {
namespace {

constexpr int64_t kElements = 1 << 20;

struct Function {
  const char* name;
  OpKind kind;
  float (*peer)(float);
  float scale, shift;  // the range of arguments: scale * [-1, 1) + shift
};

const Function kFunctions[] = {
    {"exp", OpKind::kExponential, expf, 20, 0},
    {"log", OpKind::kLog, logf, 50, 50.001f},
    {"tanh", OpKind::kTanh, tanhf, 5, 0},
};

void run_function(Suite& suite, const Function& f, int threads) {
  if (!suite.begin({.name = fmt::format("elementary {}", f.name),
                    .threads = threads,
                    .unit = "ns",
                    .work = kElements})) {
    return;
  }
  ThreadPool pool(threads);
  KernelCase ours({{kElements}},
                  [&](GraphBuilder& b, const auto& x) { return b.unary(f.kind, x[0]); });
  for (float& x : ours.inputs[0].as<float>()) x = x * f.scale + f.shift;
  Tensor out = Tensor::zeros(ours.output.type());
  suite.measure(
      [&] {
        ours.run({&pool, {}});
      },
      {timed("glibc", [&] {
        pool.parallel_for(threads, [&](int64_t piece) {
          const float* x = ours.input(0);
          float* y = out.as<float>().data();
          const int64_t end = kElements * (piece + 1) / threads;
          for (int64_t i = kElements * piece / threads; i < end; ++i) y[i] = f.peer(x[i]);
          benchmark::ClobberMemory();
        });
      })});
  expect_close(f.name, ours.output.as<float>().data(), out.as<float>().data(), kElements, 1e-6);
}

}  // namespace

void bench_elementary(Suite& suite) {
  suite.section("elementary: correctly rounded; peer: glibc's scalar functions in a loop");
  for (const int threads : suite.threads()) {
    for (const Function& f : kFunctions) run_function(suite, f, threads);
  }
}

}  // namespace twinrun
