// Conforming variants: engines that keep every bound that they declare, and differ in everything
// else. A seed draws the order of additions, whether products are fused into sums, and the errors
// of exp and the other elementary functions. Variants serve as fault-free subjects in drills, and
// as the null hypothesis of every statistic: they show what the residuals of a conforming engine
// look like.
//
//   Variant v = draw_variant(17, DotPrecision::kBf16);       // its declaration is drawn too
//   Variant w = variant_within(17, engine->capabilities());  // conforms to this declaration
//   auto backend = make_variant_backend(v, options);         // "honest:17" for make_backend
//   variant_elements(w, op, inputs, {0, 5, 9});              // three elements of one op's result
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backends/core/backend.h"

namespace twinrun {

namespace variants {

// The order in which the terms of a sum are added, for dots, reductions, windows and collectives
// alike. The terms are cut into segments, segments into blocks of neighbours, and blocks into lanes
// (every lanes-th term). A lane is one chain of additions. Lanes and blocks are combined one after
// the other, or by a tree of neighbours; segments one after the other.
struct Order {
  int64_t segment = 0;  // number of terms; 0: one segment
  int64_t block = 0;    // number of terms; 0: one block
  int lanes = 1;
  bool reversed = false;  // chains start at their end
  bool lanes_tree = false, blocks_tree = false;
  bool fused = true;  // products are added unrounded (fused multiply-add)
  bool operator==(const Order&) const = default;
};

}  // namespace variants

struct Variant {
  uint64_t seed = 0;
  Capabilities declared;

  // The choices of this variant. kernel_gradient also holds for dots that contract both first
  // dimensions; scatter for pooling, its gradients and scatter_add.
  variants::Order dot, convolution, kernel_gradient;
  variants::Order reduction, scatter, collective;
  // The all-reduce adds chunk c in ring order from core c + 1 + ring; -1: in order `collective`.
  int ring = -1;
  bool passes_reversed = false;  // bf16x3, bf16x6: the small products are added in reverse order
  // Largest error of exp, log, tanh, erf and log1p in ulps, in addition to the final rounding.
  double off_by = 0;
  int side = 0;             // sign of these errors: 0 both, -1 or +1 only that one
  int coarse = 0;           // arguments that differ only in this many low bits have the same error
  bool rsqrt_once = false;  // rsqrt is rounded once, instead of after root and quotient
  bool fuses = false;       // fuses a multiply into the add or subtract that reads it
};

// Draws a declaration of this precision, then a variant within it.
Variant draw_variant(uint64_t seed, DotPrecision precision);
// Draws a variant that conforms to `declared`.
Variant variant_within(uint64_t seed, const Capabilities& declared);
// The variant in its run-th run: another draw of the orders if it declares deterministic = false,
// otherwise unchanged.
Variant variant_of_run(const Variant& variant, uint64_t run);

// From `options` only threads and poison_memory are used; the arithmetic is the variant's.
std::unique_ptr<Backend> make_variant_backend(const Variant& variant,
                                              const BackendOptions& options);

// Some elements (flat indices) of one op's result on one replica, as numbers. For all_reduce the
// inputs are the contributions of all replicas. Ops that leave an engine no choice are computed by
// the contract's kernels.
std::vector<float> variant_elements(const Variant& variant, const Op& op,
                                    std::span<const Tensor> inputs,
                                    std::span<const int64_t> elements);
// The same for many variants, in parallel if there is a pool. Operands are gathered only once where
// the variants share a declaration.
std::vector<std::vector<float>> variants_elements(std::span<const Variant> variants, const Op& op,
                                                  std::span<const Tensor> inputs,
                                                  std::span<const int64_t> elements,
                                                  ThreadPool* pool = nullptr);

namespace variants {

// Whether this variant computes the op in another way than the contract's kernels.
bool replaces(const Variant& variant, const Op& op);
// Computes the whole result. Only for ops for which replaces() is true.
void run_op(const Variant& variant, const Op& op, std::span<const Tensor> inputs, Tensor& output);

}  // namespace variants

}  // namespace twinrun
