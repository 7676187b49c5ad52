// Whether the backward pass of one Function of the script is the derivative of its own forward pass,
// on the operands that were recorded: nothing else of the step takes part, so each of several has an
// answer. docs/method/calls.md#the-gradient
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "harness/host/progress.h"
#include "harness/trace/backward_passes.h"
#include "harness/trace/function_uses.h"
#include "harness/trace/trace_file.h"
#include "program/base/thread_pool.h"

namespace twinrun {

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
