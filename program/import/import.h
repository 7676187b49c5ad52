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
#include "program/import/core_part.h"
#include "program/import/exchange.h"
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
  // A sharded text becomes a program of sharding.cores cores with an input replica_id.
  Program program;
  // Literal arrays of the text. They are inputs of the program with these names and are fed at
  // every step.
  std::map<std::string, Tensor> literals;
  // State variables and inputs of which each core has its own part, by name. Every core is given
  // all of any other.
  std::map<std::string, CorePart> parts;
  std::vector<MeshAxis> mesh_axes;
  std::vector<Exchange> exchanges;
  // What is computed in another way than the text says: docs/guides/import.md.
  std::vector<std::string> notes;
};

inline constexpr ValueId kMaxImportedOps = 200'000;
inline constexpr int64_t kMaxImportedCores = 512;  // as many as tpu.cores allows

// What has no form here, and the instructions that it concerns.
struct ImportProblem {
  std::string what;                             // "sort of (f32[8], s32[8]); allowed: ..."
  std::vector<std::pair<std::string, int>> of;  // name and line
};

// An error lists everything that is not supported: file:line, what was found, what is allowed.
// `problems` gets the same, if the error is that.
Result<ImportedStep> import_step(const HloModule& module, const StepBinding& binding,
                                 std::vector<ImportProblem>* problems = nullptr);

// Whether an instruction has nothing to do with f64, or only passes on a constant that becomes
// narrower.
bool keeps_f64_to_constants(const HloComputation& computation, const HloInstruction& instruction);

// Any module, which need not be a training step: its parameters become the inputs "argument/0",
// "argument/1", ..., its results the outputs "result/0", "result/1", ... There is no state and no
// loss.
Result<ImportedStep> import_module(const HloModule& module);

}  // namespace twinrun
