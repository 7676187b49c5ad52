// The uses of Functions of the script in a step, as they are recorded: what each was given and gave in
// its forward and in its backward pass.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "harness/trace/backward_graph.h"
#include "harness/trace/backward_passes.h"
#include "harness/trace/trace_file.h"

namespace twinrun {

// One use of a Function, as it is recorded.
struct FunctionUse {
  // An operand that has a gradient, with those that the backward pass gives for it; none: its
  // gradient is 0.
  struct Input {
    const aten::TensorView* view = nullptr;
    std::vector<const aten::TensorView*> gradients;
  };
  const ScriptFunction* function = nullptr;
  bool is_found = false;        // its forward pass and what it was given
  int64_t first = 0, last = 0;  // the calls of its forward pass; none if `last` is before `first`
  int64_t begin = 0, end = 0;   // of its backward pass: `end` is behind the last
  std::vector<Input> inputs;
  // What it gives, with the gradient of that which its backward pass is given.
  std::vector<std::pair<const aten::TensorView*, const aten::TensorView*>> outputs;
};

// Those in a backward pass of a step, which begins with call `step`. One that is not understood has no
// inputs or outputs.
std::vector<FunctionUse> uses_of(const TraceFile& trace, int64_t step, const Pass& pass);

// A forward pass of a Function that autograd follows, also of one of PyTorch's: its calls, the storages
// of the operands that have a gradient, and those of them in which one without a gradient lies, too.
struct ForwardUse {
  const std::string* name = nullptr;
  int64_t first = 0, end = 0;
  std::unordered_set<uint64_t> followed, stopped;
  bool is_opaque = false;  // no recorded call computes what it gives
  bool is_of_pytorch() const { return name->starts_with("torch."); }
};
// Those that lie in calls `begin` to `end`, or around them.
std::vector<ForwardUse> forward_uses(const TraceFile& trace, int64_t begin, int64_t end);

// A Function whose backward pass writes into the gradient that it is given, which autograd gives to
// another node as well, as it does with that of a sum. nullptr: none does.
const ScriptFunction* writer_of_given_gradient(const TraceFile& trace, int64_t step,
                                               const BackwardGraph& graph, const Pass& pass);

}  // namespace twinrun
