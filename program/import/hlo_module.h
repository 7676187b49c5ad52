// A step as HLO, a small syntax tree: computations of instructions, with operands resolved and
// attributes still text. HLO text is parsed to it directly, StableHLO text by translation to HLO,
// as XLA itself does. On the data's path: step.hlo, step.mlir -> parse_program (here) ->
// import_step (import.h) -> Program.
//
//   TWINRUN_ASSIGN(HloModule module, parse_program(text, "step.hlo"));
//   module.entry().instructions.back().opcode;         // "tuple"
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "program/base/result.h"
#include "program/base/types.h"

namespace twinrun {

// An array of `dtype` (XLA's name: "f32", "s32", "pred"), or a tuple of shapes.
struct HloShape {
  std::string dtype;  // "" for a tuple
  Dims dims;
  std::vector<HloShape> parts;
  bool is_tuple() const { return dtype.empty(); }
  // Some sizes are known only at run time: `dims` has kUnknownSize for them, or their bound.
  bool dynamic = false;
  // Appends a dimension. False if the size is negative, or there are too many elements or
  // dimensions.
  bool append(int64_t size);
  bool append_unknown();                              // appends a dimension of unknown size
  static std::string refusal(std::string_view size);  // the error text where those return false
};
inline constexpr int64_t kUnknownSize = -1;
std::string to_string(const HloShape& shape);  // "f32[5,16]", "(f32[], s32[2])", "f32[?,16]"

struct HloInstruction {
  std::string name, opcode;
  HloShape shape;
  std::vector<int> operands;  // earlier instructions of the same computation
  std::string literal;        // of constant and parameter: the text between the parentheses
  std::map<std::string, std::string> attributes;  // "dimensions" -> "{0,1}", "to_apply" -> "add.3"
  std::string op_name;  // from its metadata: "jit(step)/dense1/dot_general"
  std::string source;   // "train.py:31", or ""
  int line = 0;
};

struct HloComputation {
  std::string name;
  std::vector<HloInstruction> instructions;
  int root = -1;
  std::vector<int> parameters;  // index of the instruction of parameter i
};

struct HloModule {
  std::string name, file;
  std::vector<HloComputation> computations;  // callees come before their callers
  int entry_index = -1;
  int64_t replicas = 1;    // cores that each run the whole module
  int64_t partitions = 1;  // cores over which a compiler is to partition the module
  std::map<std::string, std::string> meshes;  // "mesh" -> "<["data"=4, "model"=2]>"
  const HloComputation& entry() const { return computations[static_cast<size_t>(entry_index)]; }
  std::unordered_map<std::string, size_t> by_name;
  const HloComputation* find(const std::string& computation) const;
};

inline constexpr size_t kMaxHloBytes = size_t{64} << 20;
inline constexpr int64_t kMaxHloElements = int64_t{1} << 31;  // of one array
inline constexpr size_t kMaxHloRank = 16;

// Parses HLO text or StableHLO text; the beginning of the text decides which. `file` is for errors,
// which name the line, what was found and what is allowed. Text above kMaxHloBytes and arrays
// above kMaxHloElements are errors, and so are sizes that are known only at run time, unless the
// module is read for inspection and not for import (kLookAt). import_step refuses elided literals.
enum class HloUse : uint8_t { kImport, kLookAt };
Result<HloModule> parse_program(std::string_view text, const std::string& file,
                                HloUse use = HloUse::kImport);

// Parses what XLA's HloModule::ToString and JAX's as_text("hlo") print.
Result<HloModule> parse_hlo(std::string_view text, const std::string& file,
                            HloUse use = HloUse::kImport);

// Parses what JAX's as_text() and `twinrun convert --to stablehlo` print: MLIR with ops of StableHLO
// and a few of CHLO, in their pretty form or the generic one. Source: the StableHLO specification,
// https://github.com/openxla/stablehlo/blob/main/docs/spec.md (version 1).
Result<HloModule> parse_stablehlo(std::string_view text, const std::string& file,
                                  HloUse use = HloUse::kImport);

}  // namespace twinrun
