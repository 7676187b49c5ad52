// Screens the units of a fused step, and the values that pass between them.
#include "harness/lockstep/group_watch.h"

#include <algorithm>

#include "backends/oracle/screen.h"
#include "harness/lockstep/stopwatch.h"

namespace twinrun {

bool GroupWatch::accepts(std::span<const FusionGroup> groups) {
  if (groups.empty() || !declared_.ours || !declared_.declares_arithmetic) return false;
  if (known_ != groups.data()) {
    known_ = groups.data();
    kernels_.clear();
    for (const FusionGroup& group : groups) {
      kernels_.emplace_back(program_.graph, group, declared_.flush,
                            std::vector<bool>(group.stored.size(), true));
    }
  }
  return true;
}

void GroupWatch::begin_step(const States& before, const StepInputs& inputs) {
  began_ = holds_ = true;
  before_ = before;
  doubted_.clear();
  const auto values = static_cast<size_t>(program_.graph.size());
  sources_.resize(values);
  written_.assign(before.size(), std::vector<Tensor>(values));
  for (size_t r = 0; r < before.size(); ++r) {
    for (size_t i = 0; i < program_.state.size(); ++i)
      written_[r][static_cast<size_t>(program_.state[i].id)] = before[r].vars[i];
    for (size_t i = 0; i < program_.inputs.size(); ++i)
      written_[r][static_cast<size_t>(program_.inputs[i].id)] = inputs[r][i];
  }
}

bool GroupWatch::was_written(size_t replica, ValueId id, const Tensor& read) const {
  const Tensor& expected = written(replica, id);
  return expected.valid() && expected.same_bits(read);
}

void GroupWatch::doubt(ValueId id, std::span<const Tensor> outputs) {
  holds_ = false;
  std::vector<Tensor> wrote;
  for (size_t r = 0; r < written_.size(); ++r)
    wrote.push_back(outputs[std::min(r, outputs.size() - 1)]);
  doubted_.emplace_back(id, std::move(wrote));
}

void GroupWatch::on_op(const OpEvent& event) {
  const Stopwatch watch(seconds);
  const Op& op = event.op();
  const bool collective = op.kind == OpKind::kAllReduce;
  bool good = true;
  std::vector<Tensor> contributions;
  for (size_t r = 0; r < event.outputs.size(); ++r) {
    bool same = r > 0 && event.outputs[r].raw() == event.outputs[0].raw();
    for (size_t i = 0; i < event.inputs[r].size(); ++i) {
      good = good && was_written(r, op.operands[i], event.inputs[r][i]);
      same = same && (collective || event.inputs[r][i].raw() == event.inputs[0][i].raw());
    }
    written_[r][static_cast<size_t>(event.id)] = event.outputs[r];
    if (collective) {
      contributions.push_back(event.inputs[r][0]);
      good = good && event.outputs[r].same_bits(event.outputs[0]);
      continue;
    }
    if (same || !good || !holds_) continue;
    if (class_of(op.kind) == OpClass::kSource) {
      Tensor& judged = sources_[static_cast<size_t>(event.id)];
      if (judged.valid() && judged.same_bits(event.outputs[r])) continue;
      judged = event.outputs[r];
    }
    good = plausible(declared_, op, event.inputs[r], event.outputs[r], pool_,
                     unrounded_operands(declared_, program_.graph, event.id));
  }
  if (collective && good && holds_)
    good = plausible(declared_, op, contributions, event.outputs[0], pool_);
  if (!good) doubt(event.id, event.outputs);
}

void GroupWatch::on_group(const GroupEvent& event) {
  const Stopwatch watch(seconds);
  const FusionGroup& group = *event.group;
  bool good = true;
  for (size_t r = 0; r < event.inputs.size(); ++r) {
    for (size_t i = 0; i < group.sources.size(); ++i)
      good = good && was_written(r, group.sources[i], event.inputs[r][i]);
  }
  for (size_t r = 0; r < written_.size(); ++r) {
    const std::vector<Tensor>& outputs = event.outputs[std::min(r, event.outputs.size() - 1)];
    for (size_t i = 0; i < group.stored.size(); ++i)
      written_[r][static_cast<size_t>(group.stored[i])] = outputs[i];
  }
  if (good && !holds_) return;  // the step runs again anyway
  std::vector<const std::byte*> read, wrote;
  for (size_t r = 0; r < event.inputs.size(); ++r) {
    for (const Tensor& t : event.inputs[r]) read.push_back(t.raw());
    for (const Tensor& t : event.outputs[r]) wrote.push_back(t.raw());
  }
  const FusedKernel& kernel = kernels_[static_cast<size_t>(event.group - known_)];
  const auto jobs = static_cast<int64_t>(event.inputs.size());
  if (good && kernel.agrees({pool_, {.flush = declared_.flush}}, jobs, read, wrote)) return;
  for (size_t i = 0; i < group.stored.size(); ++i) {
    std::vector<Tensor> stored;
    for (const auto& outputs : event.outputs) stored.push_back(outputs[i]);
    doubt(group.stored[i], stored);
  }
}

void GroupWatch::on_release(std::span<const ValueId> ids) {
  for (auto& values : written_) {
    for (const ValueId id : ids) values[static_cast<size_t>(id)] = Tensor();
  }
}

std::span<const Tensor> GroupWatch::doubted(ValueId id) const {
  const auto found =
      std::ranges::find(doubted_, id, &std::pair<ValueId, std::vector<Tensor>>::first);
  return found == doubted_.end() ? std::span<const Tensor>() : found->second;
}

std::optional<std::pair<size_t, int>> GroupWatch::wrong_state(const States& after) const {
  for (size_t r = 0; r < after.size(); ++r) {
    for (size_t i = 0; i < program_.state.size(); ++i) {
      const StateVar& var = program_.state[i];
      const Tensor& expected = var.next == kNoValue ? before_[r].vars[i] : written(r, var.next);
      if (!expected.valid() || !expected.same_bits(after[r].vars[i]))
        return std::pair{i, static_cast<int>(r)};
    }
  }
  return std::nullopt;
}

void GroupWatch::end_step() {
  began_ = false;
  before_.clear();
  written_.clear();
  doubted_.clear();
}

}  // namespace twinrun
