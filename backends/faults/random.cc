// Faults of random ops: bits that do not depend on (seed, step, sample) as they should.
#include <algorithm>

#include "backends/faults/kind.h"
#include "program/base/philox.h"

namespace twinrun {
namespace {

bool draws(const Program& p, ValueId id) { return op_at(p, id).kind == OpKind::kRngUniform; }

void same_bits_every_step(Strike& s) {
  s.inputs[0] = Tensor::zeros(s.inputs[0].type());
  s.recompute();
}
void same_bits_every_sample(Strike& s) {
  Tensor& ids = s.inputs[1] = s.inputs[1].clone();
  std::ranges::fill(ids.as<int32_t>(), ids.elements() == 0 ? 0 : ids.as<int32_t>()[0]);
  s.recompute();
}
void other_seed(Strike& s) {
  const Attrs& a = s.op().attrs;
  const auto step = static_cast<uint32_t>(s.inputs[0].as<int32_t>()[0]);
  const auto ids = std::as_const(s.inputs[1]).as<int32_t>();
  const auto out = s.own_output();
  const size_t row = ids.empty() ? 0 : out.size() / ids.size();
  for (size_t i = 0; i < out.size(); ++i) {
    const uint32_t u = draw({a.seed + 1, kStreamOps + a.stream}, step,
                            static_cast<uint32_t>(ids[i / row]), i % row);
    out[i] = uniform(u);
  }
}

}  // namespace

std::vector<FaultKind> random_faults() {
  constexpr std::string_view kOn = "rng_uniform";
  return {
      computes("same_bits_every_step", kOn, "every step draws the bits of step 0", draws,
               same_bits_every_step),
      computes("same_bits_every_sample", kOn, "every sample has the bits of the core's first",
               draws, same_bits_every_sample),
      computes("other_seed", kOn, "the bits of another seed", draws, other_seed),
  };
}

}  // namespace twinrun
