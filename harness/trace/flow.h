// What the new weights depend on: the calls of a trace from which the weights, the optimizer's state
// and the loss of its steps follow, found by the memory that calls read and write. Memory counts as
// a whole, so that a call may be on the path although it reads another part than was written.
//
//   const UpdatePath path = update_path(trace);
//   path.on[call.index];   // whether an update depends on it
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "harness/trace/trace_file.h"

namespace twinrun {

// Memory whose values no recorded call wrote, though they are no input of the step: a kernel that
// was launched past PyTorch's dispatcher did.
struct UnseenWrite {
  int64_t call = 0;    // the first that reads what was written
  int64_t before = 0;  // the last recorded call that knew the memory
  bool fresh = false;  // uninitialised memory was filled; else known values were changed
  std::string type;    // of the tensor that is read
};

// A step of which no update can be explained, because a part of it is not in the trace.
struct PartialStep {
  int32_t step = 0;
  bool forward = false, backward = false;  // what there is besides the update
};

struct UpdatePath {
  std::vector<bool> on;  // for each call
  // No update of a weight is in the trace; every call counts then.
  bool without_update = false;
  std::unordered_set<uint64_t> state;  // storages of weights and of the optimizer
  std::vector<UnseenWrite> unseen;     // that the path reads
  std::vector<PartialStep> partial;
};
UpdatePath update_path(const TraceFile& trace);

// Whether a function that is composed of others was recorded with the calls that it is made of: what
// it returned was computed by one of them.
bool has_recorded_parts(const TraceFile& trace, const aten::Call& call);

}  // namespace twinrun
