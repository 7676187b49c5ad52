// A program as StableHLO text (MLIR), which XLA's loaders accept, JAX's among them. The op table
// follows StableHLO, so most ops are one line; the others (gradients of convolutions and pools,
// means, scatters) are written in its general forms.
//
//   const StableHlo module = to_stablehlo(step, {.precision = "HIGHEST"});
//   module.text;       // module @step { func.func public @main(%v0: tensor<8x4xf32>, ...) -> .. }
//   module.arguments;  // names and types, in order: state/.., input/.., random/..
//   module.results;    // state/.. (those that change), output/.., value/.. (with options.values)
//
// Values of random ops are arguments, because they are this project's numbers, not the loader's.
// Several cores are replicas of one module (mhlo.num_replicas) that communicate by
// stablehlo.all_reduce.
// Source: the StableHLO specification,
// https://github.com/openxla/stablehlo/blob/main/docs/spec.md (version 1).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "program/graph/program.h"

namespace twinrun {

struct StableHloOptions {
  std::string precision = "HIGHEST";  // of dots and convolutions: DEFAULT, HIGH, HIGHEST
  bool values = false;                // every op's value is a result as well
};

struct StableHlo {
  struct Value {
    std::string name;  // "state/dense1/kernel"
    TensorType type;
    ValueId id = kNoValue;  // of the program
  };
  std::string text;
  std::vector<Value> arguments, results;
};

// StableHLO's name of a precision of ours: HIGHEST for f32 and highest, HIGH for high, DEFAULT for
// default.
std::string stablehlo_precision(std::string_view precision);

// Throws GraphError on a type that the text form does not support (f64).
StableHlo to_stablehlo(const Program& program, const StableHloOptions& options);

}  // namespace twinrun
