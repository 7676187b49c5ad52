// convolution and convolution_input_grad: M = output pixels, read straight from slabs; K = (kh, kw,
// channel); N = channels.
#include <atomic>

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
          const int64_t x0 = plan.cut(g.out[1], t, column_tiles),
                        x1 = plan.cut(g.out[1], t + 1, column_tiles);
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
                     {base, g.step[1] * g.pitch, offsets, k1 - k0, packed.block(k0, k1, 0), c, n, n,
                      k0 == 0, k1 == k},
                     tiles, count);
    }
  });
}

// ---- input gradients of strided convolutions
//
// Of a pixel's taps only those hit dy whose distance is a multiple of the stride; the contract
// multiplies the zeros between, too. Pixels of one phase (y mod stride, x mod stride) share their
// taps, and taken alone they are the input gradient of a convolution without stride: less work by
// the product of the strides. Leaving out a term (+-0) times a finite weight changes a chain in one
// way only, the sign of a zero, and if the full chain ends in -0, so does the short one. So: finite
// weights, blocks of 32 k that hold whole taps, and no -0 in the result; else the long way.

bool phases_apply(const GemmPlan& plan, const Window& w, int64_t channels, const float* weights,
                  int64_t count) {
  if (w.stride[0] == 1 && w.stride[1] == 1) return false;
  if (w.dilation[0] != 1 || w.dilation[1] != 1) return false;
  if (plan.bf16 && channels % 32 != 0) return false;
  uint32_t large = 0;  // a bf16 term of the largest numbers is infinite
  for (int64_t i = 0; i < count; ++i)
    large |= static_cast<uint32_t>((to_bits(weights[i]) & 0x7F800000u) >= 0x7F000000u);
  return large == 0;
}

// Along one axis: the pixels phase, phase + stride, .. and the taps that they share.
struct Phase {
  int64_t pixels, first_tap, taps, base;  // tap t of pixel j reads dy at base + j - t
  Phase(int64_t phase, int64_t size, int64_t kernel, int64_t stride, int64_t pad_low)
      : pixels(phase < size ? (size - phase + stride - 1) / stride : 0),
        first_tap((phase + pad_low) % stride),
        taps(first_tap < kernel ? (kernel - first_tap + stride - 1) / stride : 0),
        base((phase + pad_low - first_tap) / stride) {}
};

// One pass of dx [n, h, w, ci] from dy and w [kh, kw, ci, co]; false: there is a -0, nothing is
// promised of c.
bool multiply_phases(const GemmPlan& plan, const Window& window, const Dims& dy_dims,
                     const float* dy, const Dims& w, const float* weights, const Dims& x,
                     Terms terms, float* c) {
  const int64_t ci = w[2], co = w[3];
  std::atomic<bool> good = true;
  for (int64_t py = 0; py < window.stride[0]; ++py) {
    for (int64_t px = 0; px < window.stride[1]; ++px) {
      const Phase phases[2] = {{py, x[1], w[0], window.stride[0], window.pad_low[0]},
                               {px, x[2], w[1], window.stride[1], window.pad_low[1]}};
      const int64_t rows = phases[0].pixels, columns = phases[1].pixels;
      if (rows == 0 || columns == 0) continue;
      const int64_t count = phases[0].taps * phases[1].taps;
      const auto elements = static_cast<size_t>(x[0] * rows * columns * ci);
      float* const pixels = scratch<float>(Scratch::kPhasePixels, elements);
      if (count == 0) {
        std::fill_n(pixels, elements, 0.0f);
      } else {
        float* const taps =
            scratch<float>(Scratch::kPhaseTaps, static_cast<size_t>(count * ci * co));
        for (int64_t t = 0; t < count; ++t) {
          const int64_t kh = phases[0].first_tap + t / phases[1].taps * window.stride[0];
          const int64_t kw = phases[1].first_tap + t % phases[1].taps * window.stride[1];
          std::copy_n(weights + (kh * w[1] + kw) * ci * co, ci * co, taps + t * ci * co);
        }
        const Window stepless{.pad_low = {phases[0].base, phases[1].base}};
        const PatchGeometry g = input_grad_geometry(dy_dims, {x[0], rows, columns, ci},
                                                    phases[0].taps, phases[1].taps, stepless);
        multiply(plan, {g, dy}, {taps, co, 1, co, ci * co}, ci, terms, pixels);
      }
      for_pieces(plan.context, x[0] * rows, x[0] * rows * columns * ci, [&](int64_t piece) {
        const int64_t image = piece / rows, y = piece % rows * window.stride[0] + py;
        const float* from = pixels + piece * columns * ci;
        uint32_t negative_zero = 0;
        for (int64_t i = 0; i < columns * ci; ++i)
          negative_zero |= static_cast<uint32_t>(to_bits(from[i]) == 0x80000000u);
        if (negative_zero != 0) good = false;
        for (int64_t j = 0; j < columns; ++j) {
          float* to = c + ((image * x[1] + y) * x[2] + j * window.stride[1] + px) * ci;
          std::copy_n(from + j * ci, ci, to);
        }
      });
    }
  }
  return good;
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
  const bool by_phases = !forward && phases_apply(plan, window, co, weights, inputs[1].elements());
  run_passes(plan, result.data(), output.elements(), [&](Terms terms, float* c) {
    if (by_phases &&
        multiply_phases(plan, window, inputs[0].dims(), data, w, weights, output.dims(), terms, c))
      return;
    if (plain) {
      dense_gemm(plan, {output.elements() / n, n, k, {data, k, 1}, b, c, n}, terms);
    } else {
      multiply(plan, {g, data}, b, n, terms, c);
    }
  });
  result.finish();
}

}  // namespace twinrun
