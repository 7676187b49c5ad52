// convolution and convolution_input_grad as matrix products: M = output pixels, read straight from
// slabs; K = (kh, kw, channel); N = channels of the result.
#include <atomic>

#include "backends/kernels/gemm.h"
#include "backends/kernels/image_view.h"
#include "backends/kernels/kernel_list.h"
#include "backends/kernels/operands.h"
#include "backends/kernels/patch_product.h"

namespace twinrun {
namespace {

// ---- input gradients of strided convolutions
//
// Of a pixel's taps, only those at multiples of the stride meet an element of dy; the contract
// multiplies the zeros between them, too. Pixels of one phase (y mod stride, x mod stride) share
// their taps, and by themselves they are the input gradient of a convolution without stride, which
// is less work by the product of the strides. The zeros are left out under the conditions that hold
// for padding (patch_product.h); otherwise all are multiplied.

bool phases_apply(const Window& w) {
  return (w.stride[0] != 1 || w.stride[1] != 1) && w.dilation[0] == 1 && w.dilation[1] == 1;
}

// Along one axis: the pixels phase, phase + stride, ... and the taps that they share.
struct Phase {
  int64_t pixels, first_tap, taps, base;  // tap t of pixel j reads dy at base + j - t
  Phase(int64_t phase, int64_t size, int64_t kernel, int64_t stride, int64_t pad_low)
      : pixels(phase < size ? (size - phase + stride - 1) / stride : 0),
        first_tap((phase + pad_low) % stride),
        taps(first_tap < kernel ? (kernel - first_tap + stride - 1) / stride : 0),
        base((phase + pad_low - first_tap) / stride) {}
};

// Computes one pass of dx [n, h, w, ci] from dy and w [kh, kw, ci, co]. False if a result is -0: c
// is then unspecified, and the pass has to be computed without phases.
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
        multiply_patches(plan, {g, dy, {taps, co, 1, co, ci * co}, ci, pixels}, terms, true);
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
  const bool zeros_left_out =
      zeros_can_be_left_out(plan, forward ? ci : co, weights, inputs[1].elements());
  const bool by_phases = !forward && zeros_left_out && phases_apply(window);
  run_passes(plan, result.data(), output.elements(), [&](Terms terms, float* c) {
    if (by_phases &&
        multiply_phases(plan, window, inputs[0].dims(), data, w, weights, output.dims(), terms, c))
      return;
    if (plain) {
      dense_gemm(plan, {output.elements() / n, n, k, {data, k, 1}, b, c, n}, terms);
    } else {
      multiply_patches(plan, {g, data, b, n, c}, terms, zeros_left_out);
    }
  });
  result.finish();
}

}  // namespace twinrun
