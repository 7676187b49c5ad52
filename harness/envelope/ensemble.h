// Is the subject one of the honest? Its first steps among those of engines that are honest within what it declares, all from
// initial weights moved by one ulp, each its own way: nobody is the centre, so an honest subject is as far from the others as any
// of them (exchangeable), and its rank is uniform.
//
//   auto rows = compare_ensemble(experiment, program, *subject, {.members = 19, .steps = 20, .threads = 2});
//   rows->front().p;          // share of all, the subject too, that are as far away or farther
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
  uint64_t seed = 0;  // of the members and of the ulps
  // Of which precision the members are (harness/envelope/precision_class.h); without: of the declared one.
  std::optional<PrecisionClass> as;
};

// Two rows: "loss curve" and "weights".
Result<std::vector<EnsembleRow>> compare_ensemble(const Experiment& experiment,
                                                  const Program& program, Backend& subject,
                                                  const EnsembleOptions& options);

// The first curve among the others: each one's median (root mean square) distance from the rest, ranked. Three or more.
EnsembleRow rank_of_first(const std::vector<std::vector<double>>& curves);

}  // namespace twinrun
