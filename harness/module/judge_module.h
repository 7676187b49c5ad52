// Whether the results of a compiled module can be explained by rounding: the module's text is
// replayed with intervals (backends/radii), and the results that an engine returned are held against
// them.
//
//   TWINRUN_ASSIGN(ModuleVerdict v, judge_module({"step.mlir", "values.safetensors"}, &pool));
//   v.word();   // "ENGINE_BUG" where an element is outside
#pragma once

#include <string>

#include "backends/radii/radii.h"
#include "reports/module_verdict.h"

namespace twinrun {

struct ModuleRequest {
  std::string module;  // a file: HLO or StableHLO text of one core
  // A file of safetensors: argument/0, argument/1, ..., and result/0, result/1, ... as the engine
  // returned them. Arguments that no result reads, and results, may be missing.
  std::string values;
  FusedArithmetic may = {};
};

// A module that cannot be imported is no error: `refused` says why.
Result<ModuleVerdict> judge_module(const ModuleRequest& request, ThreadPool* pool);

}  // namespace twinrun
