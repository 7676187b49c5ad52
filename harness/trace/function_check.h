// Whether the backward pass of one Function of the script is the derivative of its own forward pass,
// on the operands that were recorded: nothing else of the step takes part, so each of several has an
// answer. docs/method/calls.md#the-gradient
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "harness/host/progress.h"
#include "harness/trace/backward_graph.h"
#include "harness/trace/backward_passes.h"
#include "harness/trace/trace_file.h"
#include "program/base/thread_pool.h"

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

// What a Function gives in its forward pass, which may be made for another gradient than its own: it
// passes its input on, or has steps.
struct ForwardPass {
  bool passes_on = true, has_steps = false;
};
ForwardPass forward_pass(const TraceFile& trace, int64_t first, int64_t last);

// kMeant: it passes its input on, or has steps and no slope along an input that is given a gradient,
// as a straight-through estimator. kUnknown: it cannot be evaluated, or has kinks where it is.
enum class FunctionState : uint8_t { kUnknown, kRight, kMeant, kWrong };

// `least`: differences below this share of the gradient are not told (gradient.cc).
FunctionState examine(const TraceFile& trace, const FunctionUse& use, double least,
                      ThreadPool* pool, const StopFlag* stop);

// The first Function of the script that is wrong in the backward passes of a step, and that the user
// does not allow. nullptr: none is, as far as they can be examined.
const ScriptFunction* wrong_function(const TraceFile& trace, const Step& step, double least,
                                     ThreadPool* pool, const StopFlag* stop);

// Whether the user allows a Function by its name, "Swish" or "__main__.Swish", or a hook (name "") by
// that of its function in its place, to be no derivative.
bool is_allowed(const std::vector<std::string>& allowed, std::string_view name,
                std::string_view place);
// Names of TraceFile::allowed that no Function and no hook of the trace has.
std::vector<std::string> allowed_in_vain(const TraceFile& trace);

}  // namespace twinrun
