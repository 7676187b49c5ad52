// Sums within groups of cores, built from all-reduces: each core adds its value to its group's row
// of a table of zeros, the table is all-reduced, and each core reads its group's row. Batch norm
// and gradient reductions use them.
//
//   ValueId sum = sum_over_group(b, gradient, replica_id_of(program), 8, {.size = 2});
#pragma once

#include "program/graph/program.h"

namespace twinrun {

// The sum of `x` over the cores of this core's group. Throws GraphError if the cores do not divide
// into such groups.
ValueId sum_over_group(GraphBuilder b, ValueId x, ValueId replica_id, int cores, CoreGroups groups);

// The input replica_id, which numbers the replicas; added to the program if it has none.
ValueId replica_id_of(Program& program);

// The divisor of a mean over the cores: the number of cores, or under Scaling::kByGroup the size of
// a group.
int scaled_by(const Sharding& sharding);

}  // namespace twinrun
