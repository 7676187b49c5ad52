// Benchmarks against peers: paired samples of our code and of a peer's, taken by one process, and
// the table of the results. A machine's clock and its load by others change with time, so the
// result is the ratio of two neighbouring samples, never an absolute number.
//
//   if (suite.begin({.name = "dot f32 512x512x512", .threads = 2, .unit = "GFLOP/s",
//                    .ours_work = flop, .peer_work = flop, .target = 1.0})) {
//     suite.measure([&] { kernel.run(context); }, [&] { cblas_sgemm(...); });
//   }
//
// Google Benchmark's runner cannot alternate two functions, so only its DoNotOptimize is used.
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
  std::string name;  // --filter is matched against it
  int threads = 1;
  std::string unit;                     // "GFLOP/s", "GB/s", "step/s" (larger is better) or "ns"
  double ours_work = 1, peer_work = 1;  // flop, bytes or elements per call
  std::optional<double> target;         // least acceptable ratio
  double scale = 1e-9;                  // figure: work / s * scale; for "ns": s / work / scale
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

  // The thread counts to measure: 1 and 2, or only 1 on a machine with one core.
  std::vector<int> threads() const;
  // Sets the heading of the following rows, with the peer's name. Printed before the first of them.
  void section(std::string heading) { heading_ = std::move(heading); }
  // Starts a case. Returns false if --filter excludes it.
  bool begin(BenchCase what);
  // Times both functions and records the row. Each sample repeats the call until it is long enough;
  // samples of the two alternate.
  void measure(const std::function<void()>& ours, const std::function<void()>& peer);
  // Records a row of figures that the caller has measured.
  void record(double ours, double peer, double ratio);
  // Records a case that cannot be measured, and the reason.
  void skip(const std::string& name, const std::string& why);
  // Prints the machine and a summary; with --json the whole document.
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

// One op with random operands, run through run_kernel, the entry point of all kernels.
struct KernelCase {
  Graph graph;
  std::vector<Tensor> inputs;
  Tensor output;
  // `build` receives the ids of the parameters and returns the id of the op.
  KernelCase(const std::vector<Dims>& operands,
             const std::function<ValueId(GraphBuilder&, const std::vector<ValueId>&)>& build);
  void run(const KernelContext& context) { run_kernel(context, graph.op(op), inputs, output); }
  const float* input(size_t i) const { return inputs[i].as<float>().data(); }

 private:
  ValueId op = kNoValue;
};

// Exits with a message unless both computed the same: a relative Euclidean distance of at most
// `most` (callers pass 1e-2 for bf16).
void expect_close(const std::string& name, const float* ours, const float* peer, int64_t n,
                  double most = 1e-3);

bool machine_has_amx();

// OpenBLAS 0.3.21 treats a CPU newer than itself as one without AVX ("Prescott"), here and in
// PyTorch. If it does so on this machine, restarts this program with a fitting OPENBLAS_CORETYPE,
// unless that variable is set.
void openblas_for_this_machine(char** argv);
void bench_dot_f32(Suite& suite);
void bench_dot_bf16(Suite& suite);
void bench_instructions(Suite& suite);
void bench_convolution(Suite& suite);
void bench_ceilings(Suite& suite);
void bench_elementary(Suite& suite);
void bench_digest(Suite& suite);
void bench_diff(Suite& suite);
void bench_diagnose(Suite& suite);
void bench_field_proof(Suite& suite);
void bench_step(Suite& suite);
// The main function of a copy of this program whose memory is measured (--steps MODEL BATCH
// THREADS): runs a step of the engine cpu for every line of stdin. Returns the exit status.
int bench_steps_on_request(const std::string& model, int64_t batch, int threads);

}  // namespace twinrun
