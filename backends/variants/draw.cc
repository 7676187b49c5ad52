// Draws the declaration and the choices of a variant from its seed.
#include <bit>
#include <string>

#include "backends/variants/variant.h"
#include "program/base/philox.h"

namespace twinrun {
namespace {

using variants::Order;

// A sequence of random choices from a seed.
class Choices {
 public:
  Choices(uint64_t seed, uint32_t purpose) : key_{seed, kStreamVariant}, purpose_(purpose) {}
  uint32_t below(uint32_t n) { return bounded(word(), n); }
  bool yes(uint32_t one_in = 2) { return below(one_in) == 0; }
  double unit() { return uniform(word()); }

 private:
  uint32_t word() { return draw(key_, 0, purpose_, next_++); }
  RandomKey key_;
  uint32_t purpose_;
  uint64_t next_ = 0;
};
constexpr uint32_t kDeclares = 0, kChooses = 1, kOrders = 2;

// Any order that Order can describe within these sizes.
Order any_order(Choices& c) {
  Order o;
  switch (c.below(6)) {
    case 0:  // one chain
      break;
    case 1:  // blocks of k, as for a cache or a register file; 128 is the depth of a systolic array
      o.block = int64_t{4} << c.below(7);
      o.blocks_tree = c.yes();
      break;
    case 2:  // lanes of a vector unit; 2 lanes are the even and the odd terms
      o.lanes = 2 << c.below(5);
      o.lanes_tree = c.yes();
      break;
    case 3:  // blocks and lanes
      o.block = int64_t{32} << c.below(4);
      o.lanes = 2 << c.below(4);
      o.lanes_tree = c.yes();
      o.blocks_tree = c.yes();
      break;
    case 4:  // pairwise
      o.block = 1;
      o.blocks_tree = true;
      break;
    default:  // a chain in each block, the blocks pairwise
      o.block = int64_t{8} << c.below(5);
      o.blocks_tree = true;
  }
  o.reversed = c.yes();
  o.fused = c.yes();
  return o;
}

// An order within the depth of the contract's reductions (docs/method/bounds.md): pairwise, or at
// least 16 lanes and a tree.
Order shallow_order(Choices& c) {
  Order o;
  o.segment = 4096;
  if (c.yes(3)) {
    o.block = 1;
    o.blocks_tree = true;
  } else {
    o.lanes = 16 << c.below(3);
    o.lanes_tree = true;
  }
  o.reversed = c.yes();
  return o;
}

void choose_orders(Variant& v, uint64_t run) {
  Choices c(v.seed, kOrders + static_cast<uint32_t>(run));
  const Capabilities& d = v.declared;
  v.dot = any_order(c);
  v.convolution = any_order(c);
  v.kernel_gradient = any_order(c);
  if (d.ours || d.block32_order) v.kernel_gradient.segment = 4096;
  if (d.block32_order && d.precision != DotPrecision::kF32) {
    v.dot = {.block = 32, .lanes = 2};
    v.convolution = v.kernel_gradient = v.dot;
    v.kernel_gradient.segment = 4096;
  }
  v.reduction = d.ours ? shallow_order(c) : any_order(c);
  v.scatter = any_order(c);
  v.collective = any_order(c);
  v.ring = c.yes() ? static_cast<int>(c.below(64)) : -1;
  if (v.ring >= 0) v.collective = {};
  v.passes_reversed = c.yes();
}

std::string settings_of(const Capabilities& d) {
  std::string s = "precision=" + std::string(to_string(d.precision));
  if (d.split == DotSplit::kTruncated) s += " split=truncated";
  if (d.flush) s += " flush";
  s += " ulps=" + std::string(d.elementary_ulps == 0.5
                                  ? "0.5"
                                  : std::to_string(static_cast<int>(d.elementary_ulps)));
  if (d.contracts) s += " contracts";
  if (d.one_pass_variance) s += " one_pass_variance";
  if (!d.deterministic) s += " nondeterministic";
  return s;
}

}  // namespace

Variant variant_within(uint64_t seed, const Capabilities& declared) {
  Variant v;
  v.seed = seed;
  v.declared = declared;
  Choices c(seed, kChooses);
  // What the declared ulps leave beyond the final rounding of half an ulp. A little less, for the
  // error of the binary64 arithmetic that perturbs the value.
  const double room = declared.elementary_ulps - 0.5 - 0x1p-16;
  const double share = 0.25 * static_cast<double>(1 + c.below(4));
  v.off_by = room > 0 ? room * share : 0;
  v.side = static_cast<int>(c.below(3)) - 1;
  v.coarse = c.yes() ? 0 : static_cast<int>(8 + c.below(9));
  v.rsqrt_once = c.yes();
  v.fuses = declared.contracts && !c.yes(4);
  choose_orders(v, 0);
  return v;
}

Variant draw_variant(uint64_t seed, DotPrecision precision) {
  Choices c(seed, kDeclares);
  Capabilities d;
  d.name = "honest:" + std::to_string(seed);
  d.precision = precision;
  d.split = c.yes(3) ? DotSplit::kTruncated : DotSplit::kNearest;
  if (precision == DotPrecision::kF32 || precision == DotPrecision::kBf16)
    d.split = DotSplit::kNearest;
  d.flush = c.yes();
  d.elementary_ulps = c.yes(4) ? 0.5 : static_cast<double>(1 << c.below(3));
  d.contracts = c.yes();
  d.one_pass_variance = c.yes(3);
  d.max_cores = 1 << 16;
  d.deterministic = !c.yes(8);
  d.ours = false;
  d.settings = settings_of(d);
  return variant_within(seed, d);
}

Variant variant_of_run(const Variant& variant, uint64_t run) {
  Variant v = variant;
  if (!v.declared.deterministic) choose_orders(v, run);
  return v;
}

}  // namespace twinrun
