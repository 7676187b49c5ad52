// Draws conforming engines of a declared arithmetic and evaluates single elements with them.
#include "harness/lockstep/conforming.h"

#include "backends/variants/variant.h"

namespace twinrun {
namespace {

// The longest chains of additions that a declaration allows. They have the largest errors, and
// random orders may miss them.
Variant longest_chains(Variant v, bool fused) {
  const Capabilities& d = v.declared;
  const bool blocks = d.block32_order && d.precision != DotPrecision::kF32;
  if (!blocks) {
    v.dot = v.convolution = v.kernel_gradient = {.fused = fused};
    if (d.ours || d.block32_order) v.kernel_gradient.segment = 4096;
  }
  v.reduction = d.ours ? variants::Order{.segment = 4096, .lanes = 16, .lanes_tree = true}
                       : variants::Order{};
  v.scatter = v.collective = {};
  v.ring = -1;
  return v;
}

}  // namespace

ConformingElements conforming_engines(const Capabilities& declared, ThreadPool* pool) {
  return [declared, pool](uint64_t draw, int members, const Op& op, std::span<const Tensor> inputs,
                          std::span<const int64_t> elements) {
    std::vector<Variant> engines;
    for (int i = 0; i < members; ++i) {
      const uint64_t seed = draw * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(i);
      engines.push_back(variant_within(seed, declared));
      if (i < 2) engines.back() = longest_chains(std::move(engines.back()), i == 0);
    }
    return variants_elements(engines, op, inputs, elements, pool);
  };
}

}  // namespace twinrun
