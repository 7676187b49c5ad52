// The second interpreter's dots and convolutions: the operands of each output element are gathered
// into two vectors, of which one naive dot product is computed.
#include "tests/reference/pieces.h"

namespace twinrun::reference {
// One segment in f32: a chain of fused multiply-adds that starts from +0.
static float chain(const Scalar& s, const Floats& a, const Floats& b, size_t begin, size_t end) {
  float acc = 0;
  for (size_t k = begin; k < end; ++k) acc = s.fma(a[k], b[k], acc);
  return acc;
}

// One segment in the emulated matrix unit: blocks of 32 with zero padding, each an even and an odd
// chain.
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

// Splits x into part[0] + part[1] + ..., each the bf16 nearest to the rest.
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

// The sum over k of a[k] b[k]. `segment` is the length of a segment; 0: one segment for all k.
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
  const auto stack = static_cast<size_t>(op.attrs.batch_dims);
  const auto lc = stack + static_cast<size_t>(op.attrs.lhs_contract);
  const auto rc = stack + static_cast<size_t>(op.attrs.rhs_contract);
  // The free dimension is the one of the last two that is not contracted.
  const size_t lf = 2 * stack + 1 - lc, rf = 2 * stack + 1 - rc;
  const int64_t k = lhs.dims()[lc];
  const bool segmented = stack == 0 && lc == 0 && rc == 0;
  Floats out(static_cast<size_t>(op.type.elements())), x(static_cast<size_t>(k)), y(x);
  for (int64_t i = 0; i < op.type.elements(); ++i) {
    const auto at = unflatten(i, op.type.dims);
    std::vector<int64_t> l(at.begin(), at.begin() + static_cast<std::ptrdiff_t>(stack));
    l.resize(stack + 2);
    std::vector<int64_t> r = l;
    l[lf] = at[stack], r[rf] = at[stack + 1];
    for (int64_t q = 0; q < k; ++q) {
      l[lc] = r[rc] = q;
      x[static_cast<size_t>(q)] = a[static_cast<size_t>(flatten(l, lhs.dims()))];
      y[static_cast<size_t>(q)] = b[static_cast<size_t>(flatten(r, rhs.dims()))];
    }
    out[static_cast<size_t>(i)] = dot(x, y, segmented ? 4096 : 0, arithmetic);
  }
  return save(out, op.type);
}

namespace {
// An NHWC image that reads as +0 outside.
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
    const int64_t per_group = w.dims[2], group = o[3] / (w.dims[3] / op.attrs.groups);
    for (int64_t kh = 0; kh < win.size[0]; ++kh) {
      for (int64_t kw = 0; kw < win.size[1]; ++kw) {
        for (int64_t ci = 0; ci < per_group; ++ci) {
          a.push_back(x.get(o[0], o[1] * win.stride[0] - win.pad_low[0] + kh * win.dilation[0],
                            o[2] * win.stride[1] - win.pad_low[1] + kw * win.dilation[1],
                            group * per_group + ci));
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
    const int64_t group = p[3] / w.dims[2], outputs = w.dims[3] / op.attrs.groups;
    for (int64_t kh = 0; kh < win.size[0]; ++kh) {
      for (int64_t kw = 0; kw < win.size[1]; ++kw) {
        // The (oh, ow) whose tap (kh, kw) is this pixel: p = o * stride - pad + k * dilation.
        const int64_t h = p[1] + win.pad_low[0] - kh * win.dilation[0];
        const int64_t v = p[2] + win.pad_low[1] - kw * win.dilation[1];
        const bool hit = h >= 0 && v >= 0 && h % win.stride[0] == 0 && v % win.stride[1] == 0;
        for (int64_t co = group * outputs; co < (group + 1) * outputs; ++co) {
          a.push_back(hit ? dy.get(p[0], h / win.stride[0], v / win.stride[1], co) : 0.0f);
          b.push_back(w.data[w.at(kh, kw, p[3] % w.dims[2], co)]);
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
    const int64_t group = p[3] / (op.type.dims[3] / op.attrs.groups);
    const int64_t channel = group * op.type.dims[2] + p[2];
    for (int64_t n = 0; n < dy.dims[0]; ++n) {
      for (int64_t oh = 0; oh < dy.dims[1]; ++oh) {
        for (int64_t ow = 0; ow < dy.dims[2]; ++ow) {
          a.push_back(x.get(n, oh * win.stride[0] - win.pad_low[0] + p[0] * win.dilation[0],
                            ow * win.stride[1] - win.pad_low[1] + p[1] * win.dilation[1], channel));
          b.push_back(dy.data[dy.at(n, oh, ow, p[3])]);
        }
      }
    }
    out[i] = dot(a, b, 4096, arithmetic);
  }
  return save(out, op.type);
}

}  // namespace twinrun::reference
