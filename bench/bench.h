// Benchmarks against peers: samples of our code and of every peer's, taken in turns by one process.
// A machine's clock and its load by others change with time, so what counts is the ratio of two
// neighbouring samples, never an absolute number. Each row goes to stdout as a line of JSON with
// all of its samples; bench/run.py computes medians, ratios and the table from them.
//
//   if (suite.begin({.name = "dot f32 512x512x512", .threads = 2, .work = flop, .target = 1.0})) {
//     suite.measure([&] { kernel.run(context); },
//                   {timed("OpenBLAS", [&] { cblas_sgemm(...); })});
//   }
//
// Google Benchmark's runner cannot alternate functions, so only its DoNotOptimize is used.
#pragma once

#include <functional>
#include <map>
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
  // "GFLOP/s", "GB/s", "step/s", "1/s": larger is better; "ns", "MiB", "MB": smaller is.
  std::string unit = "GFLOP/s";
  double work = 1;               // flop, bytes or elements per call
  std::optional<double> target;  // least acceptable ratio to the best peer
  double scale = 1e-9;           // figure: work / s * scale; for "ns": s / work / scale
};

// A peer: makes that many calls and returns their seconds, or nothing if it has failed.
struct Side {
  std::string name;
  std::function<std::optional<double>(int)> seconds;
  double work = 0;  // per call; 0: as ours
};
Side timed(std::string name, std::function<void()> call, double work = 0);

// A peer of bench/run.py's list: a library with sgemm, or a command that answers lines (child.h).
struct PeerEntry {
  std::string name;
  std::vector<std::string> topics;  // "dot f32", "dot bf16", "conv", "step f32", "step bf16", ...
  std::string file,
      symbols;        // of the library; "scipy_{}64_" where {} is the usual name of a function
  bool wide = false;  // its integers have 64 bits
  std::vector<std::string> command;  // "{threads}" stands for the number of threads, here and below
  std::map<std::string, std::string> environment;
};

class Suite {
 public:
  struct Options {
    int samples = 7;
    std::optional<std::regex> filter;
    std::vector<PeerEntry> peers;
    int threads = 0;      // only rows with so many; 0: all
    std::string profile;  // perf's fifo of control words: instead of rows, ours alone is run
  };
  explicit Suite(Options options);

  // The thread counts to measure: 1 and 2, or only 1 on a machine with one core.
  std::vector<int> threads() const;
  int samples() const { return options_.samples; }
  // Whether ours alone is run, for a profile.
  bool profiling() const { return !options_.profile.empty(); }
  // Peers that take part in a topic.
  std::vector<PeerEntry> peers_of(const std::string& topic) const;
  // Sets the heading of the following rows, printed before the first of them.
  void section(std::string heading) { heading_ = std::move(heading); }
  // Starts a case. Returns false if --filter excludes it.
  bool begin(BenchCase what);
  // Bytes that a call of ours reads and writes, counted: for the profile of the row.
  void counted_bytes(double bytes) { bytes_ = bytes; }
  // Times all sides and records the row. Each sample repeats the call until it is long enough;
  // samples of the sides alternate. A peer that fails is reported and left out. With
  // options.profile only ours is run, and perf records that and nothing else.
  void measure(const std::function<void()>& ours, const std::vector<Side>& peers);
  // Records a row of samples in its unit that the caller has measured.
  void record(const std::vector<double>& ours,
              const std::map<std::string, std::vector<double>>& peers);
  // Records seconds against the work that they were spent on, of which bench/run.py fits the slope.
  void record_growth(const std::vector<std::pair<double, double>>& points);
  // With profiling(), of a row of memory: what holds it at its peak, in MiB.
  void record_held(const std::map<std::string, double>& parts);
  // Records that a case, or one peer of a case, cannot be measured, and the reason.
  void skip(const std::string& name, const std::string& why, const std::string& peer = "");

 private:
  void print_heading();
  void profile(const std::function<void()>& ours);
  Options options_;
  BenchCase current_;
  double bytes_ = 0;
  std::string heading_;
};

// Median seconds of a call, after one that is not timed.
double median_seconds(const std::function<void()>& call, int samples);

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
  double bytes() const;  // of the operands and the result

 private:
  ValueId op = kNoValue;
};

// How far two results are apart, if that is more than a relative Euclidean distance of `most`
// (callers pass 1e-2 for bf16); empty if they are close.
std::string difference(const float* ours, const float* peer, int64_t n, double most = 1e-3);
// Exits with a message if they differ: for what is a part of this program.
void expect_close(const std::string& name, const float* ours, const float* peer, int64_t n,
                  double most = 1e-3);

// A folder that the destructor removes.
struct BenchFolder {
  std::string path;
  bool made;
  // In memory where /dev/shm has room; beside this program for files that a disk shall have.
  explicit BenchFolder(bool on_disk = false);
  BenchFolder(const BenchFolder&) = delete;
  BenchFolder& operator=(const BenchFolder&) = delete;
  ~BenchFolder();
};

bool machine_has_amx();

void bench_dot_f32(Suite& suite);
void bench_dot_bf16(Suite& suite);
void bench_instructions(Suite& suite);
void bench_convolution(Suite& suite);
void bench_ceilings(Suite& suite);
void bench_elementary(Suite& suite);
void bench_digest(Suite& suite);
void bench_diff(Suite& suite);
void bench_checkpoint(Suite& suite);
void bench_field_proof(Suite& suite);
void bench_step(Suite& suite);
void bench_traffic(Suite& suite);
void bench_growth(Suite& suite);
// The main function of a copy of this program whose memory is measured (--steps MODEL BATCH
// THREADS): runs a step of the engine cpu for every line of stdin. Returns the exit status.
int bench_steps_on_request(const std::string& model, int64_t batch, int threads);

}  // namespace twinrun
