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
  if (plan.amx()) {
    auto* images = scratch<uint16_t>(Scratch::kTileImages, kImageTiles * kImageSize);
    return plan.kernels.block(p, tiles, tile_count, images, plan.context.arithmetic.poison);
  }
  const GemmTileFunction tile = plan.bf16 ? plan.kernels.bf16 : plan.kernels.f32;
  const int64_t panel = plan.panel();
  const FlushScope scope(plan.flush);
  GemmTile t;
  t.row_stride = p.row_stride;
  t.k_offset = p.offsets;
  t.k = p.k;
  t.c_stride = p.c_stride;
  t.start = p.start;
  t.finish = p.finish;
  for (int64_t j = 0; j < p.n; j += panel) {
    t.b = p.b + j * p.k;
    t.cols = static_cast<int>(std::min(panel, p.n - j));
    for (int64_t i = 0; i < tile_count; ++i) {
      t.a = p.a + tiles[i].a;
      t.c = p.c + tiles[i].c_row * p.c_stride + j;
      t.rows = tiles[i].rows;
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
constexpr int64_t kPieceRows = 252;                 // rows of A that stay in L2

// Copies rows [m0, m1) and k in [k0, k1) of A next to each other; the padding of each line keeps
// lines out of one another's cache set. Returns the view's row stride and writes its offsets.
int64_t copy_a(const MatrixA& a, Term term, int64_t m0, int64_t m1, int64_t k0, int64_t k1,
               float* out, int64_t* offsets) {
  const int64_t m = m1 - m0, k = k1 - k0;
  if (a.k_stride == 1) {
    const int64_t pitch = (k + 15) / 16 * 16 + 16;
    for (int64_t i = 0; i < m; ++i)
      copy_term(term, a.data + (m0 + i) * a.row_stride + k0, out + i * pitch, k);
    for (int64_t q = 0; q < k; ++q) offsets[q] = q;
    return pitch;
  }
  const int64_t pitch = (m + 15) / 16 * 16 + 16;
  for (int64_t q = 0; q < k; ++q) {
    copy_term(term, a.data + (k0 + q) * a.k_stride + m0, out + q * pitch, m);
    offsets[q] = q * pitch;
  }
  return 1;
}

}  // namespace

void dense_gemm(const GemmPlan& plan, const DenseProblem& p, Terms terms) {
  if (p.m == 0 || p.n == 0) return;
  if (p.k == 0) {
    for (int64_t i = 0; i < p.m; ++i) std::fill_n(p.c + i * p.c_stride, p.n, 0.0f);
    return;
  }
  const int64_t panel = plan.panel(), most_rows = plan.kernels.rows;
  const int64_t columns = std::max(panel, kPackedLimit / p.k / panel * panel);
  const int64_t threads = threads_of(plan.context);
  for (int64_t n0 = 0; n0 < p.n; n0 += columns) {
    const int64_t n1 = std::min(p.n, n0 + columns);
    const PackedB packed(plan, p.b, terms.b, p.k, n0, n1);
    // Pieces: blocks of rows, and of columns where the rows are too few for all threads.
    const int64_t rounds =
        std::max<int64_t>(1, (p.m + kPieceRows * threads - 1) / (kPieceRows * threads));
    const int64_t row_tiles = (p.m + most_rows - 1) / most_rows;
    const int64_t row_pieces = std::min(row_tiles, rounds * threads);
    const int64_t panels = (n1 - n0 + panel - 1) / panel;
    const int64_t column_pieces = row_pieces >= threads ? 1 : std::min(panels, threads);
    for_pieces(plan.context, row_pieces * column_pieces, p.m * (n1 - n0) * p.k / 16,
               [&](int64_t piece) {
                 const int64_t r = piece / column_pieces, s = piece % column_pieces;
                 const int64_t m0 = plan.cut(p.m, r, row_pieces);
                 const int64_t m1 = plan.cut(p.m, r + 1, row_pieces);
                 const int64_t j0 = panels * s / column_pieces * panel;
                 const int64_t j1 = std::min(n1 - n0, panels * (s + 1) / column_pieces * panel);
                 auto* a = scratch<float>(Scratch::kPackedA,
                                          static_cast<size_t>((m1 - m0 + 32) * (kBlockK + 32)));
                 auto* offsets = scratch<int64_t>(Scratch::kOffsets, kBlockK);
                 auto* tiles = scratch<RowTile>(Scratch::kTiles, static_cast<size_t>(m1 - m0));
                 const int64_t tile_count = (m1 - m0 + most_rows - 1) / most_rows;
                 for (int64_t k0 = 0; k0 < p.k; k0 += kBlockK) {
                   const int64_t k1 = std::min(p.k, k0 + kBlockK);
                   const int64_t stride = copy_a(p.a, terms.a, m0, m1, k0, k1, a, offsets);
                   for (int64_t i = 0; i < tile_count; ++i) {
                     const int64_t begin = plan.cut(m1 - m0, i, tile_count),
                                   end = plan.cut(m1 - m0, i + 1, tile_count);
                     tiles[i] = {begin * stride, m0 + begin, static_cast<int>(end - begin)};
                   }
                   multiply_block(plan,
                                  {a, stride, offsets, k1 - k0, packed.block(k0, k1, j0),
                                   p.c + n0 + j0, p.c_stride, j1 - j0, k0 == 0, k1 == p.k},
                                  tiles, tile_count);
                 }
               });
  }
}

}  // namespace twinrun
