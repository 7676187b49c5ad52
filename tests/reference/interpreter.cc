#include "tests/reference/interpreter.h"

#include <mpfr.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "program/base/bits.h"
#include "program/base/philox.h"
#include "tests/reference/scalar.h"

namespace twinrun {
namespace {

using reference::Scalar;
using Floats = std::vector<float>;

[[noreturn]] void unsupported(const Op& op) {
  throw std::logic_error("reference_op: " + std::string(name_of(op.kind)) + " of " + to_string(op.type));
}

Floats load(const Tensor& t) {
  Floats out(static_cast<size_t>(t.elements()));
  for (size_t i = 0; i < out.size(); ++i) {
    switch (t.dtype()) {
      case DType::kF32: out[i] = t.as<float>()[i]; break;
      case DType::kBF16: out[i] = bf16_to_f32(t.as<uint16_t>()[i]); break;
      default: throw std::logic_error("reference: not a float tensor");
    }
  }
  return out;
}

Tensor save(const Floats& values, const TensorType& type) {
  Tensor t = Tensor::empty(type);
  if (t.elements() != static_cast<int64_t>(values.size())) throw std::logic_error("reference: size");
  for (size_t i = 0; i < values.size(); ++i) {
    switch (type.dtype) {
      case DType::kF32: t.as<float>()[i] = canonical(values[i]); break;
      case DType::kBF16: t.as<uint16_t>()[i] = bf16_round(values[i]); break;
      default: throw std::logic_error("reference: not a float result");
    }
  }
  return t;
}

// ---- indices

std::vector<int64_t> unflatten(int64_t i, const Dims& dims) {
  std::vector<int64_t> index(dims.size());
  for (size_t d = dims.size(); d-- > 0;) {
    index[d] = i % dims[d];
    i /= dims[d];
  }
  return index;
}
int64_t flatten(const std::vector<int64_t>& index, const Dims& dims) {
  int64_t i = 0;
  for (size_t d = 0; d < dims.size(); ++d) i = i * dims[d] + index[d];
  return i;
}

// ---- elementary functions

template <typename F>
float by_mpfr(float x, bool flush, F function) {
  if (flush) x = twinrun::flush(x);
  mpfr_t in, out;
  mpfr_inits2(24, in, out, static_cast<mpfr_ptr>(nullptr));
  mpfr_set_flt(in, x, MPFR_RNDN);
  const mpfr_exp_t emin = mpfr_get_emin(), emax = mpfr_get_emax();
  float result;
  if (flush) {  // rounded with unbounded exponent first
    function(out, in);
    const bool tiny = mpfr_cmpabs(out, in) == 0 ? false : mpfr_regular_p(out) && mpfr_get_exp(out) < -125;
    result = tiny ? (mpfr_signbit(out) ? -0.0f : 0.0f) : mpfr_get_flt(out, MPFR_RNDN);
  } else {
    mpfr_set_emin(-148);
    mpfr_set_emax(128);
    const int ternary = function(out, in);
    mpfr_subnormalize(out, mpfr_check_range(out, ternary, MPFR_RNDN), MPFR_RNDN);
    result = mpfr_get_flt(out, MPFR_RNDN);
    mpfr_set_emin(emin);
    mpfr_set_emax(emax);
  }
  mpfr_clears(in, out, static_cast<mpfr_ptr>(nullptr));
  return canonical(result);
}

// ---- dot products

// One pass in f32: a chain of fused multiply-adds from +0 in every segment.
float chain(const Scalar& s, const Floats& a, const Floats& b, size_t begin, size_t end) {
  float acc = 0;
  for (size_t k = begin; k < end; ++k) acc = s.fma(a[k], b[k], acc);
  return acc;
}

// One pass of the emulated matrix unit: blocks of 32, even and odd chains, zero padding.
float blocks(const Scalar& s, const Floats& a, const Floats& b, size_t begin, size_t end) {
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
float segments(const Scalar& s, const Floats& a, const Floats& b, size_t segment, Pass pass) {
  float sum = 0;
  for (size_t begin = 0; begin < a.size(); begin += segment) {
    const float part = pass(s, a, b, begin, std::min(a.size(), begin + segment));
    sum = begin == 0 ? part : s.add(sum, part);
  }
  return sum;
}

// x = part[0] + part[1] + ..., each the nearest bf16 of what is left.
std::vector<Floats> split(const Floats& x, size_t parts) {
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

float not_nan(float x) { return x != x ? 0.0f : x; }

// sum over k of a[k] b[k]; `segment` = 0: one segment.
float dot(const Floats& a, const Floats& b, size_t segment, ReferenceArithmetic arithmetic) {
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

Tensor dot_general(const Op& op, const Tensor& lhs, const Tensor& rhs, ReferenceArithmetic arithmetic) {
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

// An NHWC image that reads +0 outside.
struct Image {
  Floats data;
  Dims dims;
  explicit Image(const Tensor& t) : data(load(t)), dims(t.dims()) {}
  bool inside(int64_t h, int64_t w) const { return h >= 0 && h < dims[1] && w >= 0 && w < dims[2]; }
  size_t at(int64_t n, int64_t h, int64_t w, int64_t c) const {
    return static_cast<size_t>(((n * dims[1] + h) * dims[2] + w) * dims[3] + c);
  }
  float get(int64_t n, int64_t h, int64_t w, int64_t c) const { return inside(h, w) ? data[at(n, h, w, c)] : 0.0f; }
};

Tensor convolution(const Op& op, const Tensor& x_t, const Tensor& w_t, ReferenceArithmetic arithmetic) {
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

Tensor convolution_input_grad(const Op& op, const Tensor& dy_t, const Tensor& w_t, ReferenceArithmetic arithmetic) {
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

Tensor convolution_kernel_grad(const Op& op, const Tensor& x_t, const Tensor& dy_t, ReferenceArithmetic arithmetic) {
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

// ---- reductions and windows

// IEEE 754-2019 maximum.
float maximum(float a, float b) {
  if (a != a || b != b) return from_bits(kCanonicalNaN);
  if (a == b) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}

// Rule 4: segments of 4096, 16 lanes, the tree 8/4/2/1.
float lane_sum(const Scalar& s, const Floats& x) {
  float total = 0;
  for (size_t begin = 0; begin < x.size(); begin += 4096) {
    const size_t end = std::min(x.size(), begin + 4096);
    float lane[16] = {};
    bool taken[16] = {};
    for (size_t i = begin; i < end; ++i) {
      const size_t j = (i - begin) % 16;
      lane[j] = taken[j] ? s.add(lane[j], x[i]) : s.in(x[i]);
      taken[j] = true;
    }
    for (size_t step = 8; step >= 1; step /= 2) {
      for (size_t j = 0; j < step; ++j) {
        if (taken[j + step]) lane[j] = s.add(lane[j], lane[j + step]);
      }
    }
    total = begin == 0 ? lane[0] : s.add(total, lane[0]);
  }
  return total;
}

Tensor reduce(const Op& op, const Tensor& x_t, const Scalar& s) {
  const Floats x = load(x_t);
  std::vector<Floats> groups(static_cast<size_t>(op.type.elements()));
  for (size_t i = 0; i < x.size(); ++i) {
    const auto index = unflatten(static_cast<int64_t>(i), x_t.dims());
    std::vector<int64_t> kept;
    for (size_t d = 0; d < index.size(); ++d) {
      if (std::find(op.attrs.dims.begin(), op.attrs.dims.end(), static_cast<int64_t>(d)) == op.attrs.dims.end()) {
        kept.push_back(index[d]);
      }
    }
    groups[static_cast<size_t>(flatten(kept, op.type.dims))].push_back(x[i]);
  }
  Floats out;
  for (const Floats& group : groups) {
    if (op.attrs.reducer == Reducer::kMax) {
      float most = s.in(group.at(0));
      for (float v : group) most = maximum(most, s.in(v));
      out.push_back(most);
    } else {
      const float sum = lane_sum(s, group);
      out.push_back(op.attrs.reducer == Reducer::kSum ? sum : s.div(sum, static_cast<float>(group.size())));
    }
  }
  return save(out, op.type);
}

// Positions of the window's taps inside the image, (kh, kw) order.
std::vector<size_t> taps(const Dims& image, const Window& win, int64_t n, int64_t oh, int64_t ow, int64_t c) {
  std::vector<size_t> out;
  for (int64_t kh = 0; kh < win.size[0]; ++kh) {
    for (int64_t kw = 0; kw < win.size[1]; ++kw) {
      const int64_t h = oh * win.stride[0] - win.pad_low[0] + kh, w = ow * win.stride[1] - win.pad_low[1] + kw;
      if (h < 0 || h >= image[1] || w < 0 || w >= image[2]) continue;
      out.push_back(static_cast<size_t>(((n * image[1] + h) * image[2] + w) * image[3] + c));
    }
  }
  return out;
}

Tensor reduce_window(const Op& op, const Tensor& x_t, const Scalar& s) {
  const Floats x = load(x_t);
  Floats out;
  for (int64_t i = 0; i < op.type.elements(); ++i) {
    const auto o = unflatten(i, op.type.dims);
    const auto at = taps(x_t.dims(), op.attrs.window, o[0], o[1], o[2], o[3]);
    float v = s.in(x[at.at(0)]);
    for (size_t j = 1; j < at.size(); ++j) {
      v = op.attrs.reducer == Reducer::kMax ? maximum(v, s.in(x[at[j]])) : s.add(v, x[at[j]]);
    }
    out.push_back(op.attrs.reducer == Reducer::kMax ? v : s.div(v, static_cast<float>(at.size())));
  }
  return save(out, op.type);
}

// The gradients of pooling: contributions to each x in ascending (oh, ow) order, the first one stored, not added.
struct Scatter {
  const Scalar& s;
  Floats values;
  std::vector<bool> touched;
  Scatter(const Scalar& scalar, int64_t n)
      : s(scalar), values(static_cast<size_t>(n), 0.0f), touched(static_cast<size_t>(n), false) {}
  void add(size_t at, float v) {
    values[at] = touched[at] ? s.add(values[at], v) : s.in(v);
    touched[at] = true;
  }
};

Tensor select_and_scatter(const Op& op, const Tensor& x_t, const Tensor& dy_t, const Scalar& s) {
  const Floats x = load(x_t), dy = load(dy_t);
  Scatter dx(s, op.type.elements());
  for (int64_t i = 0; i < dy_t.elements(); ++i) {
    const auto o = unflatten(i, dy_t.dims());
    const auto at = taps(x_t.dims(), op.attrs.window, o[0], o[1], o[2], o[3]);
    size_t best = at.at(0);
    for (size_t j : at) {
      if (x[best] != x[best]) break;  // the first NaN
      if (x[j] != x[j] || s.in(x[j]) > s.in(x[best])) best = j;
    }
    dx.add(best, dy[static_cast<size_t>(i)]);
  }
  return save(dx.values, op.type);
}

Tensor avg_pool_grad(const Op& op, const Tensor& dy_t, const Scalar& s) {
  const Floats dy = load(dy_t);
  Scatter dx(s, op.type.elements());
  for (int64_t i = 0; i < dy_t.elements(); ++i) {
    const auto o = unflatten(i, dy_t.dims());
    const auto at = taps(op.type.dims, op.attrs.window, o[0], o[1], o[2], o[3]);
    const float share = s.div(dy[static_cast<size_t>(i)], static_cast<float>(at.size()));
    for (size_t j : at) dx.add(j, share);
  }
  return save(dx.values, op.type);
}

// ---- sources and moves

Tensor constant(const Op& op) {
  Tensor t = Tensor::empty(op.type);
  for (size_t i = 0; i < static_cast<size_t>(t.elements()); ++i) {
    switch (op.type.dtype) {
      case DType::kF32: t.as<float>()[i] = canonical(static_cast<float>(op.attrs.value)); break;
      case DType::kBF16: t.as<uint16_t>()[i] = bf16_round(static_cast<float>(op.attrs.value)); break;
      case DType::kI32: t.as<int32_t>()[i] = static_cast<int32_t>(op.attrs.value); break;
      case DType::kPred: t.as<uint8_t>()[i] = op.attrs.value != 0; break;
      default: unsupported(op);
    }
  }
  return t;
}

Tensor iota(const Op& op) {
  Tensor t = Tensor::empty(op.type);
  for (int64_t i = 0; i < t.elements(); ++i) {
    const int64_t at = unflatten(i, op.type.dims)[static_cast<size_t>(op.attrs.dims[0])];
    if (op.type.dtype == DType::kI32) {
      t.as<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(at);
    } else {
      t.as<float>()[static_cast<size_t>(i)] = static_cast<float>(at);
    }
  }
  return t;
}

Tensor rng_uniform(const Op& op, const Tensor& step, const Tensor& samples) {
  Tensor t = Tensor::empty(op.type);
  const int64_t per_sample = op.type.elements() / samples.elements();
  for (int64_t i = 0; i < t.elements(); ++i) {
    const auto sample = static_cast<uint32_t>(samples.as<int32_t>()[static_cast<size_t>(i / per_sample)]);
    const uint32_t u = draw({op.attrs.seed, kStreamOps + op.attrs.stream}, static_cast<uint32_t>(step.as<int32_t>()[0]),
                            sample, static_cast<uint64_t>(i % per_sample));
    t.as<float>()[static_cast<size_t>(i)] = uniform(u);
  }
  return t;
}

void copy_element(const Tensor& from, int64_t i, Tensor& to, int64_t j) {
  const size_t size = size_of(from.dtype());
  std::copy_n(from.raw() + static_cast<size_t>(i) * size, size, to.raw() + static_cast<size_t>(j) * size);
}

Tensor move(const Op& op, std::span<const Tensor> inputs) {
  Tensor t = Tensor::empty(op.type);
  const Tensor& x = inputs[0];
  for (int64_t i = 0; i < t.elements(); ++i) {
    const auto index = unflatten(i, op.type.dims);
    std::vector<int64_t> from(x.dims().size());
    switch (op.kind) {
      case OpKind::kBroadcastInDim:
        for (size_t d = 0; d < from.size(); ++d) {
          from[d] = x.dims()[d] == 1 ? 0 : index[static_cast<size_t>(op.attrs.dims[d])];
        }
        copy_element(x, flatten(from, x.dims()), t, i);
        break;
      case OpKind::kTranspose:
        for (size_t d = 0; d < from.size(); ++d) from[static_cast<size_t>(op.attrs.dims[d])] = index[d];
        copy_element(x, flatten(from, x.dims()), t, i);
        break;
      case OpKind::kReshape: copy_element(x, i, t, i); break;
      default: copy_element(inputs[x.as<uint8_t>()[static_cast<size_t>(i)] != 0 ? 1 : 2], i, t, i);
    }
  }
  return t;
}

// ---- elementwise

template <typename T>
bool holds(CompareKind kind, T a, T b) {
  switch (kind) {
    case CompareKind::kEq: return a == b;
    case CompareKind::kNe: return a != b;
    case CompareKind::kLt: return a < b;
    case CompareKind::kLe: return a <= b;
    case CompareKind::kGt: return a > b;
    case CompareKind::kGe: return a >= b;
  }
  return false;
}

Tensor compare(const Op& op, const Tensor& a, const Tensor& b, const Scalar& s) {
  Tensor t = Tensor::empty(op.type);
  auto out = t.as<uint8_t>();
  if (a.dtype() == DType::kI32) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = holds(op.attrs.compare, a.as<int32_t>()[i], b.as<int32_t>()[i]);
  } else {
    const Floats x = load(a), y = load(b);
    for (size_t i = 0; i < out.size(); ++i) out[i] = holds(op.attrs.compare, s.in(x[i]), s.in(y[i]));
  }
  return t;
}

int32_t to_i32(float x) {
  if (x != x) return 0;
  if (x >= 0x1p31f) return INT32_MAX;
  if (x <= -0x1p31f) return INT32_MIN;
  return static_cast<int32_t>(x);
}

Tensor convert(const Op& op, const Tensor& x, const Scalar& s) {
  const auto n = static_cast<size_t>(x.elements());
  Floats values(n);
  for (size_t i = 0; i < n; ++i) {
    switch (x.dtype()) {
      case DType::kI32: values[i] = static_cast<float>(x.as<int32_t>()[i]); break;
      case DType::kPred: values[i] = x.as<uint8_t>()[i] != 0 ? 1.0f : 0.0f; break;
      case DType::kF32: values[i] = s.in(x.as<float>()[i]); break;
      case DType::kBF16: values[i] = s.in(bf16_to_f32(x.as<uint16_t>()[i])); break;
      default: unsupported(op);
    }
  }
  if (op.type.dtype != DType::kI32) return save(values, op.type);
  Tensor t = Tensor::empty(op.type);
  for (size_t i = 0; i < n; ++i) t.as<int32_t>()[i] = to_i32(values[i]);
  return t;
}

Tensor integers(const Op& op, std::span<const Tensor> inputs) {
  Tensor t = Tensor::empty(op.type);
  for (size_t i = 0; i < static_cast<size_t>(t.elements()); ++i) {
    const int64_t a = inputs[0].as<int32_t>()[i];
    const int64_t b = inputs.size() > 1 ? inputs[1].as<int32_t>()[i] : 0;
    int64_t r = 0;
    switch (op.kind) {
      case OpKind::kAdd: r = a + b; break;
      case OpKind::kSubtract: r = a - b; break;
      case OpKind::kMultiply: r = a * b; break;
      case OpKind::kMaximum: r = a > b ? a : b; break;
      case OpKind::kMinimum: r = a < b ? a : b; break;
      case OpKind::kNegate: r = -a; break;
      case OpKind::kAbs: r = a < 0 ? -a : a; break;
      default: unsupported(op);
    }
    t.as<int32_t>()[i] = static_cast<int32_t>(static_cast<uint32_t>(static_cast<uint64_t>(r)));
  }
  return t;
}

float node(const Op& op, float a, float b, const Scalar& s) {
  switch (op.kind) {
    case OpKind::kNegate: return from_bits(to_bits(a) ^ 0x80000000u);
    case OpKind::kAbs: return from_bits(to_bits(a) & 0x7FFFFFFFu);
    case OpKind::kAdd: return s.add(a, b);
    case OpKind::kSubtract: return s.sub(a, b);
    case OpKind::kMultiply: return s.mul(a, b);
    case OpKind::kDivide: return s.div(a, b);
    case OpKind::kMaximum: return maximum(s.in(a), s.in(b));
    case OpKind::kMinimum: return -maximum(-s.in(a), -s.in(b));
    case OpKind::kSqrt: return s.sqrt(a);
    case OpKind::kRsqrt: return s.div(1.0f, s.sqrt(a));
    case OpKind::kExponential: return reference_exp(a, s.flush);
    case OpKind::kLog: return reference_log(a, s.flush);
    case OpKind::kTanh: return reference_tanh(a, s.flush);
    case OpKind::kLogistic: return s.div(1.0f, s.add(1.0f, reference_exp(-a, s.flush)));
    default: unsupported(op);
  }
}

Tensor elementwise(const Op& op, std::span<const Tensor> inputs, const Scalar& s) {
  if (op.type.dtype == DType::kI32) return integers(op, inputs);
  const Floats a = load(inputs[0]);
  const Floats b = inputs.size() > 1 ? load(inputs[1]) : a;
  Floats out(a.size());
  for (size_t i = 0; i < a.size(); ++i) out[i] = node(op, a[i], b[i], s);
  return save(out, op.type);
}

}  // namespace

float reference_exp(float x, bool flush) {
  return by_mpfr(x, flush, [](mpfr_ptr y, mpfr_srcptr v) { return mpfr_exp(y, v, MPFR_RNDN); });
}
float reference_log(float x, bool flush) {
  return by_mpfr(x, flush, [](mpfr_ptr y, mpfr_srcptr v) { return mpfr_log(y, v, MPFR_RNDN); });
}
float reference_tanh(float x, bool flush) {
  return by_mpfr(x, flush, [](mpfr_ptr y, mpfr_srcptr v) { return mpfr_tanh(y, v, MPFR_RNDN); });
}

Tensor reference_op(const Op& op, std::span<const Tensor> inputs, ReferenceArithmetic arithmetic) {
  const Scalar s{arithmetic.flush};
  switch (op.kind) {
    case OpKind::kConstant: return constant(op);
    case OpKind::kIota: return iota(op);
    case OpKind::kBroadcastInDim:
    case OpKind::kReshape:
    case OpKind::kTranspose:
    case OpKind::kSelect: return move(op, inputs);
    case OpKind::kConvert: return convert(op, inputs[0], s);
    case OpKind::kCompare: return compare(op, inputs[0], inputs[1], s);
    case OpKind::kDotGeneral: return dot_general(op, inputs[0], inputs[1], arithmetic);
    case OpKind::kConvolution: return convolution(op, inputs[0], inputs[1], arithmetic);
    case OpKind::kConvolutionInputGrad: return convolution_input_grad(op, inputs[0], inputs[1], arithmetic);
    case OpKind::kConvolutionKernelGrad: return convolution_kernel_grad(op, inputs[0], inputs[1], arithmetic);
    case OpKind::kReduce: return reduce(op, inputs[0], s);
    case OpKind::kReduceWindow: return reduce_window(op, inputs[0], s);
    case OpKind::kSelectAndScatter: return select_and_scatter(op, inputs[0], inputs[1], s);
    case OpKind::kAvgPoolGrad: return avg_pool_grad(op, inputs[0], s);
    case OpKind::kRngUniform: return rng_uniform(op, inputs[0], inputs[1]);
    case OpKind::kParameter:
    case OpKind::kAllReduce: unsupported(op);
    default: return elementwise(op, inputs, s);
  }
}

Tensor reference_all_reduce(std::span<const Tensor> contributions, ReferenceArithmetic arithmetic) {
  const Scalar s{arithmetic.flush};
  const TensorType type = contributions[0].type();
  const auto n = static_cast<int64_t>(contributions.size());
  const int64_t length = contributions[0].elements();
  std::vector<Floats> x;
  for (const Tensor& t : contributions) x.push_back(load(t));
  auto hop = [&](float v) { return type.dtype == DType::kBF16 ? bf16_to_f32(bf16_round(v)) : v; };
  Floats out(static_cast<size_t>(length));
  for (int64_t c = 0; c < n; ++c) {
    for (int64_t i = c * length / n; i < (c + 1) * length / n; ++i) {
      const auto u = static_cast<size_t>(i);
      float sum = x[static_cast<size_t>((c + 1) % n)][u];
      for (int64_t j = 2; j <= n; ++j) sum = hop(s.add(sum, x[static_cast<size_t>((c + j) % n)][u]));
      out[u] = sum;
    }
  }
  return save(out, type);
}

}  // namespace twinrun
