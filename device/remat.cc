// Rematerialisation of fused elementwise results, and of segments of the forward pass.
#include "device/remat.h"

#include <algorithm>
#include <limits>

namespace twinrun::tpu {
namespace {

constexpr int kMaxSegments = 64;
// Activations smaller than this part (1 / kWorthwhile) of the largest one are not recomputed.
constexpr int kWorthwhile = 100;
constexpr int kNever = std::numeric_limits<int>::max();

// The last unit of the forward pass and the first one of the backward pass that need a value.
struct Gap {
  int forward = -1;
  int backward = kNever;
};

Gap gap_of(const HeldValue& value, const std::vector<StepUnit>& units) {
  Gap gap{value.buffer.first, kNever};
  for (int reader : value.readers) {
    if (units[static_cast<size_t>(reader)].forward) {
      gap.forward = reader;
    } else {
      gap.backward = std::min(gap.backward, reader);
    }
  }
  return gap;
}

// An activation whose buffer the forward pass does not reuse for another value.
bool is_activation(const HeldValue& value, const std::vector<StepUnit>& units) {
  return value.buffer.use == HbmUse::kActivations &&
         (value.overwritten == kNever || !units[static_cast<size_t>(value.overwritten)].forward);
}

void split(std::vector<HeldValue>& values, size_t index, int forward, int backward) {
  HeldValue again = values[index];
  values[index].buffer.last = forward;
  again.buffer.first = backward;
  again.buffer.op += ".remat";
  values.push_back(std::move(again));
}

void prolong(HeldValue& value, int to) { value.buffer.last = std::max(value.buffer.last, to); }

// For each unit, the values that it reads.
std::vector<std::vector<size_t>> reads_of(const std::vector<HeldValue>& values, size_t units) {
  std::vector<std::vector<size_t>> reads(units);
  for (size_t i = 0; i < values.size(); ++i) {
    for (int reader : values[i].readers) reads[static_cast<size_t>(reader)].push_back(i);
  }
  return reads;
}

// Drops results of fused forward units whose sources are still held when the results are needed
// again. Sources may be held longer for it, if they are small (up to an eighth of the result).
double drop_elementwise(const std::vector<StepUnit>& units, std::vector<HeldValue>& values) {
  const auto reads = reads_of(values, units.size());
  std::vector<bool> dropped(values.size(), false), paid(units.size(), false);
  double flops = 0;
  const size_t n = values.size();
  int64_t largest = 0;
  for (const HeldValue& value : values) {
    if (is_activation(value, units)) largest = std::max(largest, value.buffer.bytes);
  }
  for (size_t i = 0; i < n; ++i) {
    if (values[i].buffer.bytes < largest / kWorthwhile) continue;
    const int writer = values[i].buffer.first;
    const Gap gap = gap_of(values[i], units);
    const StepUnit& unit = units[static_cast<size_t>(writer)];
    if (!is_activation(values[i], units) || !unit.fused || !unit.forward ||
        gap.backward == kNever || gap.backward <= gap.forward + 1)
      continue;
    bool there = true;
    int64_t longer = 0;
    for (size_t source : reads[static_cast<size_t>(writer)]) {
      there = there && !dropped[source];
      if (values[source].buffer.last < gap.backward || values[source].overwritten < gap.backward)
        longer += values[source].buffer.bytes;
    }
    if (!there || longer > values[i].buffer.bytes / 8) continue;
    for (size_t source : reads[static_cast<size_t>(writer)]) prolong(values[source], gap.backward);
    dropped[i] = true;
    if (!paid[static_cast<size_t>(writer)]) flops += unit.flops;
    paid[static_cast<size_t>(writer)] = true;
    split(values, i, gap.forward, gap.backward);
  }
  return flops;
}

// Assigns the forward units to `count` segments with about equal bytes of activations; -1: not a
// forward unit.
std::vector<int> stretches(const std::vector<StepUnit>& units, const std::vector<HeldValue>& values,
                           int count) {
  std::vector<int64_t> written(units.size(), 0);
  int64_t total = 0;
  for (const HeldValue& value : values) {
    if (value.buffer.use != HbmUse::kActivations) continue;
    written[static_cast<size_t>(value.buffer.first)] += value.buffer.bytes;
    total += value.buffer.bytes;
  }
  std::vector<int> stretch(units.size(), -1);
  int64_t before = 0;
  for (size_t u = 0; u < units.size(); ++u) {
    if (units[u].forward)
      stretch[u] = static_cast<int>(std::min<double>(
          count - 1,
          static_cast<double>(before) * count / static_cast<double>(std::max<int64_t>(1, total))));
    before += written[u];
  }
  return stretch;
}

double drop_segments(const std::vector<StepUnit>& units, std::vector<HeldValue>& values,
                     int count) {
  const std::vector<int> stretch = stretches(units, values, count);
  const size_t n = values.size();
  std::vector<int> start(static_cast<size_t>(count), kNever);  // when a segment is recomputed
  std::vector<Gap> gaps;
  std::vector<bool> dropped(n, false);
  for (size_t i = 0; i < n; ++i) {
    gaps.push_back(gap_of(values[i], units));
    const int mine = stretch[static_cast<size_t>(
        std::min<int>(values[i].buffer.first, static_cast<int>(units.size()) - 1))];
    if (!is_activation(values[i], units) || mine < 0 || mine == count - 1 ||
        gaps[i].backward == kNever || stretch[static_cast<size_t>(gaps[i].forward)] != mine)
      continue;
    dropped[i] = true;
    start[static_cast<size_t>(mine)] = std::min(start[static_cast<size_t>(mine)], gaps[i].backward);
  }
  for (size_t i = 0; i < n; ++i) {
    if (dropped[i]) {
      const int mine = stretch[static_cast<size_t>(values[i].buffer.first)];
      split(values, i, gaps[i].forward, start[static_cast<size_t>(mine)]);
      continue;
    }
    // A value that a segment reads from an earlier one is held until that segment is recomputed.
    const int mine = values[i].buffer.use == HbmUse::kInfeed
                         ? -1
                         : stretch[static_cast<size_t>(values[i].buffer.first)];
    for (int reader : values[i].readers) {
      const int theirs = stretch[static_cast<size_t>(reader)];
      if (theirs > mine && start[static_cast<size_t>(theirs)] != kNever)
        prolong(values[i], start[static_cast<size_t>(theirs)]);
    }
  }
  double flops = 0;
  for (size_t u = 0; u < units.size(); ++u) {
    if (stretch[u] >= 0 && start[static_cast<size_t>(stretch[u])] != kNever)
      flops += units[u].flops;
  }
  return flops;
}

}  // namespace

HbmPeak peak_of(const std::vector<HeldValue>& values, int units) {
  std::vector<int64_t> change(static_cast<size_t>(units) + 2, 0);
  for (const HeldValue& value : values) {
    change[static_cast<size_t>(value.buffer.first)] += value.buffer.bytes;
    change[static_cast<size_t>(value.buffer.last) + 1] -= value.buffer.bytes;
  }
  HbmPeak peak{0, -1};
  int64_t held = 0;
  for (int unit = 0; unit <= units; ++unit) {
    held += change[static_cast<size_t>(unit)];
    if (held > peak.bytes && (unit < units || units == 0)) peak = {unit, held};
  }
  return peak;
}

double rematerialise(Rematerialise kind, const std::vector<StepUnit>& units,
                     std::vector<HeldValue>& values) {
  if (kind == Rematerialise::kNothing || units.empty()) return 0;
  if (kind == Rematerialise::kElementwise) return drop_elementwise(units, values);
  double flops = 0;
  std::vector<HeldValue> best = values;
  HbmPeak lowest = peak_of(values, static_cast<int>(units.size()));
  for (int count = 2; count <= kMaxSegments; ++count) {
    std::vector<HeldValue> split = values;
    const double price = drop_segments(units, split, count);
    const HbmPeak peak = peak_of(split, static_cast<int>(units.size()));
    if (peak.bytes >= lowest.bytes) continue;
    lowest = peak;
    flops = price;
    best = std::move(split);
  }
  values = std::move(best);
  return flops;
}

}  // namespace twinrun::tpu
