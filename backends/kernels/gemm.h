// Blocked matrix products in the contract's order: packing, cache blocks, threads. Called by dot.cc
// and the convolution kernels.
//
//   GemmPlan plan(context);
//   dense_gemm(plan, {m, n, k, a, b, c, n}, {.a = kWhole, .b = kWhole});
//
// Blocking changes only the speed: each chain's accumulator is carried through C from one k block
// to the next.
#pragma once

#include <cstdint>

#include "backends/kernels/arithmetic.h"
#include "backends/kernels/gemm_micro.h"
#include "backends/kernels/scratch.h"

namespace twinrun {

const GemmKernels& gemm_kernels(Isa isa, bool bf16);

// Whether kernels with a block function give the bits of the modelled AMX tiles (gemm_amx_model.h)
// on a fixed set of products: cancellation, flushing, infinities, NaN, overflow, odd k. Operands
// are packed as for any product.
bool keeps_amx_order(const GemmKernels& kernels);

// Which part of an operand enters a product: the binary32 itself, or one of the bf16 terms that it
// is split into (first = bf16(x), second = bf16(x - first), third = bf16((x - first) - second)).
enum class Term : uint8_t { kWhole, kFirst, kSecond, kThird };
struct Terms {
  Term a = Term::kWhole, b = Term::kWhole;
};

// dst[i] = the given term of src[i]. Vectorised; denormals are zeros in every bf16 term.
void copy_term(Term term, const float* src, float* dst, int64_t n);

// Prefetches n floats into L2 that copy_term reads soon; without it, a copy from memory stalls.
inline void prefetch(const float* src, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) __builtin_prefetch(src + i, /*write=*/0, /*locality=*/2);
}

// Element (row, k) of A at data + row * row_stride + k * k_stride; one of the strides is 1.
struct MatrixA {
  const float* data;
  int64_t row_stride, k_stride;
};

// Element (k, column) of B at data + (k / run) * run_stride + (k % run) * k_stride + column *
// column_stride; one of k_stride and column_stride is 1.
struct MatrixB {
  const float* data;
  int64_t column_stride, k_stride;
  int64_t run, run_stride;
};

struct GemmPlan {
  const KernelContext& context;
  bool bf16;   // bf16 operands, accumulated in AMX order
  bool flush;  // FTZ and DAZ are set while computing
  const GemmKernels& kernels;
  explicit GemmPlan(const KernelContext& context);
  GemmPlan(const KernelContext& context, const GemmKernels& kernels);  // for tests
  // Whether operands are packed as tile images (gemm_images.h); for AMX, or for VDPBF16PS.
  bool images() const { return kernels.packing != Packing::kFloats; }
  bool amx() const { return kernels.packing == Packing::kPairs; }
  // Whether the tiles read this term of A from the tensor itself.
  bool reads_a(Term term) const {
    return term == Term::kWhole || (term == Term::kFirst && kernels.rounds_a);
  }
  int panel() const { return 2 * kernels.lanes; }
  // The first row of part i when n rows are cut into `parts` parts: a multiple of the tile's rows
  // for AMX; else the parts are even.
  int64_t cut(int64_t n, int64_t i, int64_t parts) const {
    if (!amx()) return n * i / parts;
    const int64_t tiles = (n + kernels.rows - 1) / kernels.rows;
    return std::min(n, tiles * i / parts * kernels.rows);
  }
  int64_t packed_columns(int64_t n) const {
    return (n + kernels.lanes - 1) / kernels.lanes * kernels.lanes;
  }
  // Floats that k rows of `columns` packed columns take.
  int64_t packed_size(int64_t columns, int64_t k) const {
    return images() ? columns * ((k + 31) / 32 * 16) : columns * k;
  }
};

// Packs columns [n0, n1) of k in [k0, k1) into panels of panel() columns; the last panel may be
// only `lanes` wide. Panel p begins at packed_size(p * panel(), k1 - k0).
void pack_b(const GemmPlan& plan, const MatrixB& b, Term term, int64_t k0, int64_t k1, int64_t n0,
            int64_t n1, float* out);

// Columns [n0, n1) of B over all k, packed by all threads: k blocks of kBlockK, each cut into
// panels.
class PackedB {
 public:
  PackedB(const GemmPlan& plan, const MatrixB& b, Term term, int64_t k, int64_t n0, int64_t n1);
  // The packed block of k in [k0, k1), from column j0 (a multiple of panel()) on.
  const float* block(int64_t k0, int64_t k1, int64_t j0) const {
    return data_ + plan_.packed_size(columns_, k0) + plan_.packed_size(j0, k1 - k0);
  }

 private:
  const GemmPlan& plan_;
  float* data_;
  int64_t columns_;
};

void multiply_block(const GemmPlan& plan, const BlockProduct& product, const RowTile* tiles,
                    int64_t tile_count);

// A product C = A B over one segment of k: A is m x k, B is k x n.
struct DenseProblem {
  int64_t m, n, k;
  MatrixA a;
  MatrixB b;
  float* c;
  int64_t c_stride;
};
void dense_gemm(const GemmPlan& plan, const DenseProblem& problem, Terms terms);

// c[i] += t[i], where both are sums of segments or passes; NaNs become canonical. With `zero_nan` a
// NaN of c is replaced by +0 first.
void add_partial(const GemmPlan& plan, float* c, const float* t, int64_t n, bool zero_nan);

// Runs `product(terms, out)` once (f32, bf16) or once per pass (bf16x3, bf16x6), and adds the
// passes up in c.
template <typename F>
void run_passes(const GemmPlan& plan, float* c, int64_t elements, F&& product) {
  constexpr Term k1 = Term::kFirst, k2 = Term::kSecond, k3 = Term::kThird;
  const auto passes = [&](std::initializer_list<Terms> list) {
    const Terms* pass = list.begin();
    product(*pass, c);
    float* t = scratch<float>(Scratch::kPass, static_cast<size_t>(elements));
    while (++pass != list.end()) {
      product(*pass, t);
      add_partial(plan, c, t, elements, pass + 1 == list.end());
    }
  };
  switch (plan.context.arithmetic.dot) {
    case DotArithmetic::kF32:
      return product(Terms{}, c);
    case DotArithmetic::kBf16:
      return product(Terms{k1, k1}, c);
    case DotArithmetic::kBf16x3:
      return passes({{k2, k1}, {k1, k2}, {k1, k1}});
    case DotArithmetic::kBf16x6:
      return passes({{k2, k2}, {k3, k1}, {k1, k3}, {k2, k1}, {k1, k2}, {k1, k1}});
  }
}

}  // namespace twinrun
