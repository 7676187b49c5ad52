// How fast against whom: paired samples of our code and a peer's in one process, and their table.
// The clock of a machine drifts and its neighbours come and go, so what counts is the ratio of two
// neighbouring samples, never a number of its own.
//
//   if (suite.begin({.name = "dot f32 512x512x512", .threads = 2, .unit = "GFLOP/s",
//                    .ours_work = flop, .peer_work = flop, .target = 1.0})) {
//     suite.measure([&] { kernel.run(context); }, [&] { cblas_sgemm(...); });
//   }
//
// Google Benchmark's runner times one thing after the other; only its DoNotOptimize is used.
#pragma once

#include <functional>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "backends/kernels/kernels.h"
#include "program/ops/graph.h"

namespace twinrun {

struct BenchCase {
  std::string name;  // what --filter matches
  int threads = 1;
  std::string unit;                     // "GFLOP/s", "GB/s", "step/s" (larger is better) or "ns"
  double ours_work = 1, peer_work = 1;  // flop, bytes, elements per call
  std::optional<double> target;         // of the ratio
  double scale = 1e-9;                  // work per second -> unit; of "ns": seconds per work -> ns
};

struct BenchRow {
  BenchCase what;
  double ours = 0, peer = 0;  // medians, in the unit
  double ratio = 0;           // median over pairs; above 1: ours is faster
};

class Suite {
 public:
  struct Options {
    bool json = false;
    int samples = 7;
    std::optional<std::regex> filter;
  };
  explicit Suite(Options options);

  // The thread counts that every topic goes over: 1 and 2, or 1 on a machine with one core.
  std::vector<int> threads() const;
  // A heading: what follows, the peer's name. Printed before its first row.
  void section(std::string heading) { heading_ = std::move(heading); }
  // False if --filter leaves this case out.
  bool begin(BenchCase what);
  // Both are called until a sample takes long enough; samples alternate.
  void measure(const std::function<void()>& ours, const std::function<void()>& peer);
  // A row of figures that were not timed here.
  void record(double ours, double peer, double ratio);
  // A peer that is not there, with the word that says so.
  void skip(const std::string& name, const std::string& why);
  // The machine; with --json the whole document.
  void finish();

 private:
  void print_heading();
  Options options_;
  BenchCase current_;
  std::string heading_, load_;
  bool any_row_ = false;
  std::vector<BenchRow> rows_;
  std::vector<std::pair<std::string, std::string>> skipped_;
};

// Uniform in [-1, 1), the same on every run.
Tensor random_tensor(TensorType type, uint32_t seed);

// One op over random operands, run through the kernels' one entry point.
struct KernelCase {
  Graph graph;
  std::vector<Tensor> inputs;
  Tensor output;
  // `build` gets the parameters' ids and returns the op's.
  KernelCase(const std::vector<Dims>& operands,
             const std::function<ValueId(GraphBuilder&, const std::vector<ValueId>&)>& build);
  void run(const KernelContext& context) { run_kernel(context, graph.op(op), inputs, output); }
  const float* input(size_t i) const { return inputs[i].as<float>().data(); }

 private:
  ValueId op = kNoValue;
};

// The two computed the same thing: relative Euclidean distance below 1e-3 (1e-2 for bf16), or exit.
void expect_close(const std::string& name, const float* ours, const float* peer, int64_t n,
                  double most = 1e-3);

bool machine_has_amx();

// OpenBLAS 0.3.21 takes a CPU that came after it for one without AVX ("Prescott"), for us and for PyTorch: begins this program anew
// with a name that fits, unless OPENBLAS_CORETYPE says one.
void openblas_for_this_machine(char** argv);
void bench_dot_f32(Suite& suite);
void bench_dot_bf16(Suite& suite);
void bench_convolution(Suite& suite);
void bench_ceilings(Suite& suite);
void bench_elementary(Suite& suite);
void bench_digest(Suite& suite);
void bench_diff(Suite& suite);
void bench_diagnose(Suite& suite);
void bench_field_proof(Suite& suite);
void bench_step(Suite& suite);
// What a measured copy of this program does (--steps MODEL BATCH THREADS): a step of engine cpu for every line of stdin.
int bench_steps_on_request(const std::string& model, int64_t batch, int threads);

}  // namespace twinrun
