// convolution_kernel_grad as a matrix product: M = (kh, kw, ci), K = (n, oh, ow) in segments of
// 4096, N = co.
#include "backends/kernels/gemm.h"
#include "backends/kernels/image_view.h"
#include "backends/kernels/kernel_list.h"
#include "backends/kernels/operands.h"

namespace twinrun {
namespace {

constexpr int64_t kSegment = 4096;
constexpr int64_t kFewTiles = 6;
constexpr int64_t kPartialLimit = int64_t{2} << 20;  // floats of segment sums held at once

struct Problem {
  const PatchGeometry& g;
  const float* x;
  const float* dy;
  int64_t m, n, k;
};

// Cuts M into row tiles. The rows of a tile must be adjacent in the slab.
int64_t row_tiles(const GemmPlan& plan, const PatchGeometry& g, RowTile* tiles) {
  // Whether the taps of a kernel row are adjacent in the slab.
  const bool joined = g.pitch == g.channels && g.tap_step[1] == 1;
  const int64_t run = joined ? g.taps[1] * g.channels : g.channels;
  const int64_t parts = (run + plan.kernels.rows - 1) / plan.kernels.rows;
  int64_t count = 0;
  for (int64_t i = 0; i < g.taps[0]; ++i) {
    for (int64_t j = 0; j < g.taps[1]; j += joined ? g.taps[1] : 1) {
      for (int64_t p = 0; p < parts; ++p) {
        const int64_t begin = plan.cut(run, p, parts), end = plan.cut(run, p + 1, parts);
        tiles[count++] = {g.tap(i, j) + begin, (i * g.taps[1] + j) * g.channels + begin,
                          static_cast<int>(end - begin)};
      }
    }
  }
  return count;
}

// Copies the slabs that outputs [k0, k1) of the flat (n, oh, ow) read, and writes the offset of
// each output.
void copy_patches(const Problem& p, Term term, bool poison, int64_t k0, int64_t k1,
                  int64_t* offsets) {
  const PatchGeometry& g = p.g;
  const int64_t pixels = g.out[0] * g.out[1];
  const auto rows_of = [&](int64_t image, int64_t& y0, int64_t& y1) {
    const int64_t begin = std::max(k0, image * pixels) - image * pixels;
    const int64_t end = std::min(k1, (image + 1) * pixels) - image * pixels;
    y0 = begin / g.out[1];
    y1 = (end - 1) / g.out[1] + 1;
  };
  const int64_t first = k0 / pixels, last = (k1 - 1) / pixels;
  int64_t size = 0, y0, y1;
  for (int64_t image = first; image <= last; ++image) {
    rows_of(image, y0, y1);
    size += g.slab_size(y1 - y0);
  }
  float* slab = scratch<float>(Scratch::kSlab, static_cast<size_t>(size));
  int64_t at = 0, k = k0;
  for (int64_t image = first; image <= last; ++image) {
    rows_of(image, y0, y1);
    copy_slab(g, term, p.x, image, y0, y1, poison, slab + at);
    for (const int64_t end = std::min(k1, (image + 1) * pixels); k < end; ++k) {
      const int64_t pixel = k - image * pixels;
      offsets[k - k0] = at + g.position(pixel / g.out[1] - y0, pixel % g.out[1]);
    }
    at += g.slab_size(y1 - y0);
  }
}

// Computes one segment's sum for some of the row tiles.
void segment_sum(const GemmPlan& plan, const Problem& p, Terms terms, int64_t segment,
                 const RowTile* tiles, int64_t count, bool whole, float* c) {
  const int64_t begin = segment * kSegment, end = std::min(p.k, begin + kSegment);
  const bool poison = plan.context.arithmetic.poison;
  int64_t offsets[kBlockK];
  // For few rows, packing dy costs more than it saves.
  const bool in_place = !plan.images() && terms.b == Term::kWhole &&
                        p.n % plan.kernels.lanes == 0 &&
                        (count <= kFewTiles || p.n <= plan.panel());
  auto* copy =
      scratch<float>(Scratch::kPackedA, static_cast<size_t>(kBlockK * plan.packed_columns(p.n)));
  for (int64_t k0 = begin; k0 < end; k0 += kBlockK) {
    const int64_t k1 = std::min(end, k0 + kBlockK);
    copy_patches(p, terms.a, poison, k0, k1, offsets);
    if (!in_place) pack_b(plan, {p.dy, 1, p.n, p.k, 0}, terms.b, k0, k1, 0, p.n, copy);
    const float* b = in_place ? p.dy + k0 * p.n : copy;
    multiply_block(plan,
                   {scratch<float>(Scratch::kSlab, 0), 1, offsets, k1 - k0, b, c, p.n, p.n,
                    k0 == begin, whole && k1 == end, in_place ? p.n : 0},
                   tiles, count);
  }
}

void multiply(const GemmPlan& plan, const Problem& p, Terms terms, float* c) {
  const int64_t segments = (p.k + kSegment - 1) / kSegment, threads = threads_of(plan.context);
  RowTile* tiles = scratch<RowTile>(Scratch::kTiles, static_cast<size_t>(p.m));
  const int64_t tile_count = row_tiles(plan, p.g, tiles);
  const int64_t elements = p.m * p.n;
  // Takes as many segments at a time as memory allows, with as many for each thread as for the
  // others. Where segments are few, pieces are also cut by rows.
  int64_t group = std::clamp<int64_t>(kPartialLimit / elements, 1, segments);
  const bool side_by_side = segments >= 2 * threads && group >= threads;
  if (side_by_side) group = group / threads * threads;
  float* sums =
      segments == 1 ? c : scratch<float>(Scratch::kPartials, static_cast<size_t>(group * elements));
  for (int64_t s0 = 0; s0 < segments; s0 += group) {
    const int64_t s1 = std::min(segments, s0 + group);
    const int64_t splits = !side_by_side              ? std::min(tile_count, 2 * threads)
                           : (s1 - s0) % threads == 0 ? 1
                                                      : std::min(tile_count, threads);
    for_pieces(plan.context, (s1 - s0) * splits, p.m * p.n * p.k / 16, [&](int64_t piece) {
      const int64_t s = s0 + piece / splits, part = piece % splits;
      const int64_t t0 = tile_count * part / splits, t1 = tile_count * (part + 1) / splits;
      segment_sum(plan, p, terms, s, tiles + t0, t1 - t0, segments == 1,
                  sums + (s - s0) * elements);
    });
    if (segments == 1) return;
    for_ranges(plan.context, elements, s1 - s0, [&](int64_t begin, int64_t end) {
      const FlushScope scope(plan.flush);
      for (int64_t i = begin; i < end; i += 256) {
        float total[256];
        const int64_t n = std::min<int64_t>(256, end - i);
        const float* from = s0 == 0 ? sums + i : c + i;
        for (int64_t q = 0; q < n; ++q) total[q] = from[q];
        for (int64_t s = s0 == 0 ? 1 : s0; s < s1; ++s) {
          const float* sum = sums + (s - s0) * elements + i;
          for (int64_t q = 0; q < n; ++q) total[q] += sum[q];
        }
        for (int64_t q = 0; q < n; ++q) c[i + q] = canonical(total[q]);
      }
    });
  }
}

}  // namespace

void run_convolution_kernel_grad(const KernelContext& context, const Op& op, Inputs inputs,
                                 Tensor& output) {
  const Dims &w = output.dims(), &dy = inputs[1].dims();
  const float* x = dot_operand(context, inputs[0], Scratch::kOperandA);
  const float* grad = dot_operand(context, inputs[1], Scratch::kOperandB);
  DotResult result(context, output);
  if (output.elements() == 0) return;
  const GemmPlan plan(context);
  const PatchGeometry g = forward_geometry(inputs[0].dims(), w[0], w[1], op.attrs.window);
  const Problem problem{g, x, grad, w[0] * w[1] * w[2], w[3], dy[0] * dy[1] * dy[2]};
  run_passes(plan, result.data(), output.elements(), [&](Terms terms, float* c) {
    if (problem.k == 0) {
      std::fill_n(c, output.elements(), 0.0f);
    } else {
      multiply(plan, problem, terms, c);
    }
  });
  result.finish();
}

}  // namespace twinrun
