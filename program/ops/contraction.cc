// The index arithmetic of each kind of contraction.
#include "program/ops/contraction.h"

#include <algorithm>
#include <cstring>

namespace twinrun {
namespace {

using Places = std::vector<Side::Place>;

Places evenly(int64_t n, int64_t step) {
  Places places(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) places[static_cast<size_t>(i)].offset = i * step;
  return places;
}

Contraction dot(const Op& op, const Dims& a, const Dims& b) {
  const auto stack = static_cast<size_t>(op.attrs.batch_dims);
  Contraction c;
  for (size_t d = 0; d < stack; ++d) c.parts *= a[d];
  const auto side = [&](Side& s, const Dims& dims, int contracted, int64_t& free) {
    const int64_t rows = dims[stack], columns = dims[stack + 1];
    free = contracted == 0 ? columns : rows;
    c.k = contracted == 0 ? rows : columns;
    s.rows = evenly(free, contracted == 0 ? 1 : columns);
    s.terms = evenly(c.k, contracted == 0 ? columns : 1);
    s.part = rows * columns;
  };
  side(c.a, a, op.attrs.lhs_contract, c.m);
  side(c.b, b, op.attrs.rhs_contract, c.n);
  c.part_step = c.m * c.n;
  c.row_step = c.n;
  return c;
}

// Index this operand as an NHWC image, by pixel.
void read_image(Side& s, const Dims& image) {
  s.height = image[1];
  s.width = image[2];
  s.pixel = image[3];
}

// The places of a grid [n, h, w]: the sample as an offset, and the pixel's coordinates.
Places pixels(int64_t samples, int64_t sample_step, int64_t h, int64_t w, const int64_t stride[2],
              const int64_t shift[2]) {
  Places places;
  places.reserve(static_cast<size_t>(samples * h * w));
  for (int64_t n = 0; n < samples; ++n) {
    for (int64_t y = 0; y < h; ++y) {
      for (int64_t x = 0; x < w; ++x)
        places.push_back({n * sample_step, y * stride[0] + shift[0], x * stride[1] + shift[1]});
    }
  }
  return places;
}

// The places of a kernel's taps [kh, kw] and `channels` each: coordinates are `sign` times the
// dilated tap.
Places taps(const Window& w, int64_t channels, int64_t channel_step, int sign) {
  Places places;
  for (int64_t kh = 0; kh < w.size[0]; ++kh) {
    for (int64_t kw = 0; kw < w.size[1]; ++kw) {
      for (int64_t c = 0; c < channels; ++c)
        places.push_back({c * channel_step, sign * kh * w.dilation[0], sign * kw * w.dilation[1]});
    }
  }
  return places;
}

int64_t image_size(const Dims& image) { return image[1] * image[2] * image[3]; }

Contraction convolution(const Op& op, const Dims& x, const Dims& w) {
  const Window& win = op.attrs.window;
  const Dims& y = op.type.dims;
  const int64_t groups = op.attrs.groups, inputs = w[2], outputs = w[3] / groups;
  const int64_t shift[2] = {-win.pad_low[0], -win.pad_low[1]};
  Contraction c;
  read_image(c.a, x);
  c.a.rows = pixels(y[0], image_size(x), y[1], y[2], win.stride, shift);
  c.a.terms = taps(win, inputs, 1, 1);
  c.a.part = inputs;
  c.b.rows = evenly(outputs, 1);
  c.b.terms = evenly(win.size[0] * win.size[1] * inputs, w[3]);
  c.b.part = outputs;
  c.parts = groups;
  c.part_step = outputs;
  c.row_step = w[3];
  return c;
}

// dx at a pixel is a sum over the kernel's taps and the output channels: the weight at the tap
// times dy of the window in which this pixel lies under that tap, if there is such a window.
Contraction input_gradient(const Op& op, const Dims& dy, const Dims& w) {
  const Window& win = op.attrs.window;
  const Dims& x = op.type.dims;
  const int64_t groups = op.attrs.groups, inputs = w[2], outputs = w[3] / groups;
  constexpr int64_t kEvery[2] = {1, 1};
  Contraction c;
  read_image(c.a, dy);
  c.a.stride_y = win.stride[0];
  c.a.stride_x = win.stride[1];
  c.a.rows = pixels(x[0], image_size(dy), x[1], x[2], kEvery, win.pad_low);
  c.a.terms = taps(win, outputs, 1, -1);
  c.a.part = outputs;
  c.b.rows = evenly(inputs, w[3]);
  for (int64_t tap = 0; tap < win.size[0] * win.size[1]; ++tap) {
    for (int64_t o = 0; o < outputs; ++o) c.b.terms.push_back({tap * inputs * w[3] + o});
  }
  c.b.part = outputs;
  c.parts = groups;
  c.part_step = inputs;
  c.row_step = x[3];
  return c;
}

Contraction kernel_gradient(const Op& op, const Dims& x, const Dims& dy) {
  const Window& win = op.attrs.window;
  const Dims& w = op.type.dims;
  const int64_t groups = op.attrs.groups, inputs = w[2], outputs = w[3] / groups;
  const int64_t shift[2] = {-win.pad_low[0], -win.pad_low[1]};
  Contraction c;
  read_image(c.a, x);
  c.a.rows = taps(win, inputs, 1, 1);
  c.a.terms = pixels(dy[0], image_size(x), dy[1], dy[2], win.stride, shift);
  c.a.part = inputs;
  c.b.rows = evenly(outputs, 1);
  c.b.terms = evenly(dy[0] * dy[1] * dy[2], dy[3]);
  c.b.part = outputs;
  c.parts = groups;
  c.part_step = outputs;
  c.row_step = w[3];
  return c;
}

// The offsets of all indices over some dimensions of x, the last one fastest.
Places places_over(const Dims& x, const Dims& over) {
  std::vector<int64_t> step(x.size(), 1);
  for (size_t d = x.size(); d-- > 1;) step[d - 1] = step[d] * x[d];
  Places places(1);
  for (int64_t axis : over) {
    const auto d = static_cast<size_t>(axis);
    Places next;
    next.reserve(places.size() * static_cast<size_t>(x[d]));
    for (const Side::Place& p : places) {
      for (int64_t i = 0; i < x[d]; ++i) next.push_back({p.offset + i * step[d]});
    }
    places = std::move(next);
  }
  return places;
}

Contraction reduction(const Op& op, const Dims& x) {
  Dims reduced = op.attrs.dims, kept;
  std::ranges::sort(reduced);
  for (int64_t d = 0; d < static_cast<int64_t>(x.size()); ++d) {
    if (std::ranges::find(reduced, d) == reduced.end()) kept.push_back(d);
  }
  Contraction c;
  c.b.rows = places_over(x, kept);
  c.b.terms = places_over(x, reduced);
  c.a.rows.resize(1);
  return c;
}

}  // namespace

Contraction contraction_of(const Op& op, std::span<const Tensor> inputs) {
  const Dims& first = inputs[0].dims();
  Contraction c;
  switch (op.kind) {
    case OpKind::kDotGeneral:
      c = dot(op, first, inputs[1].dims());
      break;
    case OpKind::kConvolution:
      c = convolution(op, first, inputs[1].dims());
      break;
    case OpKind::kConvolutionInputGrad:
      c = input_gradient(op, first, inputs[1].dims());
      break;
    case OpKind::kConvolutionKernelGrad:
      c = kernel_gradient(op, first, inputs[1].dims());
      break;
    default:
      c = reduction(op, first);
  }
  c.m = static_cast<int64_t>(c.a.rows.size());
  c.n = static_cast<int64_t>(c.b.rows.size());
  c.k = static_cast<int64_t>(c.b.terms.size());
  return c;
}

std::vector<Tensor> without_k_tail(const Op& op, const std::vector<Tensor>& inputs, int64_t tail) {
  const Contraction c = contraction_of(op, inputs);
  const size_t changed = op.kind == OpKind::kDotGeneral ? 0 : 1;
  const Side& side = changed == 0 ? c.a : c.b;
  std::vector<Tensor> out = inputs;
  Tensor& t = out[changed];
  t = t.clone();
  const size_t size = size_of(t.dtype());
  for (int64_t p = 0; p < c.parts; ++p) {
    for (size_t row = 0; row < side.rows.size(); ++row) {
      for (int64_t k = std::max<int64_t>(0, c.k - tail); k < c.k; ++k) {
        const int64_t at = side.at(p, static_cast<int64_t>(row), k);
        std::memset(t.raw() + static_cast<size_t>(at) * size, 0, size);  // zero in every dtype
      }
    }
  }
  return out;
}

}  // namespace twinrun
