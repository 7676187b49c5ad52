// Faults of collectives: all-reduces that add the wrong contributions. Kinds with place kEachCopy
// make the cores' results differ.
#include <algorithm>

#include "backends/faults/kind.h"
#include "program/base/bits.h"

namespace twinrun {
namespace {

bool collective(const Program& p, ValueId id) {
  return class_of(op_at(p, id).kind) == OpClass::kCollective;
}
bool collective_f32(const Program& p, ValueId id) {
  return collective(p, id) && computed_f32(p, id);
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

// The ring order of the numeric contract (docs/method/numerics.md, section 6), with the partial sum
// rounded to bf16 at each hop between cores.
void wire_bf16(Strike& s) {
  const auto n = static_cast<int64_t>(s.inputs.size()), length = s.output.elements();
  const auto out = s.own_output();
  for (int64_t c = 0; c < n; ++c) {
    for (int64_t i = c * length / n; i < (c + 1) * length / n; ++i) {
      const auto at = static_cast<size_t>(i);
      const auto of = [&](int64_t r) {
        return s.inputs[static_cast<size_t>(r % n)].as<float>()[at];
      };
      float sum = bf16_to_f32(bf16_round(of(c + 1)));
      for (int64_t hop = 2; hop <= n; ++hop) sum = bf16_to_f32(bf16_round(sum + of(c + hop)));
      out[at] = sum;
    }
  }
}

// Joins the cores' shards of the sum in the wrong order: each shard at its neighbour's position.
void permuted_shards(Strike& s) {
  const auto out = s.own_output();
  std::rotate(out.begin(), out.begin() + static_cast<int64_t>(out.size()) / s.cores(), out.end());
}

// ---- cores that differ

void no_reduce(Strike& s) { s.output = s.inputs[static_cast<size_t>(s.site.replica)]; }

// One core misses the last hop: its copy of the sum lacks its neighbour's contribution.
void one_core_wrong(Strike& s) {
  if (s.site.replica != s.core()) return;
  Tensor& missing = s.inputs[static_cast<size_t>((s.core() + 1) % s.cores())];
  missing = Tensor::zeros(missing.type());
  s.recompute();
}

}  // namespace

std::vector<FaultKind> collective_faults() {
  constexpr std::string_view kOn = "all_reduce";
  return {
      computes("drop_core", kOn, "one core's part (default: the last) is missing", collective,
               drop_core),
      computes("double_core", kOn, "one core's part (default: the last) counts twice",
               collective_f32, double_core),
      remembers(computes("stale_core", kOn,
                         "one core's part (default: the last) is that of the step before",
                         collective, stale_core)),
      computes("first_core_only", kOn, "the first core's part is used in place of the sum",
               collective, first_core_only),
      copies("no_reduce", kOn, "every core (or the one named) keeps its own part", collective,
             no_reduce),
      copies("one_core_wrong", kOn,
             "one core's copy of the sum (default: the last) lacks its neighbour's part",
             collective, one_core_wrong),
      results("reduced_twice", kOn, "the sum is summed over the cores once more", collective,
              reduced_twice),
      computes("wire_bf16", kOn, "the sum is rounded to bf16 at each hop", collective_f32,
               wire_bf16),
      results("permuted_shards", kOn, "the cores' shards of the sum are joined in the wrong order",
              collective_f32, permuted_shards),
  };
}

}  // namespace twinrun
