// What the parity suite records of ours: losses, gradients and weights of the reference's two corners (R: whole batch, S:
// sharded), the same in binary64, and how far an ensemble of honest f32 implementations strays from that (rounding_noise.h).
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
    std::map<std::string, std::vector<double>>;  // by parameter or state name; replica 0's

struct Trace {
  std::vector<std::vector<double>> losses;  // [step][core]
  Values first, last;  // gradients after the all-reduce, of the first and the last step
  std::map<std::string, std::vector<double>> norms;  // of gradients, [step]
  Values state;                                      // after the last step
};

struct TraceOptions {
  int64_t steps = 20;
  OpHooks* hooks = nullptr;
  TraceSink* sink = nullptr;
};
// Replicas never restart from replica 0 (tpu.iterations_per_loop): every core goes its own way to the end.
Result<Trace> trace(const Experiment& experiment, const Program& program, Backend& backend,
                    const TraceOptions& options);

// Distances from `truth`, one per member: of each step's loss (mean over cores), and of tensors in the 2-norm.
struct Spread {
  std::vector<std::vector<double>> losses;  // [step][member]
  Values first, last, state;                // [member]
};
Result<Spread> ensemble(const Experiment& experiment, bool sharded, const Trace& truth,
                        int64_t steps, uint32_t members, int threads);

double mean(const std::vector<double>& values);
double distance(const std::vector<double>& a, const std::vector<double>& b);  // 2-norm of a - b
// Root mean square of a member's distances times Student's t quantile of two-sided level 1e-6, as many degrees of freedom as
// members, and sqrt 2 for the distance of two such implementations.
double bound_of(const std::vector<double>& members);
inline constexpr double kFalseAlarm = 1e-6;

}  // namespace twinrun::parity
