// Instrument 2: every cause by which sharding can change a program's meaning is a switch on the reference. Meaning is compared in
// binary64, one step from the same state, where rounding is 2^-29 of f32's: what differs there is not rounding.
//
//   auto m = probe_meaning(experiment, {{0, w0}, {150, w1}}, threads);
//   m->drift;                 // |gradient of S - gradient of R| / |gradient of R|, over all parameters
//   m->rows;                  // per cause: restored in S, introduced alone; Shapley share of the squared drift
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "harness/experiment.h"
#include "reports/report.h"

namespace twinrun {

struct ShardingCause {
  std::string name;     // "reduction", "batch_norm", "clipping", "l2"
  std::string meaning;  // "each replica's loss is summed but scaled by 1/8 as if it were a mean"
  std::string cure;     // "set tpu.reduction = \"sum\""
};

// The causes that `sharding` has in this experiment's program.
std::vector<ShardingCause> sharding_causes(const Experiment& experiment);
// `sharding` with the named cause undone.
Sharding restore(const Experiment& experiment, Sharding sharding, const std::string& cause);

// No f32 engine could show a relative difference of the gradient below a quarter of binary32's unit roundoff.
inline constexpr double kMeaningThreshold = 0x1p-26;

struct MeaningResult {
  double drift = 0;             // root mean square over the probed states
  double residual = 0;          // with every cause restored
  std::vector<SwitchRow> rows;  // two per cause: restored, introduced alone
  std::vector<ShardingCause> causes;
  std::vector<int64_t> steps;  // where it was probed
  bool differs() const { return drift > kMeaningThreshold; }
};

// A state of the sharded or the whole program by tensor name, replica 0, and the step that it starts.
using ProbeState = std::pair<int64_t, Checkpoint>;

Result<MeaningResult> probe_meaning(const Experiment& experiment,
                                    const std::vector<ProbeState>& states, int threads);

}  // namespace twinrun
