// StableHLO text as MLIR: functions of ops, each with its operands, attributes, regions and result types, whatever the op means.
// On the data's path: step.mlir -> parse_mlir (here) -> from_stablehlo.cc, which knows the ops -> HloModule.
//
//   TWINRUN_ASSIGN(MlirModule module, parse_mlir(text, "step.mlir"));
//   module.functions[0].body.ops[0].name;                 // "stablehlo.dot_general"
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "program/import/hlo_module.h"

namespace twinrun {

struct MlirOp;

struct MlirArgument {
  std::string name;  // without %
  HloShape shape;
  std::string location;
};

// A block: the body of a function, or what a reduction folds by.
struct MlirRegion {
  std::vector<MlirArgument> arguments;
  std::vector<MlirOp> ops;
};

struct MlirOp {
  struct Result {
    std::string name;  // "%12:3 = ..." is "12", 3
    size_t count = 1;
  };
  std::string name;  // "stablehlo.add", "call"
  std::vector<Result> results;
  std::vector<std::string> operands;              // "12", "12#1"
  std::string symbol;                             // of "call @relu": "relu"
  std::string literal;                            // of a constant: "dense<1.0>"
  std::string list;                               // of a slice: "0:1, 0:5:2"
  std::vector<std::string> words;                 // "GT", "FLOAT"; "applies", "stablehlo.add"
  std::map<std::string, std::string> attributes;  // "dims" -> "[0, 1]"
  std::vector<MlirRegion> regions;
  std::vector<HloShape> types;  // of all results, in HLO's words
  std::string location;         // "#loc12", or what stands between the parentheses of loc(...)
  int line = 0;
};

struct MlirFunction {
  std::string name;
  bool is_public = true;
  MlirRegion body;
  int line = 0;
};

struct MlirModule {
  std::string name, file;
  int64_t replicas = 1, partitions = 1;                    // mhlo.num_replicas, mhlo.num_partitions
  std::vector<MlirFunction> functions;                     // those with a body
  std::unordered_map<std::string, std::string> locations;  // "#loc12" -> "\"jit(step)/add\"(#loc7)"
};

inline constexpr int kMostMlirNested = 32;  // regions in regions

// Any op is taken that has the usual form. `file` is for errors, which name line, what was found and what is allowed.
Result<MlirModule> parse_mlir(std::string_view text, const std::string& file,
                              HloUse use = HloUse::kImport);

// What a location says: JAX's name of the op, and the innermost line of the user's source.
struct MlirPlace {
  std::string op_name, source;  // "jit(step)/dense1/add", "train.py:31"; "" where it does not say
};
MlirPlace place_of(const MlirModule& module, std::string_view location);

}  // namespace twinrun
