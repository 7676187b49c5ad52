// Dots and convolutions: operands of every output gathered into two vectors, then one naive dot
// product.
#include "tests/reference/pieces.h"

namespace twinrun::reference {
// One pass in f32: a chain of fused multiply-adds from +0 in every segment.
static float chain(const Scalar& s, const Floats& a, const Floats& b, size_t begin, size_t end) {
  float acc = 0;
  for (size_t k = begin; k < end; ++k) acc = s.fma(a[k], b[k], acc);
  return acc;
}

// One pass of the emulated matrix unit: blocks of 32, even and odd chains, zero padding.
static float blocks(const Scalar& s, const Floats& a, const Floats& b, size_t begin, size_t end) {
  float acc = 0;
  for (size_t block = begin; block < end; block += 32) {
    float even = 0, odd = 0;
    for (size_t j = 0; j < 32; ++j) {
      const size_t k = block + j;
      const float x = k < end ? a[k] : 0.0f, y = k < end ? b[k] : 0.0f;
      if (j % 2 == 0) {
        even = s.fma(x, y, even);
      } else {
        odd = s.fma(x, y, odd);
      }
    }
    acc = s.add(acc, s.add(even, odd));
  }
  return acc;
}

template <typename Pass>
static float segments(const Scalar& s, const Floats& a, const Floats& b, size_t segment,
                      Pass pass) {
  float sum = 0;
  for (size_t begin = 0; begin < a.size(); begin += segment) {
    const float part = pass(s, a, b, begin, std::min(a.size(), begin + segment));
    sum = begin == 0 ? part : s.add(sum, part);
  }
  return sum;
}

// x = part[0] + part[1] + ..., each the nearest bf16 of what is left.
static std::vector<Floats> split(const Floats& x, size_t parts) {
  const Scalar s{true};
  std::vector<Floats> out(parts, Floats(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    float rest = x[i];
    for (size_t p = 0; p < parts; ++p) {
      out[p][i] = bf16_to_f32(bf16_round_flush(rest));
      rest = s.sub(rest, out[p][i]);
    }
  }
  return out;
}

static float not_nan(float x) { return x != x ? 0.0f : x; }

// sum over k of a[k] b[k]; `segment` = 0: one segment.
static float dot(const Floats& a, const Floats& b, size_t segment, ReferenceArithmetic arithmetic) {
  using Dot = ReferenceArithmetic::Dot;
  if (segment == 0) segment = std::max<size_t>(a.size(), 1);
  if (arithmetic.dot == Dot::kF32) return segments({arithmetic.flush}, a, b, segment, chain);
  const Scalar s{true};  // the matrix unit flushes
  auto pass = [&](const Floats& x, const Floats& y) { return segments(s, x, y, segment, blocks); };
  if (arithmetic.dot == Dot::kBf16) return pass(split(a, 1)[0], split(b, 1)[0]);
  if (arithmetic.dot == Dot::kBf16x3) {
    const auto x = split(a, 2), y = split(b, 2);
    const float lh = pass(x[1], y[0]), hl = pass(x[0], y[1]), hh = pass(x[0], y[0]);
    return s.add(not_nan(s.add(lh, hl)), hh);
  }
  const auto x = split(a, 3), y = split(b, 3);  // h m l
  float sum = pass(x[1], y[1]);
  sum = s.add(sum, pass(x[2], y[0]));
  sum = s.add(sum, pass(x[0], y[2]));
  sum = s.add(sum, pass(x[1], y[0]));
  sum = s.add(sum, pass(x[0], y[1]));
  return s.add(not_nan(sum), pass(x[0], y[0]));
}

Tensor dot_general(const Op& op, const Tensor& lhs, const Tensor& rhs,
                   ReferenceArithmetic arithmetic) {
  const Floats a = load(lhs), b = load(rhs);
  const bool a0 = op.attrs.lhs_contract == 0, b0 = op.attrs.rhs_contract == 0;
  const int64_t k = lhs.dims()[a0 ? 0 : 1];
  const int64_t m = lhs.dims()[a0 ? 1 : 0], n = rhs.dims()[b0 ? 1 : 0];
  Floats out(static_cast<size_t>(m * n)), x(static_cast<size_t>(k)), y(static_cast<size_t>(k));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t l = 0; l < k; ++l) {
        x[static_cast<size_t>(l)] = a[static_cast<size_t>(a0 ? l * m + i : i * k + l)];
        y[static_cast<size_t>(l)] = b[static_cast<size_t>(b0 ? l * n + j : j * k + l)];
      }
      out[static_cast<size_t>(i * n + j)] = dot(x, y, a0 && b0 ? 4096 : 0, arithmetic);
    }
  }
  return save(out, op.type);
}

namespace {
// An NHWC image that reads +0 outside.
struct Image {
  Floats data;
  Dims dims;
  explicit Image(const Tensor& t) : data(load(t)), dims(t.dims()) {}
  bool inside(int64_t h, int64_t w) const { return h >= 0 && h < dims[1] && w >= 0 && w < dims[2]; }
  size_t at(int64_t n, int64_t h, int64_t w, int64_t c) const {
    return static_cast<size_t>(((n * dims[1] + h) * dims[2] + w) * dims[3] + c);
  }
  float get(int64_t n, int64_t h, int64_t w, int64_t c) const {
    return inside(h, w) ? data[at(n, h, w, c)] : 0.0f;
  }
};
}  // namespace

Tensor convolution(const Op& op, const Tensor& x_t, const Tensor& w_t,
                   ReferenceArithmetic arithmetic) {
  const Image x(x_t), w(w_t);
  const Window& win = op.attrs.window;
  Floats out(static_cast<size_t>(op.type.elements()));
  for (size_t i = 0; i < out.size(); ++i) {
    const auto o = unflatten(static_cast<int64_t>(i), op.type.dims);  // n, oh, ow, co
    Floats a, b;
    for (int64_t kh = 0; kh < win.size[0]; ++kh) {
      for (int64_t kw = 0; kw < win.size[1]; ++kw) {
        for (int64_t ci = 0; ci < x.dims[3]; ++ci) {
          a.push_back(x.get(o[0], o[1] * win.stride[0] - win.pad_low[0] + kh * win.dilation[0],
                            o[2] * win.stride[1] - win.pad_low[1] + kw * win.dilation[1], ci));
          b.push_back(w.data[w.at(kh, kw, ci, o[3])]);
        }
      }
    }
    out[i] = dot(a, b, 0, arithmetic);
  }
  return save(out, op.type);
}

Tensor convolution_input_grad(const Op& op, const Tensor& dy_t, const Tensor& w_t,
                              ReferenceArithmetic arithmetic) {
  const Image dy(dy_t), w(w_t);
  const Window& win = op.attrs.window;
  Floats out(static_cast<size_t>(op.type.elements()));
  for (size_t i = 0; i < out.size(); ++i) {
    const auto p = unflatten(static_cast<int64_t>(i), op.type.dims);  // n, h, w, ci
    Floats a, b;
    for (int64_t kh = 0; kh < win.size[0]; ++kh) {
      for (int64_t kw = 0; kw < win.size[1]; ++kw) {
        // The (oh, ow) whose tap (kh, kw) is this pixel: p = o * stride - pad + k * dilation.
        const int64_t h = p[1] + win.pad_low[0] - kh * win.dilation[0];
        const int64_t v = p[2] + win.pad_low[1] - kw * win.dilation[1];
        const bool hit = h >= 0 && v >= 0 && h % win.stride[0] == 0 && v % win.stride[1] == 0;
        for (int64_t co = 0; co < dy.dims[3]; ++co) {
          a.push_back(hit ? dy.get(p[0], h / win.stride[0], v / win.stride[1], co) : 0.0f);
          b.push_back(w.data[w.at(kh, kw, p[3], co)]);
        }
      }
    }
    out[i] = dot(a, b, 0, arithmetic);
  }
  return save(out, op.type);
}

Tensor convolution_kernel_grad(const Op& op, const Tensor& x_t, const Tensor& dy_t,
                               ReferenceArithmetic arithmetic) {
  const Image x(x_t), dy(dy_t);
  const Window& win = op.attrs.window;
  Floats out(static_cast<size_t>(op.type.elements()));
  for (size_t i = 0; i < out.size(); ++i) {
    const auto p = unflatten(static_cast<int64_t>(i), op.type.dims);  // kh, kw, ci, co
    Floats a, b;
    for (int64_t n = 0; n < dy.dims[0]; ++n) {
      for (int64_t oh = 0; oh < dy.dims[1]; ++oh) {
        for (int64_t ow = 0; ow < dy.dims[2]; ++ow) {
          a.push_back(x.get(n, oh * win.stride[0] - win.pad_low[0] + p[0] * win.dilation[0],
                            ow * win.stride[1] - win.pad_low[1] + p[1] * win.dilation[1], p[2]));
          b.push_back(dy.data[dy.at(n, oh, ow, p[3])]);
        }
      }
    }
    out[i] = dot(a, b, 4096, arithmetic);
  }
  return save(out, op.type);
}

}  // namespace twinrun::reference
