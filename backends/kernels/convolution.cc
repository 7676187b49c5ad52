// convolution and convolution_input_grad: M = output pixels, read straight from slabs; K = (kh, kw,
// channel); N = channels.
#include "backends/kernels/gemm.h"
#include "backends/kernels/image_view.h"
#include "backends/kernels/kernel_list.h"
#include "backends/kernels/operands.h"

namespace twinrun {
namespace {

constexpr int64_t kPieceOutputs = 256;      // output pixels per piece, about
constexpr int64_t kSlabFloats = 64 * 1024;  // a piece's slab stays in L2

// How output rows are dealt to pieces: either part of one image or several whole images.
struct Pieces {
  int64_t rows;       // output rows per unit
  int64_t units;      // per image
  int64_t per_piece;  // units per piece
  int64_t count;
  Pieces(const PatchGeometry& g, int threads) {
    rows = std::clamp<int64_t>(kPieceOutputs / g.out[1], 1, g.out[0]);
    while (rows > 1 && g.slab_size(rows) > kSlabFloats) --rows;
    units = (g.out[0] + rows - 1) / rows;
    per_piece = 1;
    if (units == 1) {
      const int64_t share = std::max<int64_t>(1, g.images / threads);
      const int64_t fit =
          std::min(kPieceOutputs / (g.out[0] * g.out[1]), kSlabFloats / g.slab_size(rows));
      per_piece = std::clamp<int64_t>(fit, 1, share);
    }
    count = (g.images * units + per_piece - 1) / per_piece;
  }
};

struct Patches {
  const PatchGeometry& g;
  const float* data;
};

// One pass: c[images * out pixels, n] = patches times b.
void multiply(const GemmPlan& plan, const Patches& patches, const MatrixB& b, int64_t n,
              Terms terms, float* c) {
  const PatchGeometry& g = patches.g;
  const int64_t k = g.taps[0] * g.taps[1] * g.channels;
  const int64_t pixels = g.out[0] * g.out[1];
  const int64_t most_rows = plan.kernels.rows;
  const bool poison = plan.context.arithmetic.poison;
  const PackedB packed(plan, b, terms.b, k, 0, n);
  const Pieces pieces(g, threads_of(plan.context));
  const bool in_place = terms.a == Term::kWhole && g.in_place();
  for_pieces(plan.context, pieces.count, g.images * pixels * k * n / 16, [&](int64_t piece) {
    const int64_t u0 = piece * pieces.per_piece,
                  u1 = std::min(u0 + pieces.per_piece, g.images * pieces.units);
    const int64_t slab_size = g.slab_size(pieces.rows);
    float* slabs = in_place
                       ? nullptr
                       : scratch<float>(Scratch::kSlab, static_cast<size_t>((u1 - u0) * slab_size));
    const float* base = in_place ? patches.data : slabs;
    const int64_t column_tiles = (g.out[1] + most_rows - 1) / most_rows;
    auto* tiles = scratch<RowTile>(Scratch::kTiles,
                                   static_cast<size_t>((u1 - u0) * pieces.rows * column_tiles));
    int64_t count = 0;
    for (int64_t u = u0; u < u1; ++u) {
      const int64_t image = u / pieces.units, y0 = u % pieces.units * pieces.rows;
      const int64_t y1 = std::min(g.out[0], y0 + pieces.rows);
      int64_t at = (image * g.height + y0 * g.step[0]) * g.width * g.channels;
      if (!in_place) {
        at = (u - u0) * slab_size;
        copy_slab(g, terms.a, patches.data, image, y0, y1, poison, slabs + at);
      }
      for (int64_t y = y0; y < y1; ++y) {
        for (int64_t t = 0; t < column_tiles; ++t) {
          const int64_t x0 = g.out[1] * t / column_tiles, x1 = g.out[1] * (t + 1) / column_tiles;
          tiles[count++] = {at + g.position(y - y0, x0), image * pixels + y * g.out[1] + x0,
                            static_cast<int>(x1 - x0)};
        }
      }
    }
    int64_t offsets[kBlockK];
    for (int64_t k0 = 0; k0 < k; k0 += kBlockK) {
      const int64_t k1 = std::min(k, k0 + kBlockK);
      for (int64_t q = k0; q < k1; ++q) {
        const int64_t tap = q / g.channels;
        offsets[q - k0] = g.tap(tap / g.taps[1], tap % g.taps[1]) + q % g.channels;
      }
      multiply_block(plan,
                     {base, g.step[1] * g.pitch, offsets, k1 - k0, packed.block(k0), c, n, n,
                      k0 == 0, k1 == k},
                     tiles, count);
    }
  });
}

}  // namespace

void run_convolution(const KernelContext& context, const Op& op, Inputs inputs, Tensor& output) {
  const Dims& w = inputs[1].dims();
  const int64_t kh = w[0], kw = w[1], ci = w[2], co = w[3];
  const Window& window = op.attrs.window;
  const bool forward = op.kind == OpKind::kConvolution;
  const float* data = dot_operand(context, inputs[0], Scratch::kOperandA);
  const float* weights = dot_operand(context, inputs[1], Scratch::kOperandB);
  DotResult result(context, output);
  if (output.elements() == 0) return;
  const GemmPlan plan(context);
  const int64_t k = kh * kw * (forward ? ci : co), n = forward ? co : ci;
  // Both have the same k order; for the gradient each tap's matrix is read transposed.
  const MatrixB b = forward ? MatrixB{weights, 1, co, k, 0} : MatrixB{weights, co, 1, co, ci * co};
  const PatchGeometry g =
      forward ? forward_geometry(inputs[0].dims(), kh, kw, window)
              : input_grad_geometry(inputs[0].dims(), output.dims(), kh, kw, window);
  const bool plain = kh == 1 && kw == 1 && g.step[0] == 1 && g.step[1] == 1 && g.spread[0] == 1 &&
                     g.spread[1] == 1 && g.low[0] == 0 && g.low[1] == 0 && g.out[0] == g.height &&
                     g.out[1] == g.width;
  run_passes(plan, result.data(), output.elements(), [&](Terms terms, float* c) {
    if (plain) {
      dense_gemm(plan, {output.elements() / n, n, k, {data, k, 1}, b, c, n}, terms);
    } else {
      multiply(plan, {g, data}, b, n, terms, c);
    }
  });
  result.finish();
}

}  // namespace twinrun
