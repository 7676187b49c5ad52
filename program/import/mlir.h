// StableHLO text as MLIR: functions of ops, each with its operands, attributes, regions and result
// types, regardless of the op's meaning.
// On the data's path: step.mlir -> parse_mlir (here) -> from_stablehlo.cc, which translates the ops
// -> HloModule.
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

// A region of one block: the body of a function, or the function that a reduction applies.
struct MlirRegion {
  std::vector<MlirArgument> arguments;
  std::vector<MlirOp> ops;
};

struct MlirOp {
  struct Result {
    std::string name;  // "%12:3 = ..." has name "12" and count 3
    size_t count = 1;
  };
  std::string name;  // "stablehlo.add", "call"
  std::vector<Result> results;
  std::vector<std::string> operands;              // "12", "12#1"
  std::vector<std::string> arguments;             // of a loop: its regions' names for them
  std::string symbol;                             // "relu" of "call @relu"
  std::string literal;                            // of a constant: "dense<1.0>"
  std::string list;                               // of a slice: "0:1, 0:5:2"
  std::vector<std::string> words;                 // "GT", "FLOAT"; "applies", "stablehlo.add"
  std::map<std::string, std::string> attributes;  // "dims" -> "[0, 1]"
  std::vector<MlirRegion> regions;
  std::vector<HloShape> types;  // of all results, with HLO's names of types
  std::string location;         // "#loc12", or the text between the parentheses of loc(...)
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
  std::map<std::string, std::string> meshes;               // sdy.mesh: "mesh" -> "<["x"=2]>"
  std::vector<MlirFunction> functions;                     // those with a body
  std::unordered_map<std::string, std::string> locations;  // "#loc12" -> "\"jit(step)/add\"(#loc7)"
};

inline constexpr int kMaxMlirNested = 32;  // depth of regions in regions

// Accepts any op that has the usual form. `file` is for errors, which name the line, what was found
// and what is allowed.
Result<MlirModule> parse_mlir(std::string_view text, const std::string& file,
                              HloUse use = HloUse::kImport);

// The content of a location: JAX's name of the op, and the innermost line of the user's source.
struct MlirPlace {
  std::string op_name, source;  // "jit(step)/dense1/add", "train.py:31"; "" where it has none
};
MlirPlace place_of(const MlirModule& module, std::string_view location);

}  // namespace twinrun
