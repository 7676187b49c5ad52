// How to write a fault kind: a row with `fits` (which ops it can act on) and `strike` (what it does
// to one), in the file of its group. Only the files of this folder include this header.
//
//   void scale(Strike& s) {
//     const auto factor = static_cast<float>(s.magnitude());
//     for (float& v : s.own_output()) v *= factor;
//   }
#pragma once

#include <span>
#include <vector>

#include "backends/faults/faults.h"

namespace twinrun {

// One application of a fault, to one op on one core (or to the shared result of a collective).
// `output` is the result so far: from the engine, or as the preceding faults left it. A kind with
// place kComputation changes `inputs` and calls recompute(), or sets `output`.
struct Strike {
  const OpSite& site;
  const FaultSpec& fault;
  const FaultHooks::Where& where;
  std::vector<Tensor> inputs;
  Tensor output;
  ValueId state = kNoValue;  // the state variable that this op's result replaces, if any
  // What this op read and computed one step before, without the faults on this op. Empty in the
  // first step, and for kinds that do not set `remembers`.
  std::vector<Tensor> previous_inputs;
  Tensor previous_output;

  const Op& op() const { return site.op(); }
  int cores() const { return site.program->sharding.cores; }
  double magnitude() const { return fault.magnitude.value_or(fault.kind->magnitude.standard); }
  // For kinds that act on one core: the core of the fault, by default the last one.
  int core() const { return fault.core.value_or(cores() - 1); }

  // The engine's own result of this op on other operands.
  Tensor computed(const std::vector<Tensor>& on) const;
  void recompute() { output = computed(inputs); }
  // These replace the tensor by a private copy and return its elements for writing.
  std::span<float> own_output();
  std::span<float> own_input(size_t i);
  // 32 random bits, a function of (seed, step, op, i). With each_step = false they do not depend on
  // the step: for faults that always hit the same elements.
  uint32_t random(uint64_t i = 0, bool each_step = true) const;
  // The index of an element of the output, drawn by random(0, each_step).
  size_t element(bool each_step = true) const;
};

// ---- constructors of rows, by place: kComputation, kResult, kEachCopy; and two modifiers

using Fits = bool (*)(const Program&, ValueId);
inline FaultKind kind_at(FaultKind::Place place, std::string_view name, std::string_view acts_on,
                         std::string_view does, Fits fits, void (*strike)(Strike&),
                         FaultMagnitude magnitude) {
  return {.name = name,
          .acts_on = acts_on,
          .does = does,
          .magnitude = std::move(magnitude),
          .place = place,
          .fits = fits,
          .strike = strike};
}
inline FaultKind computes(std::string_view name, std::string_view acts_on, std::string_view does,
                          Fits fits, void (*strike)(Strike&), FaultMagnitude magnitude = {}) {
  return kind_at(FaultKind::Place::kComputation, name, acts_on, does, fits, strike,
                 std::move(magnitude));
}
inline FaultKind results(std::string_view name, std::string_view acts_on, std::string_view does,
                         Fits fits, void (*strike)(Strike&), FaultMagnitude magnitude = {}) {
  return kind_at(FaultKind::Place::kResult, name, acts_on, does, fits, strike,
                 std::move(magnitude));
}
inline FaultKind copies(std::string_view name, std::string_view acts_on, std::string_view does,
                        Fits fits, void (*strike)(Strike&)) {
  return kind_at(FaultKind::Place::kEachCopy, name, acts_on, does, fits, strike, {});
}
inline FaultKind once(FaultKind kind) {
  kind.once = true;
  return kind;
}
inline FaultKind remembers(FaultKind kind) {
  kind.remembers = true;
  return kind;
}

// The rows of each group, one file each.
std::vector<FaultKind> arithmetic_faults();
std::vector<FaultKind> indexing_faults();
std::vector<FaultKind> row_faults();  // also in the group kIndexing
std::vector<FaultKind> state_faults();
std::vector<FaultKind> collective_faults();
std::vector<FaultKind> random_faults();
std::vector<FaultKind> hardware_faults();

// ---- predicates on ops, for `fits`

inline const Op& op_at(const Program& p, ValueId id) { return p.graph.op(id); }
inline bool is_dot(const Op& op) { return class_of(op.kind) == OpClass::kDot; }
inline bool is_f32(const Op& op) { return op.type.dtype == DType::kF32; }
inline bool is_sum(const Op& op) {  // sums and means
  return op.kind == OpKind::kReduce && op.attrs.reducer != Reducer::kMax;
}
bool f32_operands(const Program& p, ValueId id);
// The state variable whose next value is op `id`; nullptr if there is none.
const StateVar* updates(const Program& p, ValueId id);
bool reads(const Op& op, ValueId value);

inline bool computed(const Program& p, ValueId id) {
  return class_of(op_at(p, id).kind) != OpClass::kSource && op_at(p, id).type.elements() > 0;
}
inline bool computed_f32(const Program& p, ValueId id) {
  return computed(p, id) && is_f32(op_at(p, id));
}
inline bool dot_f32(const Program& p, ValueId id) {
  return is_dot(op_at(p, id)) && is_f32(op_at(p, id)) && f32_operands(p, id);
}

}  // namespace twinrun
