// Where a step stores its values: each value that is not needed after the step has a position in
// an arena, shared with values that are never needed at the same time. Between the fusion plan and
// the interpreter; it changes no value.
//
//   const FusionPlan fusion = plan_fusion(program, constant);
//   const MemoryPlan memory = plan_memory(program, fusion, constant);
//   value id lies at arena + memory.offset[id], if that is >= 0
//
// Many cores take turns: a block of them runs from one all-reduce to the next (a section), then the
// next block. A value that is read only in its own section lies in an arena that the blocks use one
// after the other. What a later section reads is carried there in an arena of each core.
#pragma once

#include <cstdint>
#include <vector>

#include "program/analysis/fusion.h"

namespace twinrun {

inline constexpr int64_t kLine = 64;  // bytes of a cache line, on which tensors begin and end

// Our engines compute at least so many cores side by side; programs with more run in blocks.
inline constexpr int kCoresTogether = 8;

struct MemoryPlan {
  // For each value: bytes from the start of its arena, a multiple of 64. -1: the value has memory of
  // its own (it outlives the step, is constant, or with more than kCoresTogether cores is the same
  // on all of them), shares that of its operand (a reshape), or is never stored.
  std::vector<int64_t> offset;
  std::vector<bool> carried;  // for each value: whether it lies in the arena that is carried on
  int64_t bytes = 0, carried_bytes = 0;  // of a core's two arenas
  // For each unit of the fusion plan: the number of its section. An all-reduce is one by itself.
  std::vector<int> section;
  // For each value that a group stores: the source whose memory it may overwrite, because the group
  // is the last reader of the source and reads its element i for element i of the result. kNoValue:
  // none. Where offset[id] >= 0, the two offsets are already the same. Otherwise id is the next
  // value of a state variable, and the executor must check that the variable's storage has no other
  // owner.
  std::vector<ValueId> takes;
};

// With several replicas only state variables are overwritten: replicas may share a value of the
// arena, and one of them would overwrite what others have yet to read.
MemoryPlan plan_memory(const Program& program, const FusionPlan& fusion,
                       const std::vector<bool>& constant);

}  // namespace twinrun
