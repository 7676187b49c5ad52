// Where a step keeps what it stores: one place in one arena for every value that dies within the step, shared by values
// that are never needed at the same time. Between the fusion plan and the interpreter; it changes no value.
//
//   const FusionPlan fusion = plan_fusion(program, constant);
//   const MemoryPlan memory = plan_memory(program, fusion, constant);
//   value id lies at arena + memory.offset[id], if that is >= 0
#pragma once

#include <cstdint>
#include <vector>

#include "program/analysis/fusion.h"

namespace twinrun {

inline constexpr int64_t kLine = 64;  // tensors begin and end on cache lines

struct MemoryPlan {
  // Bytes from the start of a replica's arena; a multiple of 64. -1: it has memory of its own (it outlives the step or is
  // constant), shares that of its operand (a reshape), or is never stored.
  std::vector<int64_t> offset;
  int64_t bytes = 0;
  // Of a value that a group stores: the source whose memory it may take, since this group is its last reader and reads
  // element i of it for element i of the result. kNoValue: none. Where offset[id] >= 0 the places are the same already;
  // otherwise id is the next value of a state variable, and it is for the executor to see that nobody else holds that.
  std::vector<ValueId> takes;
};

// With several replicas only state variables are taken: a value of the arena may be shared by replicas of which one
// would overwrite what others have yet to read.
MemoryPlan plan_memory(const Program& program, const FusionPlan& fusion,
                       const std::vector<bool>& constant);

}  // namespace twinrun
