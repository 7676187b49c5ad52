// Faults of state: updates that are lost, stale, wrong, or different on one core.
#include <algorithm>
#include <string_view>

#include "backends/faults/kind.h"

namespace twinrun {
namespace {

using Unit = FaultMagnitude::Unit;

bool is_update(const Program& p, ValueId id) {
  return computed(p, id) && updates(p, id) != nullptr;
}
bool is_statistic(const Program& p, ValueId id) {
  const StateVar* var = is_update(p, id) ? updates(p, id) : nullptr;
  return var != nullptr && var->role == StateRole::kStatistic;
}
bool is_copied_weight(const Program& p, ValueId id) {
  const StateVar* var = is_update(p, id) ? updates(p, id) : nullptr;
  return var != nullptr && var->role == StateRole::kParameter && p.sharding.cores > 1 &&
         reads(op_at(p, id), var->id) && computed_f32(p, id);
}
bool is_bessel(const Program& p, ValueId id) {
  return op_at(p, id).kind == OpKind::kMultiply && op_at(p, id).name.ends_with("unbiased_variance");
}
bool has_operand(const Program& p, ValueId id) {
  return computed(p, id) && !op_at(p, id).operands.empty() &&
         class_of(op_at(p, id).kind) != OpClass::kCollective;
}

// The old value of the state that an update replaces; nullptr if the op does not read it.
const Tensor* old_state(const Strike& s) {
  const auto it = std::ranges::find(s.op().operands, s.state);
  if (s.state == kNoValue || it == s.op().operands.end()) return nullptr;
  return &s.inputs[static_cast<size_t>(it - s.op().operands.begin())];
}

// If the op does not read the old state, its result of the step before is the old state.
void keep(Strike& s) {
  if (const Tensor* old = old_state(s)) {
    s.output = *old;
  } else if (s.previous_output.valid()) {
    s.output = s.previous_output;
  }
}

void stale_operand(Strike& s) {
  const size_t i = std::min(static_cast<size_t>(s.magnitude()), s.inputs.size() - 1);
  if (s.previous_inputs.empty()) return;
  s.inputs[i] = s.previous_inputs[i];
  s.recompute();
}

void untied(Strike& s) {
  if (s.site.replica != s.core()) return;
  const Tensor old = *old_state(s);
  const auto part = static_cast<float>(s.magnitude());
  const auto out = s.own_output();
  for (size_t i = 0; i < out.size(); ++i) {
    const float before = old.as<float>()[i];
    out[i] = before + part * (out[i] - before);
  }
}

void biased_variance(Strike& s) { s.output = s.inputs[0]; }

}  // namespace

std::vector<FaultKind> state_faults() {
  return {
      remembers(
          results("stale_weights", "any op",
                  "an update keeps the old state; any other op gives its result of the step before",
                  computed, keep)),
      remembers(results("skip_update", "updates",
                        "the state stays as it was (one that the op itself does not read: from the "
                        "second step on)",
                        is_update, keep)),
      remembers(computes("stale_operand", "any op but collectives",
                         "this reader alone sees the operand of the step before", has_operand,
                         stale_operand, {Unit::kCount, 0, "number of the operand"})),
      results("untied", "updates of weights, on several cores",
              "one core's copy (default: the last) takes a step of another size", is_copied_weight,
              untied, {Unit::kNumber, 0.5, "factor of its step", {0, 0.5, 0.99, 0.9999, 2}}),
      remembers(results("frozen_statistics", "updates of running statistics",
                        "they stay as they were", is_statistic, keep)),
      results("biased_variance", "the running variance of images", "divided by n instead of n - 1",
              is_bessel, biased_variance),
  };
}

}  // namespace twinrun
