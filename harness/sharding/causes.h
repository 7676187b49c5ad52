// The catalogue of sharding causes: ways in which a sharded program means something else than the
// whole batch does, although every engine that runs it is correct. Each cause is a setting of the
// program (Sharding) that can be undone or introduced; ablation.h and harness/identify run the
// program with each of them changed.
//
//   for (const std::string& cause : possible_causes(experiment)) {
//     Sharding s = introduce(experiment, experiment.sharding, cause);   // this cause alone, on top
//     Program p = experiment.sharded(s);
//   }
//   for (const ShardingCause& c : sharding_causes(experiment)) c.meaning, c.cure;
#pragma once

#include <string>
#include <vector>

#include "harness/experiment/experiment.h"

namespace twinrun {

struct ShardingCause {
  std::string name;     // "reduction", "batch_norm", "no_all_reduce"
  std::string meaning;  // "each replica's loss is summed but scaled by 1/8 as if it were a mean"
  std::string cure;     // "set tpu.reduction = \"sum\""
  // What must be examined for the cause to show: "a step whose cores hold unequal numbers of
  // tokens".
  std::string divergence;
  // An engine fault that predicts the same tensors; "" if there is none.
  std::string twin;
};

// The names of all causes, in a fixed order.
std::vector<std::string> cause_names();
// The causes that can matter to this experiment: its program has the layers, optimizer or random
// ops that they act on.
std::vector<std::string> possible_causes(const Experiment& experiment);
// The causes that `sharding` has.
std::vector<std::string> present_causes(const Experiment& experiment, const Sharding& sharding);

// What a cause means in this experiment, and how to cure it.
ShardingCause describe(const Experiment& experiment, const std::string& cause);
// The causes that the scenario's own sharding has.
std::vector<ShardingCause> sharding_causes(const Experiment& experiment);

// The keys of the scenario that undo a cause of its own sharding; empty where no key does.
Overrides cure_settings(const Experiment& experiment, const std::string& cause);

// `sharding` with the named cause undone, or introduced. Causes that set the same thing (see
// exclusive) overwrite each other.
Sharding restore(const Experiment& experiment, Sharding sharding, const std::string& cause);
Sharding introduce(const Experiment& experiment, Sharding sharding, const std::string& cause);
bool exclusive(const std::string& a, const std::string& b);
// The scenario's own sharding, with the running statistics that per-core layers imply set
// explicitly, so that syncing the layers does not undo the cause "statistics" as well.
Sharding with_own_statistics(const Experiment& experiment);
// The sharding with every cause undone: what the whole batch means.
Sharding faithful(const Experiment& experiment);

}  // namespace twinrun
