// The instruction that is being lowered: its operands as values of our graph, and the building
// blocks that the rules of its family (lower_*.cc) use. Between the HLO module and the Program.
//
//   ValueId lower_add(Site& s) { return s.b.add(s.x[0], s.x[1], s.name()); }
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "program/import/attributes.h"
#include "program/import/constants.h"
#include "program/import/core_layout.h"
#include "program/import/import.h"

namespace twinrun {

// Of "f32", "bf16", "pred" and integers, which are stored as i32 (integers.h); f64 is that of its
// constants, which are only converted. Else nothing.
std::optional<DType> dtype_of(std::string_view hlo);

int64_t product(const Dims& dims);  // 1 for no dimensions

// The number that all elements of a value have, if the graph shows it: a constant that was
// broadcast, reshaped, transposed or converted to f32.
std::optional<double> splat_of(const Graph& graph, ValueId id);

// Records that a value is `of` mirrored along `axes`: convolutions recognise a mirrored kernel by
// it.
struct Mirrored {
  ValueId of = kNoValue;
  Dims axes;
};

// What is known of the cores of a sharded text.
struct Cores {
  CoreCount count;
  ValueId replica_id = kNoValue;
  // Adds an array as an input that is fed at every step.
  std::function<ValueId(const std::string& name, Tensor)> literal;
  // An i32[1] that is table[core] on each core, by the table.
  std::map<std::vector<int32_t>, ValueId> tables;
  // Scalars of which the text itself shows what each core has: functions of its number.
  std::unordered_map<ValueId, std::vector<int64_t>> known;
  std::vector<Exchange> exchanges;
};

struct WrittenBlocks;  // slices.cc

// State that all instructions of a module share while they are lowered.
struct Shared {
  explicit Shared(const Graph& graph) : constants(graph) {}
  Constants constants;
  // Arrays that were written block by block: their blocks, and how many of them came before.
  std::unordered_map<ValueId, std::pair<std::shared_ptr<WrittenBlocks>, int64_t>> written;
  std::string iteration;  // of the loops that are being unrolled: "[3]", "[3][0]", or ""
  // u64 that were made of two u32 each, [.., 2]: their words, which only rng-bit-generator and
  // bitcast-convert read.
  std::unordered_map<ValueId, ValueId> pairs;
  std::map<std::string, int> notes;  // note -> how often it was made
  std::map<ValueId, Mirrored> mirrored;
  std::unordered_map<std::string, int> names;  // name -> how often it was requested
  Cores cores;
};

class Site {
 public:
  Site(const HloModule& module, const HloComputation& computation, const HloInstruction& in,
       std::vector<ValueId> operands, Graph& graph, Phase phase, std::string path,
       std::string source, Shared& shared)
      : module(module),
        computation(computation),
        in(in),
        x(std::move(operands)),
        b(graph, "", phase),
        path_(std::move(path)),
        source_(std::move(source)),
        shared_(shared) {}

  const HloModule& module;
  const HloComputation& computation;
  const HloInstruction& in;
  const std::vector<ValueId> x;
  GraphBuilder b;

  // "dense1/dot_general@train.py:31"; with a local name "dense1/dot_general.pad@train.py:31", for
  // auxiliary ops beside the op that computes the result; in iteration 3 of a loop
  // "dense1/dot_general[3]@train.py:31".
  std::string name(std::string_view local = "") const;
  const TensorType& type(size_t operand) const { return b.type(x[operand]); }
  // The type of an operand in the text: "u32" where type() says i32.
  std::string_view hlo_type(size_t operand) const {
    return computation.instructions[static_cast<size_t>(in.operands[operand])].shape.dtype;
  }
  TensorType result() const;  // as the text declares it
  // Throws Unsupported if an array of these sizes is empty or too large to allocate.
  void check_size(const Dims& dims) const;
  // Throws Unsupported unless the instruction has this number of operands.
  void expect(size_t operands) const;
  [[noreturn]] void refuse(std::string what) const { throw Unsupported{std::move(what)}; }
  Cores& cores() { return shared_.cores; }
  Shared& shared() { return shared_; }
  void note(const std::string& text) { ++shared_.notes[text]; }
  void note_mirrored(ValueId result, Mirrored how) { shared_.mirrored[result] = std::move(how); }
  Mirrored mirrored(ValueId v) const {
    const auto found = shared_.mirrored.find(v);
    return found == shared_.mirrored.end() ? Mirrored{} : found->second;
  }
  // The region that attribute `key` names, if it is one op on its two parameters: the opcode
  // ("add"), or "compare GE"; "" for any other.
  std::string region(const std::string& key = "to_apply") const;

  // Building blocks. Each omits ops that would change nothing. Local names follow HLO's opcodes.
  ValueId splat(double value, const TensorType& like, std::string_view local = "splat");
  ValueId scalar_like(ValueId x, double value, std::string_view local = "splat");
  ValueId reshape(ValueId x, const Dims& dims, std::string_view local = "reshape");
  ValueId transpose(ValueId x, const Dims& permutation, std::string_view local = "transpose");
  ValueId convert(ValueId x, DType dtype, std::string_view local = "convert");
  // Broadcasts a scalar to the dimensions of `like`; other values stay.
  ValueId spread(ValueId scalar, const TensorType& like);
  ValueId logical_not(ValueId p, std::string_view local = "not");
  ValueId logical_and(ValueId p, ValueId q, std::string_view local = "and");
  ValueId logical_or(ValueId p, ValueId q, std::string_view local = "or");
  // Elements [begin, end) along an axis, every stride-th.
  ValueId cut(ValueId x, int64_t axis, int64_t begin, int64_t end, int64_t stride = 1);
  // Pads with `low` and `high` zeros around, and `interior` zeros between elements; negative `low`
  // or `high` cuts.
  ValueId widen(ValueId x, int64_t axis, int64_t low, int64_t high, int64_t interior = 0);
  ValueId reverse(ValueId x, int64_t axis);
  // Elements ids[i] along an axis, whose size becomes that of ids (i32[n]).
  ValueId take(ValueId x, int64_t axis, ValueId ids);
  ValueId bounded(ValueId ids, int64_t last);  // i32, clamped to [0, last]
  // Combines pairs along the leading dimension by `kind` until one element is left: [n, rest] ->
  // [rest].
  ValueId fold(OpKind kind, ValueId x);

 private:
  std::string path_, source_;  // "dense1/dot_general", "train.py:31"
  Shared& shared_;
};

using LowerFn = ValueId (*)(Site&);
using LoweringTable = std::map<std::string_view, LowerFn>;

// Instructions whose result is a tuple; sort also has an array, if it has one operand.
using LowerManyFn = std::vector<ValueId> (*)(Site&);
using ManyLoweringTable = std::map<std::string_view, LowerManyFn>;

// What depends on the core or joins several: collectives, numbers of cores, and the borders between
// global arrays and their shards. One value for each result; none for any other instruction.
std::vector<ValueId> lower_across_cores(Site& site);

// The families of rules, each in its own file; each adds opcode -> rule.
void add_elementwise(LoweringTable& table);
void add_integers(LoweringTable& table);
void add_functions(LoweringTable& table);
void add_movement(LoweringTable& table);
void add_slices(LoweringTable& table);
void add_gather(LoweringTable& table);
void add_scatter(LoweringTable& table);
void add_dot(LoweringTable& table);
void add_convolution(LoweringTable& table);
void add_reductions(LoweringTable& table);
void add_windows(LoweringTable& table);
void add_arg_extremes(ManyLoweringTable& table);
void add_sorts(ManyLoweringTable& table);
void add_random(ManyLoweringTable& table);

}  // namespace twinrun
