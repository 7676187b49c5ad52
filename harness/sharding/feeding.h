// Which cause feeds the cores so? Told from what the ops read: bit by bit, without any arithmetic.
//
//   feeding_causes(experiment, program, violations);      // {"shard_twice"}; {} where no known cause reads so
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/lockstep/violation.h"
#include "harness/sharding/assignment.h"

namespace twinrun {

// Causes, introduced into `asked`, that explain every input of kFeed violations, and change no other input at their steps.
Result<std::vector<std::string>> feeding_causes(const Experiment& experiment, const Program& asked,
                                                const std::vector<Violation>& violations);

// Which rows of the batch the cores read in the place of their own, where they are rows of it at all.
Result<std::optional<ShardingChange>> deal_that_was_read(const Experiment& experiment,
                                                         const Program& asked,
                                                         const std::vector<Violation>& violations);

}  // namespace twinrun
