// A user's own training step, from HLO or StableHLO text to a Program. docs/guides/import.md says
// what is accepted and what is lossy.
//
//   TWINRUN_ASSIGN(HloModule module, parse_hlo(text, "step.hlo"));
//   TWINRUN_ASSIGN(StepBinding binding, default_binding(module));
//   TWINRUN_ASSIGN(ImportedStep step, import_step(module, binding));
//   step.program.state;                                  // with the names of the binding
#pragma once

#include <map>
#include <string>
#include <vector>

#include "program/base/tensor.h"
#include "program/graph/program.h"
#include "program/import/hlo_module.h"

namespace twinrun {

// The meaning of each parameter of the entry computation, and where the next values of state come
// from. In the order of their numbers, the first parameters are the state, the others the inputs.
struct StepBinding {
  std::vector<std::string> state;
  std::vector<StateRole> roles;  // of each state variable
  std::vector<int64_t> results;  // which result is its next value; -1: it does not change
  std::vector<std::string> inputs;
  int64_t loss = 0;  // which result is the loss
};

// The binding of a step that comes without one. The leading results, as many as agree in shape, are
// the next values of the leading parameters, and the loss is the first float scalar after them; or
// the loss is the first result and the next values follow it. Names are those of the parameters.
Result<StepBinding> default_binding(const HloModule& module);

struct ImportedStep {
  Program program;
  // Literal arrays of the text. They are inputs of the program with these names and are fed at
  // every step.
  std::map<std::string, Tensor> literals;
  // What is computed in another way than the text says: docs/guides/import.md#lossy.
  std::vector<std::string> notes;
};

inline constexpr ValueId kMaxImportedOps = 200'000;

// An error lists everything that is not supported: file:line, what was found, what is allowed.
Result<ImportedStep> import_step(const HloModule& module, const StepBinding& binding);

// Any module, which need not be a training step: its parameters become the inputs "argument/0",
// "argument/1", ..., its results the outputs "result/0", "result/1", ... There is no state and no
// loss.
Result<ImportedStep> import_module(const HloModule& module);

}  // namespace twinrun
