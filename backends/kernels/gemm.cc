// Dense matrix products: cuts C into pieces for threads, and operands into blocks for the caches.
#include "backends/kernels/gemm.h"

namespace twinrun {

GemmPlan::GemmPlan(const KernelContext& context)
    : GemmPlan(context, gemm_kernels(active_isa(), context.arithmetic.dot != DotArithmetic::kF32)) {
}
GemmPlan::GemmPlan(const KernelContext& context, const GemmKernels& kernels)
    : context(context),
      bf16(context.arithmetic.dot != DotArithmetic::kF32),
      flush(context.arithmetic.flush || bf16),
      kernels(kernels) {}

void multiply_block(const GemmPlan& plan, const BlockProduct& p, const RowTile* tiles,
                    int64_t tile_count) {
  const FlushScope scope(plan.flush && !plan.amx());  // AMX flushes by itself
  if (plan.images()) {
    auto* images = scratch<uint16_t>(Scratch::kTileImages, kImageSpace);
    return plan.kernels.block(p, tiles, tile_count, images, plan.context.arithmetic.poison);
  }
  const GemmTileFunction tile = plan.bf16 ? plan.kernels.bf16 : plan.kernels.f32;
  const int64_t panel = plan.panel();
  GemmTile t;
  t.row_stride = p.row_stride;
  t.k_offset = p.offsets;
  t.k = p.k;
  t.c_stride = p.c_stride;
  t.start = p.start;
  t.finish = p.finish;
  const int64_t b_rows = p.b_rows > 0 ? p.b_rows : p.k;
  for (int64_t j = 0; j < p.n; j += panel) {
    t.cols = static_cast<int>(std::min(panel, p.n - j));
    t.b_stride = p.b_stride > 0 ? p.b_stride : plan.packed_columns(t.cols);
    t.b = p.b_stride > 0 ? p.b + j : p.b + j * b_rows + p.b_first * t.b_stride;
    for (int64_t i = 0; i < tile_count; ++i) {
      t.a = p.a + tiles[i].a;
      t.c = p.c + tiles[i].c_row * p.c_stride + j;
      t.rows = tiles[i].rows;
      t.next_a = p.far_a && j == 0 && i + 1 < tile_count ? p.a + tiles[i + 1].a : nullptr;
      t.next_c = i + 1 < tile_count ? p.c + tiles[i + 1].c_row * p.c_stride + j : nullptr;
      tile(t);
    }
  }
}

void add_partial(const GemmPlan& plan, float* c, const float* t, int64_t n, bool zero_nan) {
  for_ranges(plan.context, n, 1, [&](int64_t begin, int64_t end) {
    const FlushScope scope(plan.flush);
    for (int64_t i = begin; i < end; ++i) {
      const float x = zero_nan && c[i] != c[i] ? 0.0f : c[i];
      c[i] = canonical(x + t[i]);
    }
  });
}

namespace {

constexpr int64_t kPackedLimit = int64_t{4} << 20;  // floats of B packed at once
constexpr int64_t kFewRows = 252;        // rows of A up to which each piece packs its own part of B
constexpr int64_t kPieceRows = 504;      // rows of A that stay in L2
constexpr int64_t kFewRowsBlockK = 256;  // size of k blocks where a piece packs its own part of B
constexpr int64_t kRowsAhead = 8;        // rows of A prefetched ahead of the copy
constexpr int64_t kPiecePanels = 16;     // panels of B that stay in L2

// Rows of A over one k block, in the form that tiles read.
struct RowBlock {
  const float* data;
  int64_t row_stride;
  bool in_place = false;
};

// Returns rows [m0, m1) and k in [k0, k1) of A: in place where tiles can read them there, else
// copied next to each other, with padding after each line so that lines fall into different cache
// sets. Writes the offset of each k.
RowBlock rows_of_a(const GemmPlan& plan, const MatrixA& a, Term term, int64_t m0, int64_t m1,
                   int64_t k0, int64_t k1, int64_t* offsets) {
  const int64_t m = m1 - m0, k = k1 - k0;
  if (plan.kernels.rounds_a && plan.reads_a(term)) {  // making tile images is the copy
    const bool rows = a.k_stride == 1;
    for (int64_t q = 0; q < k; ++q) offsets[q] = q * a.k_stride;
    return {a.data + m0 * (rows ? a.row_stride : 1) + k0 * a.k_stride, rows ? a.row_stride : 1};
  }
  auto* out = scratch<float>(Scratch::kPackedA, static_cast<size_t>((m + 32) * (kBlockK + 32)));
  if (a.k_stride == 1) {
    for (int64_t q = 0; q < k; ++q) offsets[q] = q;
    // Rows a multiple of 1 KiB apart share few cache sets and are copied.
    const bool in_place = term == Term::kWhole && a.row_stride % 256 != 0;
    if (in_place) return {a.data + m0 * a.row_stride + k0, a.row_stride, true};
    const int64_t pitch = (k + 15) / 16 * 16 + 16;
    for (int64_t i = 0; i < m; ++i) {
      const float* row = a.data + (m0 + i) * a.row_stride + k0;
      if (i + kRowsAhead < m) prefetch(row + kRowsAhead * a.row_stride, k);
      copy_term(term, row, out + i * pitch, k);
    }
    return {out, pitch};
  }
  const int64_t pitch = (m + 15) / 16 * 16 + 16;
  for (int64_t q = 0; q < k; ++q) {
    copy_term(term, a.data + (k0 + q) * a.k_stride + m0, out + q * pitch, m);
    offsets[q] = q * pitch;
  }
  return {out, 1};
}

// Computes rows [m0, m1), columns [n0, n1) of C over all k in blocks of `block`; packed(k0, k1)
// returns those columns of B, packed.
template <typename F>
void piece_of_c(const GemmPlan& plan, const DenseProblem& p, Terms terms, int64_t m0, int64_t m1,
                int64_t n0, int64_t n1, int64_t block, F packed) {
  const int64_t max_rows = plan.kernels.rows;
  auto* offsets = scratch<int64_t>(Scratch::kOffsets, kBlockK);
  auto* tiles = scratch<RowTile>(Scratch::kTiles, static_cast<size_t>(m1 - m0));
  const int64_t tile_count = (m1 - m0 + max_rows - 1) / max_rows;
  for (int64_t k0 = 0; k0 < p.k; k0 += block) {
    const int64_t k1 = std::min(p.k, k0 + block);
    const RowBlock a = rows_of_a(plan, p.a, terms.a, m0, m1, k0, k1, offsets);
    for (int64_t i = 0; i < tile_count; ++i) {
      const int64_t begin = plan.cut(m1 - m0, i, tile_count),
                    end = plan.cut(m1 - m0, i + 1, tile_count);
      tiles[i] = {begin * a.row_stride, m0 + begin, static_cast<int>(end - begin)};
    }
    multiply_block(plan,
                   {a.data, a.row_stride, offsets, k1 - k0, packed(k0, k1), p.c + n0, p.c_stride,
                    n1 - n0, k0 == 0, k1 == p.k, 0, 0, 0, a.in_place},
                   tiles, tile_count);
  }
}

// For few rows of A: each piece is a range of columns and packs its own part of B, which is used
// while it is in L2.
void few_rows(const GemmPlan& plan, const DenseProblem& p, Terms terms) {
  const int64_t panel = plan.panel(), panels = (p.n + panel - 1) / panel,
                threads = threads_of(plan.context);
  const int64_t rounds = (panels + kPiecePanels * threads - 1) / (kPiecePanels * threads);
  const int64_t pieces = std::min(panels, rounds * threads);
  for_pieces(plan.context, pieces, p.m * p.n * p.k / 16, [&](int64_t piece) {
    const int64_t n0 = panels * piece / pieces * panel;
    const int64_t n1 = std::min(p.n, panels * (piece + 1) / pieces * panel);
    auto* b = scratch<float>(Scratch::kPackedB, static_cast<size_t>(plan.packed_size(
                                                    plan.packed_columns(n1 - n0), kFewRowsBlockK)));
    piece_of_c(plan, p, terms, 0, p.m, n0, n1, kFewRowsBlockK, [&](int64_t k0, int64_t k1) {
      pack_b(plan, p.b, terms.b, k0, k1, n0, n1, b);
      return b;
    });
  });
}

// For many rows of A: all threads together pack B, and each piece is a range of rows.
void many_rows(const GemmPlan& plan, const DenseProblem& p, Terms terms) {
  const int64_t panel = plan.panel(), max_rows = plan.kernels.rows;
  const int64_t columns = std::max(panel, kPackedLimit / p.k / panel * panel);
  const int64_t threads = threads_of(plan.context);
  for (int64_t n0 = 0; n0 < p.n; n0 += columns) {
    const int64_t n1 = std::min(p.n, n0 + columns);
    const PackedB b(plan, p.b, terms.b, p.k, n0, n1);
    const int64_t rounds =
        std::max<int64_t>(1, (p.m + kPieceRows * threads - 1) / (kPieceRows * threads));
    const int64_t pieces = std::min((p.m + max_rows - 1) / max_rows, rounds * threads);
    for_pieces(plan.context, pieces, p.m * (n1 - n0) * p.k / 16, [&](int64_t piece) {
      piece_of_c(plan, p, terms, plan.cut(p.m, piece, pieces), plan.cut(p.m, piece + 1, pieces), n0,
                 n1, kBlockK, [&](int64_t k0, int64_t k1) { return b.block(k0, k1, 0); });
    });
  }
}

}  // namespace

void dense_gemm(const GemmPlan& plan, const DenseProblem& p, Terms terms) {
  if (p.m == 0 || p.n == 0) return;
  if (p.k == 0) {
    for (int64_t i = 0; i < p.m; ++i) std::fill_n(p.c + i * p.c_stride, p.n, 0.0f);
    return;
  }
  const int64_t panels = (p.n + plan.panel() - 1) / plan.panel();
  const int64_t row_tiles = (p.m + plan.kernels.rows - 1) / plan.kernels.rows;
  const bool columns_for_all = panels >= std::min<int64_t>(threads_of(plan.context), row_tiles);
  if (p.m <= kFewRows && columns_for_all) return few_rows(plan, p, terms);
  many_rows(plan, p, terms);
}

}  // namespace twinrun
