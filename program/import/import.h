// A user's own training step, from HLO text to a Program. docs/import.md says what is taken and what is lossy.
//
//   TWINRUN_ASSIGN(HloModule module, parse_hlo(text, "step.hlo"));
//   TWINRUN_ASSIGN(StepBinding binding, default_binding(module));
//   TWINRUN_ASSIGN(ImportedStep step, import_step(module, binding));
//   step.program.state;                                  // named as the binding says
#pragma once

#include <map>
#include <string>
#include <vector>

#include "program/base/tensor.h"
#include "program/graph/program.h"
#include "program/import/hlo_module.h"

namespace twinrun {

// Which parameter of the entry computation is what, and where its next value comes from. The first parameters are the state, the
// rest the inputs, in the order of their numbers.
struct StepBinding {
  std::vector<std::string> state;
  std::vector<StateRole> roles;  // of each state variable
  std::vector<int64_t> results;  // which result is its next value; -1: it does not change
  std::vector<std::string> inputs;
  int64_t loss = 0;  // which result is the loss
};

// Where nothing is said: the leading results are the next values of the leading parameters, as many as agree in shape; the loss is
// the first result after them, a float scalar. Names are the parameters' own.
Result<StepBinding> default_binding(const HloModule& module);

struct ImportedStep {
  Program program;
  // What literal arrays of the text hold: fed at every step, under the names of inputs of the program.
  std::map<std::string, Tensor> literals;
  std::vector<std::string>
      notes;  // what is computed in another way than the text says: docs/import.md#lossy
};

inline constexpr ValueId kMostImportedOps = 200'000;

// Errors list all that is not supported at once: file:line, what was found, what is allowed.
Result<ImportedStep> import_step(const HloModule& module, const StepBinding& binding);

}  // namespace twinrun
