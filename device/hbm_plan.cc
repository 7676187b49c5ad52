// The lifetimes of all buffers of a step in one core's HBM, their uses, and the peak.
#include "device/hbm_plan.h"

#include <algorithm>
#include <map>

#include "device/remat.h"
#include "program/analysis/fusion.h"
#include "program/analysis/memory_plan.h"
#include "program/graph/liveness.h"
#include "program/ops/op_def.h"

namespace twinrun::tpu {
namespace {

// The program that one core runs: only its loss is an output, and no value is shared with other
// replicas.
Program core_program(const Program& step) {
  Program core = step;
  std::erase_if(core.outputs, [&](const Output& output) { return output.id != step.loss; });
  core.sharding.cores = 1;
  return prune(core);
}

class HbmPlanner {
 public:
  HbmPlanner(const Program& core, const HbmOptions& options)
      : core_(core),
        options_(options),
        n_(static_cast<size_t>(core.graph.size())),
        constant_(constant_values(core)),
        fusion_(plan_fusion(core, constant_)),
        takes_(plan_memory(core, fusion_, constant_).takes),
        end_(static_cast<int>(fusion_.order.size())),
        last_(held_until(core_.graph, fusion_)),
        buffer_of_(n_, -1) {
    while (turn_ < end_ && phase_of(turn_) != Phase::kGradient) ++turn_;
    arguments();
    for (int unit = 0; unit < end_; ++unit) visit(unit);
    name_uses();
  }

  HbmPlan plan() {
    HbmPlan plan;
    plan.units = end_;
    if (options_.rematerialise != Rematerialise::kNothing)
      plan.recomputed_flops = rematerialise(options_.rematerialise, units(), values_);
    for (const HeldValue& value : values_) plan.buffers.push_back(value.buffer);
    find_peak(plan);
    return plan;
  }

 private:
  static size_t at(ValueId id) { return static_cast<size_t>(id); }
  const Graph& graph() const { return core_.graph; }

  TensorType stored_type(ValueId id, HbmUse use) const {
    TensorType type = graph().type(id);
    const bool state = is_argument(use) || use == HbmUse::kGradients;
    if (options_.bf16_activations && !state && type.dtype == DType::kF32) type.dtype = DType::kBF16;
    return type;
  }

  void hold(ValueId id, std::string name, HbmUse use, int first, int last) {
    HbmBuffer buffer{std::move(name), use, stored_type(id, use), {}, 0, first, last};
    buffer.layout = is_argument(use) ? default_layout(buffer.type) : smallest_layout(buffer.type);
    buffer.bytes = padded_bytes(buffer.type, buffer.layout);
    buffer_of_[at(id)] = static_cast<int>(values_.size());
    values_.push_back({std::move(buffer), {}});
  }

  void arguments() {
    for (const StateVar& var : core_.state) {
      const HbmUse use = var.role == StateRole::kParameter ? HbmUse::kWeights
                         : var.role == StateRole::kSlot    ? HbmUse::kSlots
                                                           : HbmUse::kStatistics;
      hold(var.id, var.name, use, 0, end_);
      if (var.next != kNoValue) state_of_.emplace(var.next, var.id);
    }
    for (const Input& input : core_.inputs)
      hold(input.id, input.name, HbmUse::kInfeed, 0, 0);  // until its last reader
  }

  // Records that this unit reads the value.
  void read(ValueId id, int unit) {
    const int index = buffer_of_[at(id)];
    if (index < 0) return;  // no buffer: a constant, or not stored
    HeldValue& value = values_[static_cast<size_t>(index)];
    value.buffer.last = std::max(value.buffer.last, unit);
    if (value.readers.empty() || value.readers.back() != unit) value.readers.push_back(unit);
  }

  void visit(int unit) {
    const FusionUnit& u = fusion_.order[static_cast<size_t>(unit)];
    if (u.group >= 0) {
      const FusionGroup& group = fusion_.groups[static_cast<size_t>(u.group)];
      for (ValueId source : group.sources) read(source, unit);
      for (ValueId id : group.stored) write(id, unit, takes_[at(id)]);
      return;
    }
    const Op& op = graph().op(u.op);
    for (ValueId operand : op.operands) read(operand, unit);
    if (constant_[at(u.op)]) return;
    if (op.kind == OpKind::kReshape) {  // the same bytes under another shape
      buffer_of_[at(u.op)] = buffer_of_[at(op.operands[0])];
      return;
    }
    write(u.op, unit, op.kind == OpKind::kAllReduce ? op.operands[0] : kNoValue);
  }

  // Records that this unit writes the value. `source`: the operand whose buffer the result may
  // reuse, if this unit is its last reader.
  void write(ValueId id, int unit, ValueId source) {
    const bool outlives = last_[at(id)] >= end_;
    if (const auto next = state_of_.find(id); next != state_of_.end()) {
      // Donated: the new state overwrites the old one, if no later unit reads the old one and this
      // unit reads it, if at all, element by element.
      const int old_last = last_[at(next->second)];
      if (old_last < unit || (old_last == unit && source == next->second)) {
        buffer_of_[at(id)] = buffer_of_[at(next->second)];
        return;
      }
    }
    const int into = source == kNoValue || outlives ? -1 : buffer_of_[at(source)];
    if (into >= 0 && last_[at(source)] == unit) {
      HeldValue& old = values_[static_cast<size_t>(into)];
      const TensorType type = stored_type(id, old.buffer.use);
      if (!is_argument(old.buffer.use) &&
          padded_bytes(type, smallest_layout(type)) == old.buffer.bytes) {
        old.overwritten = std::min(old.overwritten, unit);
        buffer_of_[at(id)] = into;
        return;
      }
    }
    hold(id, graph().op(id).name, HbmUse::kTemporaries, unit, outlives ? end_ : unit);
  }

  // Gradients are found by their names, activations by the units that read them.
  void name_uses() {
    for (const StateVar& var : core_.state) {
      const ValueId id = graph().find(var.name + ".grad");
      if (id != kNoValue) gradient(id);
      if (id != kNoValue && graph().op(id).kind == OpKind::kAllReduce)
        gradient(graph().op(id).operands[0]);
    }
    for (HeldValue& value : values_) {
      HbmBuffer& buffer = value.buffer;
      if (buffer.use != HbmUse::kTemporaries) continue;
      if (buffer.first < turn_ && buffer.last >= turn_) buffer.use = HbmUse::kActivations;
    }
  }
  void gradient(ValueId id) {
    const int index = buffer_of_[at(id)];
    if (index < 0) return;
    HbmBuffer& buffer = values_[static_cast<size_t>(index)].buffer;
    if (buffer.use == HbmUse::kTemporaries && buffer.first >= turn_)
      buffer.use = HbmUse::kGradients;
  }

  ValueId main_op(int unit) const {
    const FusionUnit& u = fusion_.order[static_cast<size_t>(unit)];
    return u.group < 0 ? u.op : fusion_.groups[static_cast<size_t>(u.group)].stored.back();
  }
  // The end of the step counts as update.
  Phase phase_of(int unit) const {
    return unit >= end_ ? Phase::kUpdate : graph().op(main_op(unit)).phase;
  }

  std::vector<StepUnit> units() const {
    std::vector<StepUnit> units;
    for (int i = 0; i < end_; ++i) {
      const FusionUnit& u = fusion_.order[static_cast<size_t>(i)];
      StepUnit unit{i < turn_, u.group >= 0, 0};
      if (u.group < 0) unit.flops = flops(graph(), u.op);
      for (size_t k = 0;
           u.group >= 0 && k < fusion_.groups[static_cast<size_t>(u.group)].ops.size(); ++k)
        unit.flops += flops(graph(), fusion_.groups[static_cast<size_t>(u.group)].ops[k].id);
      units.push_back(unit);
    }
    return units;
  }

  void find_peak(HbmPlan& plan) const {
    plan.peak = peak_of(values_, end_).unit;
    if (end_ > 0) {
      plan.peak_op = graph().op(main_op(plan.peak)).name;
      plan.peak_phase = phase_of(plan.peak);
    }
    for (const HbmBuffer& buffer : plan.buffers) {
      if (buffer.first > plan.peak || buffer.last < plan.peak) continue;
      plan.at_peak.bytes[static_cast<size_t>(buffer.use)] += buffer.bytes;
      plan.at_peak.unpadded[static_cast<size_t>(buffer.use)] += buffer.unpadded();
    }
  }

  const Program& core_;
  const HbmOptions& options_;
  size_t n_;
  std::vector<bool> constant_;
  FusionPlan fusion_;
  std::vector<ValueId> takes_;
  int end_;
  int turn_ = 0;                         // the first unit of the backward pass
  std::vector<int> last_;                // by value: its last reader; end_ if it outlives the step
  std::map<ValueId, ValueId> state_of_;  // next value of a state variable -> its value
  std::vector<int> buffer_of_;           // by value: index in values_; -1: none
  std::vector<HeldValue> values_;
};

}  // namespace

std::string_view to_string(HbmUse use) {
  static constexpr std::array<std::string_view, kHbmUses> kNames = {
      "weights", "slots", "statistics", "infeed", "activations", "gradients", "temporaries"};
  return kNames[static_cast<size_t>(use)];
}

bool is_argument(HbmUse use) {
  return use == HbmUse::kWeights || use == HbmUse::kSlots || use == HbmUse::kStatistics;
}

namespace {

int64_t sum(const std::array<int64_t, kHbmUses>& bytes, bool arguments) {
  int64_t total = 0;
  for (size_t use = 0; use < kHbmUses; ++use) {
    if (is_argument(static_cast<HbmUse>(use)) == arguments) total += bytes[use];
  }
  return total;
}

}  // namespace

int64_t HbmPlan::arguments() const { return sum(at_peak.bytes, true); }
int64_t HbmPlan::program() const { return sum(at_peak.bytes, false); }
int64_t HbmPlan::program_unpadded() const { return sum(at_peak.unpadded, false); }

std::vector<HbmBuffer> HbmPlan::largest(size_t most) const {
  std::vector<HbmBuffer> held;
  for (const HbmBuffer& buffer : buffers) {
    if (buffer.first <= peak && buffer.last >= peak) held.push_back(buffer);
  }
  std::ranges::stable_sort(held, std::greater<>(), &HbmBuffer::bytes);
  if (held.size() > most) held.resize(most);
  return held;
}

HbmPlan plan_hbm(const Program& step, const HbmOptions& options) {
  const Program core = core_program(step);
  return HbmPlanner(core, options).plan();
}

}  // namespace twinrun::tpu
