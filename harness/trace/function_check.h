// Whether the backward pass of one Function of the script is the derivative of its own forward pass,
// on the operands that were recorded: nothing else of the step takes part, so each of several has an
// answer. docs/method/calls.md#the-gradient
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/host/progress.h"
#include "harness/trace/backward_graph.h"
#include "harness/trace/backward_passes.h"
#include "harness/trace/trace_file.h"
#include "program/base/thread_pool.h"

namespace twinrun {

// One use of a Function. Its backward pass may make no call: then it passes gradients on as they are.
struct FunctionUse {
  using Pair = std::pair<const aten::TensorView*, const aten::TensorView*>;
  const ScriptFunction* function = nullptr;
  int64_t first = 0, last = 0;  // the calls of its forward pass
  int64_t begin = 0, end = 0;   // of its backward pass: `end` is behind the last
  // What it reads, with the gradient that its backward pass gives for it; what it gives, with the
  // gradient of that which it is given. Without these gradients: the same for both.
  std::vector<Pair> inputs, outputs;
  bool is_certain = true;  // false: an input is taken to be one for its size, which accuses nobody
  bool is_found() const { return last > 0; }  // its forward pass is
  bool passes_gradients_on() const { return begin == end; }
};

// Those in a step, which begins with call `step`, before and in one of its backward passes. A use that
// is not understood has no inputs or outputs. The forward pass of a Function is told from that of
// another one that follows it by the lines that made its calls.
std::vector<FunctionUse> uses_of(const TraceFile& trace, int64_t step, const Pass& pass);

// The Function in whose forward pass a call is made, by its lines; nullptr: in none.
const ScriptFunction* function_around(const TraceFile& trace, int64_t call);

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

// Whether the user allows a Function by its name, "Swish" or "__main__.Swish", or a hook (name "") by
// that of its function in its place, to be no derivative.
bool is_allowed(const std::vector<std::string>& allowed, std::string_view name,
                std::string_view place);
// Names of TraceFile::allowed that no Function and no hook of the trace has.
std::vector<std::string> allowed_in_vain(const TraceFile& trace);

}  // namespace twinrun
