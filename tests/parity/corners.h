// Our side of the parity suite: losses, gradients and weights of the reference for run R (whole
// batch) and run S (sharded), the same in binary64, and how far an ensemble of conforming f32
// implementations lies from that (rounding_noise.h).
//
//   Trace r = *trace(experiment, experiment.whole(), *cpu, {.steps = 20});
//   Trace truth = *trace(experiment, experiment.whole(), *cpu_f64, {.steps = 20});
//   Spread spread = *ensemble(experiment, /*sharded=*/false, truth, {.steps = 20}, /*members=*/16);
#pragma once

#include <map>
#include <string>
#include <vector>

#include "harness/experiment/experiment.h"

namespace twinrun::parity {

using Values =
    std::map<std::string, std::vector<double>>;  // of replica 0, by parameter or state name

struct Trace {
  std::vector<std::vector<double>> losses;  // [step][core]
  Values first, last;  // gradients after the all-reduce, at the first and the last step
  std::map<std::string, std::vector<double>> norms;  // 2-norms of the gradients, [step]
  Values state;                                      // after the last step
};

struct TraceOptions {
  int64_t steps = 20;
  OpHooks* hooks = nullptr;
  TraceSink* sink = nullptr;
};
// Trains from the seed and records. Replicas are never reset to replica 0
// (tpu.iterations_per_loop): every core keeps its own state to the end.
Result<Trace> trace(const Experiment& experiment, const Program& program, Backend& backend,
                    const TraceOptions& options);

// Distances from `truth`, one per member: absolute difference of each step's loss (mean over
// cores), and 2-norms of the differences of tensors.
struct Spread {
  std::vector<std::vector<double>> losses;  // [step][member]
  Values first, last, state;                // [member]
};
Result<Spread> ensemble(const Experiment& experiment, bool sharded, const Trace& truth,
                        int64_t steps, uint32_t members, int threads);

double mean(const std::vector<double>& values);
double distance(const std::vector<double>& a, const std::vector<double>& b);  // 2-norm of a - b
// The bound for the distance of two implementations, from the distances of the members: their root
// mean square, times the quantile of Student's t of two-sided level 1e-6 with as many degrees of
// freedom as members, times sqrt 2 because both implementations have noise.
double bound_of(const std::vector<double>& members);
inline constexpr double kFalseAlarm = 1e-6;

}  // namespace twinrun::parity
