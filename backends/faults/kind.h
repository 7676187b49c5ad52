// How a fault kind is written: a row with `fits` (which ops) and `strike` (what goes wrong), in the file of its group.
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

// One op on one core, about to be made wrong. `output` is what was computed from `inputs` so far (by the engine, or left
// by the faults before this one); a kind of place kComputation changes `inputs` and calls recompute(), or sets `output`.
struct Strike {
  const OpSite& site;
  const FaultSpec& fault;
  const FaultHooks::Where& where;
  std::vector<Tensor> inputs;
  Tensor output;
  ValueId state = kNoValue;  // the state variable that this op's result replaces
  // One step before, of an honest engine; empty at the first step.
  std::vector<Tensor> previous_inputs;
  Tensor previous_output;

  const Op& op() const { return site.op(); }
  int cores() const { return site.program->sharding.cores; }
  double magnitude() const { return fault.magnitude.value_or(fault.kind->magnitude.standard); }
  int core() const {
    return fault.core.value_or(cores() - 1);
  }  // for kinds that need one: the last

  // The engine's result for `inputs` as they are now.
  Tensor computed(const std::vector<Tensor>& on) const;
  void recompute() { output = computed(inputs); }
  // Private copies to write into.
  std::span<float> own_output();
  std::span<float> own_input(size_t i);
  // 32 bits of (seed, step, op, i); without the step where a fault stays in its place.
  uint32_t random(uint64_t i = 0, bool each_step = true) const;
  // One element of the output, by random(0, each_step).
  size_t element(bool each_step = true) const;
};

// ---- rows: what is computed wrongly, what happens to the result, what to each core's copy of a collective's

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
std::vector<FaultKind> row_faults();  // of the group indexing
std::vector<FaultKind> state_faults();
std::vector<FaultKind> collective_faults();
std::vector<FaultKind> random_faults();
std::vector<FaultKind> hardware_faults();

// ---- which ops: for `fits`

inline const Op& op_at(const Program& p, ValueId id) { return p.graph.op(id); }
inline bool is_dot(const Op& op) { return class_of(op.kind) == OpClass::kDot; }
inline bool is_f32(const Op& op) { return op.type.dtype == DType::kF32; }
inline bool is_sum(const Op& op) {  // that adds up: sums and means
  return op.kind == OpKind::kReduce && op.attrs.reducer != Reducer::kMax;
}
bool f32_operands(const Program& p, ValueId id);
// The state variable that op `id` makes the next value of; nullptr: none.
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
