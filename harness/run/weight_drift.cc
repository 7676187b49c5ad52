// Keeps the reference's weights at some steps, and measures how far the subject's are from them.
#include "harness/run/weight_drift.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/tensors/distance.h"

namespace twinrun {
namespace {

// The relative distance; infinite where the reference is zero and the weights are not.
double distance_of(const Tensor& weights, const Tensor& reference) {
  if (weights.same_bits(reference)) return 0;
  RelativeDistance distance, size;
  distance.add(weights, reference);
  size.add(reference, weights);
  return distance.value() == 0 && size.value() > 0 ? INFINITY : distance.value();
}

}  // namespace

WeightKeeper::WeightKeeper(const Program& program, int64_t steps) {
  int64_t bytes = 1;
  for (size_t i = 0; i < program.state.size(); ++i) {
    const StateVar& var = program.state[i];
    if (var.role != StateRole::kParameter) continue;
    variables_.push_back({var.name, var.type, i});
    bytes += static_cast<int64_t>(var.type.bytes());
  }
  constexpr int64_t kMax = 24, kMemory = int64_t{256} << 20;
  const int64_t count = std::min(kMax, kMemory / bytes);
  if (count == 1 && steps > 1) return;  // a picture needs at least two columns
  wanted_ = spread_steps(steps, count);
}

void WeightKeeper::end_step(int64_t step, const States& after, const StepOutputs&) {
  if (!std::ranges::binary_search(wanted_, step)) return;
  std::vector<Tensor>& mine = kept_[step];
  for (const Variable& v : variables_) mine.push_back(after[0].vars[v.place]);
}

WeightWatch::WeightWatch(StepObserver& inner, const WeightKeeper& kept, const Program& program,
                         std::string pair)
    : inner_(inner), kept_(kept) {
  drift_.pair = std::move(pair);
  for (size_t k = 0; k < kept.variables_.size(); ++k) {
    const WeightKeeper::Variable& v = kept.variables_[k];
    const int place = program.state_index(v.name);
    if (place < 0 || program.state[static_cast<size_t>(place)].type != v.type) continue;
    places_.emplace_back(static_cast<size_t>(place), k);
    drift_.rows.push_back({v.name, {}});
  }
}

void WeightWatch::end_step(int64_t step, const States& after, const StepOutputs& outputs) {
  if (const auto theirs = kept_.kept_.find(step); theirs != kept_.kept_.end()) {
    drift_.steps.push_back(step);
    for (size_t row = 0; row < places_.size(); ++row) {
      const auto [mine, kept] = places_[row];
      const Tensor& reference = theirs->second[kept];
      double farthest = 0;
      for (size_t core = 0; core < after.size(); ++core) {
        const Tensor& weights = after[core].vars[mine];
        if (core > 0 && weights.raw() == after[0].vars[mine].raw()) continue;
        const double value = distance_of(weights, reference);
        if (!std::isnan(farthest) && !(value <= farthest)) farthest = value;
      }
      // Three digits suffice for a picture.
      drift_.rows[row].distance.push_back(
          std::isfinite(farthest) ? std::stod(fmt::format("{:.3g}", farthest)) : farthest);
    }
  }
  inner_.end_step(step, after, outputs);
}

}  // namespace twinrun
