// All-reduces that add up the wrong parts. A row of place kEachCopy makes cores differ.
#include <algorithm>

#include "backends/faults/kind.h"
#include "program/base/bits.h"

namespace twinrun {
namespace {

using Place = FaultKind::Place;
constexpr auto kGroup = FaultGroup::kCollectives;

bool collective(const Program& p, ValueId id) {
  return class_of(op_at(p, id).kind) == OpClass::kCollective;
}
bool collective_f32(const Program& p, ValueId id) {
  return collective(p, id) && any_f32(p, id);
}

Tensor& part(Strike& s) { return s.inputs[static_cast<size_t>(s.core())]; }

void drop_core(Strike& s) {
  part(s) = Tensor::zeros(part(s).type());
  s.recompute();
}
void double_core(Strike& s) {
  for (float& v : s.own_input(static_cast<size_t>(s.core()))) v *= 2;
  s.recompute();
}
void stale_core(Strike& s) {
  if (s.previous_inputs.empty()) return;
  part(s) = s.previous_inputs[static_cast<size_t>(s.core())];
  s.recompute();
}
void first_core_only(Strike& s) { s.output = s.inputs[0]; }
void reduced_twice(Strike& s) {
  std::ranges::fill(s.inputs, s.output);
  s.recompute();
}

// The contract's ring (docs/numerics.md, rule 7) with bf16 between the cores.
void wire_bf16(Strike& s) {
  const auto n = static_cast<int64_t>(s.inputs.size()), length = s.output.elements();
  const auto out = s.own_output();
  for (int64_t c = 0; c < n; ++c) {
    for (int64_t i = c * length / n; i < (c + 1) * length / n; ++i) {
      const auto at = static_cast<size_t>(i);
      const auto of = [&](int64_t r) { return s.inputs[static_cast<size_t>(r % n)].as<float>()[at]; };
      float sum = bf16_to_f32(bf16_round(of(c + 1)));
      for (int64_t hop = 2; hop <= n; ++hop) sum = bf16_to_f32(bf16_round(sum + of(c + hop)));
      out[at] = sum;
    }
  }
}

// The cores' shards of the sum are put together in the wrong order: each in its neighbour's place.
void permuted_shards(Strike& s) {
  const auto out = s.own_output();
  std::ranges::rotate(out, out.begin() + static_cast<int64_t>(out.size()) / s.cores());
}

// ---- cores that differ

void no_reduce(Strike& s) { s.output = s.inputs[static_cast<size_t>(s.site.replica)]; }

// The last hop never arrives: one core lacks its neighbour's part.
void one_core_wrong(Strike& s) {
  if (s.site.replica != s.core()) return;
  Tensor& missing = s.inputs[static_cast<size_t>((s.core() + 1) % s.cores())];
  missing = Tensor::zeros(missing.type());
  s.recompute();
}

}  // namespace

std::vector<FaultKind> collective_faults() {
  const auto computation = Place::kComputation, result = Place::kResult, copies = Place::kEachCopy;
  constexpr std::string_view kOn = "all_reduce";
  return {
      {"drop_core", kGroup, kOn, "one core's part (default: the last) is missing", {}, computation,
       false, false, collective, drop_core},
      {"double_core", kGroup, kOn, "one core's part (default: the last) counts twice", {},
       computation, false, false, collective_f32, double_core},
      {"stale_core", kGroup, kOn, "one core's part (default: the last) is that of the step before",
       {}, computation, false, true, collective, stale_core},
      {"first_core_only", kGroup, kOn, "hoisted: the first core's part stands for the sum", {},
       computation, false, false, collective, first_core_only},
      {"no_reduce", kGroup, kOn, "every core (or the one named) keeps its own part", {}, copies,
       false, false, collective, no_reduce},
      {"one_core_wrong", kGroup, kOn,
       "one core's copy of the sum (default: the last) lacks its neighbour's part", {}, copies,
       false, false, collective, one_core_wrong},
      {"reduced_twice", kGroup, kOn, "the sum is summed over the cores once more", {}, result,
       false, false, collective, reduced_twice},
      {"wire_bf16", kGroup, kOn, "the sum is rounded to bf16 at each hop", {}, computation, false,
       false, collective_f32, wire_bf16},
      {"permuted_shards", kGroup, kOn, "the cores' shards of the sum are joined in the wrong order",
       {}, result, false, false, collective_f32, permuted_shards},
  };
}

}  // namespace twinrun
