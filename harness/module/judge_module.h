// Whether the results of a compiled module can be explained by rounding: the module's text is
// replayed with intervals (backends/radii), and the results that an engine returned are held against
// them.
//
//   TWINRUN_ASSIGN(ModuleVerdict v, judge_module({"step.mlir", "values.safetensors"}, &pool));
//   v.word();   // "ENGINE_BUG" where an element is outside
#pragma once

#include <map>
#include <string>
#include <vector>

#include "backends/radii/radii.h"
#include "checkpoints/container/array.h"
#include "reports/module_verdict.h"

namespace twinrun {

struct ModuleRequest {
  std::string module;  // a file: HLO or StableHLO text of one core
  // A file of safetensors: argument/0, argument/1, ..., and result/0, result/1, ... as the engine
  // returned them. Arguments that no result reads, and results, may be missing.
  std::string values;
  FusedArithmetic may = {};
  std::string precision = "f32";  // the word that `may` has its products from
  // Results whose proven radii are wider than kBlunt of the largest value are held against
  // likely_values with so many samples; 0: against the proven ones, whatever they are.
  int samples = kSamples;
  // next[i]: the index of the result that is the new value of argument i, -1: none. What such a
  // result is held against is its change, because that is what a step computes.
  std::vector<int64_t> next = {};
};
inline constexpr double kBlunt = 0x1p-10;

// What a request leaves open beside its files, as words: elementary_ulps, flush, precision, samples,
// next. A report keeps them in its environment, a bundle in its manifest. request_of reads them,
// with the defaults of what is missing; other keys are ignored. Errors: a value that is not allowed.
std::map<std::string, std::string> settings_of(const ModuleRequest& request);
Result<ModuleRequest> request_of(const std::map<std::string, std::string>& settings);

// How operands of products may be rounded, by a word of `diagnose --precision`: f32, default, high,
// highest, tf32. Any other word is f32.
void set_products(const std::string& precision, FusedArithmetic& may);

// The arrays of a file of safetensors by their names.
using Arrays = std::map<std::string, NamedArray>;
Result<Arrays> read_arrays(const std::string& path);

// A module that cannot be imported is no error: `refused` says why.
Result<ModuleVerdict> judge_module(const ModuleRequest& request, ThreadPool* pool);
// The same for values that have been read already; `values` of the request is their name in errors.
// `meant`: gets what the module gives without rounding, by the index of the result (Bounded::value).
Result<ModuleVerdict> judge_arrays(const ModuleRequest& request, const Arrays& values,
                                   ThreadPool* pool, std::map<int64_t, Tensor>* meant = nullptr);

}  // namespace twinrun
