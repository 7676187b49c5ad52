// One instruction at work: its operands as values of our graph, and what its family of rules (lower_*.cc) build it from.
//
//   ValueId lower_add(Site& s) { return s.b.add(s.x[0], s.x[1], s.name()); }
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "program/import/attributes.h"
#include "program/import/import.h"

namespace twinrun {

std::optional<DType> dtype_of(
    std::string_view hlo);  // of "f32", "bf16", "s32", "pred" and the small integers, held as i32
bool is_small_integer(std::string_view hlo);  // "u8", "s8", "u16", "s16"

int64_t product(const Dims& dims);  // 1 of none

// Whether a value is the same number everywhere, by its making: constants, broadcast, reshaped, converted.
std::optional<double> splat_of(const Graph& graph, ValueId id);

// What reverse made, for convolutions: a kernel that is another one mirrored.
struct Mirrored {
  ValueId of = kNoValue;
  Dims axes;
};

// What instructions tell each other beside their values.
struct Shared {
  std::map<std::string, int> notes;  // and how often each was made
  std::map<ValueId, Mirrored> mirrored;
  std::unordered_map<std::string, int> names;  // and how often each was asked for
};

class Site {
 public:
  Site(const HloModule& module, const HloInstruction& in, std::vector<ValueId> operands,
       Graph& graph, Phase phase, std::string path, std::string source, Shared& shared)
      : module(module),
        in(in),
        x(std::move(operands)),
        b(graph, "", phase),
        path_(std::move(path)),
        source_(std::move(source)),
        shared_(shared) {}

  const HloModule& module;
  const HloInstruction& in;
  const std::vector<ValueId> x;
  GraphBuilder b;

  // "dense1/dot_general@train.py:31"; with a local name, "dense1/dot_general.pad@train.py:31", for what stands beside the op that
  // computes.
  std::string name(std::string_view local = "") const;
  const TensorType& type(size_t operand) const { return b.type(x[operand]); }
  TensorType result() const;  // as the text declares it
  // Sizes that may be allocated; else Unsupported.
  void check_size(const Dims& dims) const;
  // Takes so many operands; else Unsupported.
  void expect(size_t operands) const;
  [[noreturn]] void refuse(std::string what) const { throw Unsupported{std::move(what)}; }
  void note(const std::string& text) { ++shared_.notes[text]; }
  void note_mirrored(ValueId result, Mirrored how) { shared_.mirrored[result] = std::move(how); }
  Mirrored mirrored(ValueId v) const {
    const auto found = shared_.mirrored.find(v);
    return found == shared_.mirrored.end() ? Mirrored{} : found->second;
  }
  // The region that attribute `key` names: "add" of a computation that adds its two parameters; "" of any other.
  std::string region(const std::string& key = "to_apply") const;

  // Building blocks; each leaves out what would change nothing. Local names follow HLO's opcodes.
  ValueId splat(double value, const TensorType& like, std::string_view local = "splat");
  ValueId scalar_like(ValueId x, double value, std::string_view local = "splat");
  ValueId reshape(ValueId x, const Dims& dims, std::string_view local = "reshape");
  ValueId transpose(ValueId x, const Dims& permutation, std::string_view local = "transpose");
  ValueId convert(ValueId x, DType dtype, std::string_view local = "convert");
  ValueId spread(ValueId scalar, const TensorType& like);  // a scalar to all of `like`; others stay
  ValueId logical_not(ValueId p, std::string_view local = "not");
  ValueId logical_and(ValueId p, ValueId q, std::string_view local = "and");
  ValueId logical_or(ValueId p, ValueId q, std::string_view local = "or");
  // Elements [begin, end) by stride along an axis; zeros around, and `interior` zeros between; low or high below 0 cuts.
  ValueId cut(ValueId x, int64_t axis, int64_t begin, int64_t end, int64_t stride = 1);
  ValueId widen(ValueId x, int64_t axis, int64_t low, int64_t high, int64_t interior = 0);
  ValueId reverse(ValueId x, int64_t axis);
  // Elements ids[i] along an axis: the axis' size becomes that of ids (i32[n]).
  ValueId take(ValueId x, int64_t axis, ValueId ids);
  ValueId bounded(ValueId ids, int64_t last);  // i32, at least 0 and at most `last`
  // Pairs of the leading dimension by `kind` until one is left: [n, rest] -> [rest].
  ValueId fold(OpKind kind, ValueId x);

 private:
  std::string path_, source_;  // "dense1/dot_general", "train.py:31"
  Shared& shared_;
};

using LowerFn = ValueId (*)(Site&);
using LoweringTable = std::map<std::string_view, LowerFn>;

// reduce of (values, indices): the extreme and where it lies.
std::pair<ValueId, ValueId> lower_arg_extreme(Site& site);

// The families, each in its own file; opcode -> rule.
void add_elementwise(LoweringTable& table);
void add_movement(LoweringTable& table);
void add_indexing(LoweringTable& table);
void add_dot(LoweringTable& table);
void add_convolution(LoweringTable& table);
void add_reductions(LoweringTable& table);
void add_windows(LoweringTable& table);

}  // namespace twinrun
