// The catalogue of sharding causes: ways in which a sharded program means something else than the whole batch does, though every
// engine that runs it is right. Each is a switch on the program (Sharding), undone or introduced.
//
//   for (const std::string& cause : possible_causes(experiment)) {
//     Program p = experiment.sharded(introduce(experiment, experiment.sharding, cause));   // the cause alone, on top
//   }
//   for (const ShardingCause& c : sharding_causes(experiment)) c.meaning, c.cure;   // those that the scenario has
#pragma once

#include <string>
#include <vector>

#include "harness/experiment/experiment.h"

namespace twinrun {

struct ShardingCause {
  std::string name;     // "reduction", "batch_norm", "no_all_reduce"
  std::string meaning;  // "each replica's loss is summed but scaled by 1/8 as if it were a mean"
  std::string cure;     // "set tpu.reduction = \"sum\""
  std::string
      parting;  // what must be looked at for it to show: "a step whose cores hold unequal numbers of tokens"
  std::string twin;  // an engine fault that predicts the same tensors; "" if there is none
};

// Names of all, in a fixed order.
std::vector<std::string> cause_names();
// Those that could make a difference to this experiment's program: it has a layer, an optimizer, random ops that they act on.
std::vector<std::string> possible_causes(const Experiment& experiment);
// Those that `sharding` has.
std::vector<std::string> present_causes(const Experiment& experiment, const Sharding& sharding);

// What a cause means and what cures it, in this experiment.
ShardingCause describe(const Experiment& experiment, const std::string& cause);
// The causes that the scenario's own sharding has.
std::vector<ShardingCause> sharding_causes(const Experiment& experiment);

// Keys of the scenario that undo a cause of its own sharding; none where no key does.
Overrides cure_settings(const Experiment& experiment, const std::string& cause);

// `sharding` with the named cause undone, or done. Causes that set the same thing (exclusive) overwrite each other.
Sharding restore(const Experiment& experiment, Sharding sharding, const std::string& cause);
Sharding introduce(const Experiment& experiment, Sharding sharding, const std::string& cause);
bool exclusive(const std::string& a, const std::string& b);
// The scenario's own sharding, and said aloud what per-core layers imply, so that synced layers alone do not restore the statistics.
Sharding with_own_statistics(const Experiment& experiment);
// With every cause undone: what the whole batch means.
Sharding faithful(const Experiment& experiment);

}  // namespace twinrun
