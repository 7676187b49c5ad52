// Tests whether the subject behaves like a conforming engine over its first steps. They are ranked
// among those of engines that conform within what the subject declares. Every run, the subject's
// included, starts from initial weights that are moved by up to one ulp, each run in its own way.
// No run serves as the centre: a conforming subject is as far from the others as any of them is
// (the runs are exchangeable), so its rank is uniform.
//
//   auto rows = compare_ensemble(experiment, program, *subject, {.members = 19, .steps = 20});
//   rows->front().p;          // share of all runs, the subject too, that are as far or farther
#pragma once

#include <optional>
#include <vector>

#include "harness/envelope/precision_class.h"
#include "harness/experiment/experiment.h"
#include "reports/report.h"

namespace twinrun {

struct EnsembleOptions {
  int members = 19;
  int64_t steps = 20;
  int threads = 1;
  uint64_t seed = 0;  // of the choice of members and of the moves by an ulp
  // Precision class of the members (harness/envelope/precision_class.h); nullopt: they are variants
  // within what the subject declares.
  std::optional<PrecisionClass> as;
};

// Returns two rows: "loss curve" and "weights".
Result<std::vector<EnsembleRow>> compare_ensemble(const Experiment& experiment,
                                                  const Program& program, Backend& subject,
                                                  const EnsembleOptions& options);

// Ranks the first curve among the others by distance: each curve's is the median of its root mean
// square distances from the rest. Needs at least three curves.
EnsembleRow rank_of_first(const std::vector<std::vector<double>>& curves);

}  // namespace twinrun
