// A step as HLO, a small syntax tree: computations of instructions, operands resolved, attributes still text. Both texts come to
// it: HLO text as it stands, StableHLO text in HLO's words, as XLA itself brings it there.
// On the data's path: step.hlo, step.mlir -> parse_program (here) -> import_step (import.h) -> Program.
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

// An array of `dtype` (XLA's word: "f32", "s32", "pred"), or a tuple of shapes.
struct HloShape {
  std::string dtype;  // "" of a tuple
  Dims dims;
  std::vector<HloShape> parts;
  bool is_tuple() const { return dtype.empty(); }
  bool dynamic =
      false;  // sizes that only a run knows; unknown ones are kUnknownSize, of others `dims` has the bound
  bool append(int64_t size);  // a dimension; false: not below 0, or too many elements or dimensions
  bool append_unknown();      // one of unknown size
  static std::string refusal(std::string_view size);  // what to say of false
};
inline constexpr int64_t kUnknownSize = -1;
std::string to_string(const HloShape& shape);  // "f32[5,16]", "(f32[], s32[2])", "f32[?,16]"

struct HloInstruction {
  std::string name, opcode;
  HloShape shape;
  std::vector<int> operands;  // earlier instructions of the same computation
  std::string literal;        // of constant and parameter: what stands between the parentheses
  std::map<std::string, std::string> attributes;  // "dimensions" -> "{0,1}", "to_apply" -> "add.3"
  std::string op_name;                            // of its metadata: "jit(step)/dense1/dot_general"
  std::string source;                             // "train.py:31", or ""
  int line = 0;
};

struct HloComputation {
  std::string name;
  std::vector<HloInstruction> instructions;
  int root = -1;
  std::vector<int> parameters;  // instruction of parameter i
};

struct HloModule {
  std::string name, file;
  std::vector<HloComputation> computations;  // callees stand before their callers
  int entry_index = -1;
  int64_t replicas = 1;    // cores that each run this text
  int64_t partitions = 1;  // cores that a compiler is to share it out to
  const HloComputation& entry() const { return computations[static_cast<size_t>(entry_index)]; }
  std::unordered_map<std::string, size_t> by_name;
  const HloComputation* find(const std::string& computation) const;
};

inline constexpr size_t kMostHloBytes = size_t{64} << 20;
inline constexpr int64_t kMostHloElements = int64_t{1} << 31;  // of one array
inline constexpr size_t kMostHloRank = 16;

// HLO text or StableHLO text, told apart by how it begins. `file` is for errors, which name the line, what was found and what is
// allowed. Refused: text above kMostHloBytes, arrays above kMostHloElements, elided literals, and sizes that only a run knows, unless
// the module is read to be looked at and not to be imported (kLookAt).
enum class HloUse : uint8_t { kImport, kLookAt };
Result<HloModule> parse_program(std::string_view text, const std::string& file,
                                HloUse use = HloUse::kImport);

// What XLA's HloModule::ToString and JAX's as_text("hlo") print.
Result<HloModule> parse_hlo(std::string_view text, const std::string& file,
                            HloUse use = HloUse::kImport);

// What JAX's as_text() and `twinrun export --stablehlo` print: MLIR, ops of StableHLO and a few of CHLO, in their pretty form or the
// generic one. Source: the StableHLO specification, https://github.com/openxla/stablehlo/blob/main/docs/spec.md (version 1).
Result<HloModule> parse_stablehlo(std::string_view text, const std::string& file,
                                  HloUse use = HloUse::kImport);

}  // namespace twinrun
