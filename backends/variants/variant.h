// Honest variants: engines that keep what they declare, and differ in all that they don't. A seed draws one: in which order
// sums are added, whether products are fused into them, how far off exp and its kind are. They are the subjects and the
// clean pairs of a drill, and the null of every statistic: what the residuals of an honest engine look like.
//
//   Variant v = draw_variant(17, DotPrecision::kBf16);            // any honest engine; its declaration is drawn too
//   Variant w = variant_within(17, engine->capabilities());       // a member of the family that a declaration allows
//   auto backend = make_variant_backend(v, options);              // "honest:17" for make_backend
//   variant_elements(w, op, inputs, {0, 5, 9});                   // three elements of one op's result as w computes it
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backends/core/backend.h"

namespace twinrun {

namespace variants {

// In which order a sum's terms meet, for dots, reductions, windows and collectives alike. They are cut into segments, these
// into blocks of neighbours, a block into lanes (every lanes-th term). A lane is one chain of additions; lanes and blocks are
// then combined one after the other, or by a tree of neighbours; segments one after the other.
struct Order {
  int64_t segment = 0;  // terms; 0: one segment
  int64_t block = 0;    // terms; 0: one block
  int lanes = 1;
  bool reversed = false;  // chains start at their end
  bool lanes_tree = false, blocks_tree = false;
  bool fused = true;  // a product enters its chain unrounded
  bool operator==(const Order&) const = default;
};

}  // namespace variants

struct Variant {
  uint64_t seed = 0;
  Capabilities declared;

  // What it chose.
  variants::Order dot, convolution,
      kernel_gradient;  // the latter also of dots that contract both first dimensions
  variants::Order reduction, scatter, collective;  // scatter: pooling, its gradients, scatter_add
  int ring = -1;  // all-reduce: chunk c starts at core c + 1 + ring; -1: no ring, but `collective`
  bool passes_reversed = false;  // bf16x3, bf16x6: the small products are added in reverse order
  double off_by = 0;        // exp, log, tanh, erf, log1p: up to so many ulps beyond their rounding
  int side = 0;             // of these errors: 0 both, -1 and +1 one only
  int coarse = 0;           // errors are equal for arguments that agree but for so many low bits
  bool rsqrt_once = false;  // rounded once, not root and quotient
  bool fuses = false;       // a multiply into the add or subtract that takes it
};

Variant draw_variant(uint64_t seed, DotPrecision precision);
Variant variant_within(uint64_t seed, const Capabilities& declared);
// What an engine that declares deterministic = false does in its run-th run: the same, in other orders.
Variant variant_of_run(const Variant& variant, uint64_t run);

// max_cores and the name aside, `options` give threads and memory.
std::unique_ptr<Backend> make_variant_backend(const Variant& variant,
                                              const BackendOptions& options);

// Some elements (flat indices) of one op's result on one replica; for all_reduce the inputs are the contributions. f32 and
// bf16 results as numbers. Ops that leave an engine no choice are the contract's.
std::vector<float> variant_elements(const Variant& variant, const Op& op,
                                    std::span<const Tensor> inputs,
                                    std::span<const int64_t> elements);
// The same of many variants of one declaration; operands are gathered once.
std::vector<std::vector<float>> variants_elements(std::span<const Variant> variants, const Op& op,
                                                  std::span<const Tensor> inputs,
                                                  std::span<const int64_t> elements);

namespace variants {

// Does this variant compute the op otherwise than the contract's kernels do?
bool replaces(const Variant& variant, const Op& op);
// The whole result; only of ops that it replaces.
void run_op(const Variant& variant, const Op& op, std::span<const Tensor> inputs, Tensor& output);

}  // namespace variants

}  // namespace twinrun
