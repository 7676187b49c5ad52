// Which sharding cause explains what the cores read as inputs. Inputs are compared bit by bit,
// without any arithmetic. On the data's path: violations of lockstep (kFeed) -> causes.
//
//   feeding_causes(experiment, program, violations);  // {"shard_twice"}; {} if no known cause fits
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/lockstep/violation.h"
#include "harness/sharding/assignment.h"

namespace twinrun {

// The causes that, introduced into `asked`, explain every input of the kFeed violations and change
// no other input at their steps. Errors: the data of a step cannot be read.
Result<std::vector<std::string>> feeding_causes(const Experiment& experiment, const Program& asked,
                                                const std::vector<Violation>& violations);

// Which rows of the batch the cores read in place of their own; nullopt where something that was
// read is not a row of the batch.
Result<std::optional<ShardingChange>> deal_that_was_read(const Experiment& experiment,
                                                         const Program& asked,
                                                         const std::vector<Violation>& violations);

}  // namespace twinrun
