// Runs a step section by section: the units up to the next all-reduce, on one block of replicas
// after the other.
#include <algorithm>

#include "backends/core/interpreter.h"

namespace twinrun {

void Interpreter::begin_arenas() {
  const auto grow = [](std::vector<Tensor>& arenas, size_t count, int64_t bytes) {
    while (arenas.size() < count) arenas.push_back(Tensor::empty({DType::kPred, {bytes}}));
  };
  grow(arenas_, std::min(mine_.size(), block_size_), memory_plan_.bytes);
  if (memory_plan_.carried_bytes > 0) grow(carried_, mine_.size(), memory_plan_.carried_bytes);
  in_arena_ = in_place_ = true;
}

void Interpreter::run_unit(OpRun& run, size_t index, GroupSink* sink) {
  const FusionUnit& unit = plan_.order[index];
  if (unit.group >= 0) return run_group(run.step, static_cast<size_t>(unit.group), sink);
  run.id = unit.op;
  run_op(run);
  complete(run);
  if (sink != nullptr) sink->on_op({run.step, &program_, unit.op, run.inputs, run.outputs});
  store(run);
}

// Which of the units have one result for all replicas here: the program says that it does not vary,
// and what they read is the same object on all of them. A replica whose state has diverged has
// objects of its own.
std::vector<bool> Interpreter::find_common(size_t first, size_t last) const {
  std::vector<bool> common;
  std::vector<bool> differs(varies_.size(), false);  // what a unit of the section writes
  for (size_t i = first; i < last; ++i) {
    const std::span<const ValueId> written = plan_.written(plan_.order[i]);
    const auto one_object = [&](ValueId id) {
      const auto v = static_cast<size_t>(id);
      const auto here = std::span(values_).subspan(mine_.first, mine_.size());
      return !differs[v] && std::ranges::all_of(here, [&](const std::vector<Tensor>& values) {
        return values[v].raw() == here.front()[v].raw();
      });
    };
    common.push_back(std::ranges::none_of(
                         written, [&](ValueId id) { return varies_[static_cast<size_t>(id)]; }) &&
                     std::ranges::all_of(plan_.read(plan_.order[i], program_.graph), one_object));
    for (ValueId id : written) differs[static_cast<size_t>(id)] = !common.back();
  }
  return common;
}

void Interpreter::run_section(OpRun& run, size_t first, size_t last) {
  const ValueId only = plan_.order[first].op;
  const bool collective = only != kNoValue && program_.graph.op(only).kind == OpKind::kAllReduce;
  const std::vector<bool> common = collective || mine_.size() <= block_size_
                                       ? std::vector<bool>(last - first, true)
                                       : find_common(first, last);
  if (std::ranges::find(common, false) == common.end()) {
    for (size_t i = first; i < last; ++i) {
      run_unit(run, i, nullptr);
      release(unit_dies_[i]);
    }
    return;
  }
  // What replicas have in common comes first. It is not written over what the blocks have yet to
  // read, and what they read is released after the last of them.
  in_place_ = false;
  for (size_t i = first; i < last; ++i) {
    if (common[i - first]) run_unit(run, i, nullptr);
  }
  in_place_ = true;
  for (size_t r = mine_.first; r < mine_.last; r = block_.last) {
    block_ = {r, std::min(r + block_size_, mine_.last)};
    for (size_t i = first; i < last; ++i) {
      if (!common[i - first]) run_unit(run, i, nullptr);
    }
  }
  block_ = mine_;
  for (size_t i = first; i < last; ++i) release(unit_dies_[i]);
}

}  // namespace twinrun
