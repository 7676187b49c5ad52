// Other ways in which the collectives of a sharded step could have been written: an exchange in the
// other direction or over other dimensions, a sum over other axes of the mesh. Used by repair.cc.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "harness/sharding/repair_flow.h"
#include "program/import/exchange.h"

namespace twinrun {

struct OtherCollective {
  std::string cause;
  std::map<std::string, std::string> facts;
  ValueId first = kNoValue;  // of the all-reduces that are written otherwise
  // What each core has after an all-reduce, from what all cores give to it.
  using Call = std::function<std::vector<Tensor>(const ReplicaWalk::Values& operands)>;
  std::map<ValueId, Call> instead;
};

// Those of each line with a collective, and of all lines that exchange alike.
std::vector<OtherCollective> other_collectives(const Program& program, const RepairFlow& flow,
                                               std::span<const MeshAxis> axes,
                                               std::span<const Exchange> exchanges);

// "data, model": the axes along which the cores of a group lie; "all cores" or "groups of 2 cores"
// where no axes are known that do.
std::string axes_of(const JoinedCores& groups, std::span<const MeshAxis> axes);
// The cores that lie along these axes, of the mesh of all cores.
JoinedCores groups_along(std::span<const MeshAxis> axes, const std::vector<std::string>& names);
// Each non-empty set of the axes that divide the cores; none without a mesh of all cores.
std::vector<std::vector<std::string>> sets_of_axes(std::span<const MeshAxis> axes);

}  // namespace twinrun
