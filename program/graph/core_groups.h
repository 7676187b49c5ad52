// Reductions within groups of cores, made of all-reduces: a group's sum stands in the group's row, among zeros.
//
//   ValueId sum = sum_over_group(b, gradient, replica_id_of(program), 8, {.size = 2});
#pragma once

#include "program/graph/program.h"

namespace twinrun {

// The sum of `x` over the cores of the own group. Throws GraphError where the cores do not make such groups.
ValueId sum_over_group(GraphBuilder b, ValueId x, ValueId replica_id, int cores, CoreGroups groups);

// The input that numbers the replicas, added to the program where it has none.
ValueId replica_id_of(Program& program);

// What a mean over the cores divides by.
int scaled_by(const Sharding& sharding);

}  // namespace twinrun
