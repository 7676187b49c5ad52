// The addends behind each element of dots, convolutions, reductions, scatters and windows.
#include "backends/faults/terms.h"

#include <algorithm>
#include <cmath>

#include "backends/faults/kind.h"
#include "program/base/bits.h"

namespace twinrun {
namespace {

using Term = std::function<void(int64_t, double)>;

// A number as the sum of up to three bf16 parts; each part is the remainder rounded to bf16
// (docs/method/numerics.md, the TPU).
struct Parts {
  double part[3];
  explicit Parts(float x) {
    for (double& p : part) {
      const float rounded = bf16_to_f32(bf16_round(x));
      p = rounded;
      x -= rounded;
    }
  }
};

// One term of a dot: the product of a and b at this precision. Products of binary32 numbers are
// exact in binary64, and the sums of their few parts nearly always are.
double product(DotPrecision precision, float a, float b) {
  if (precision == DotPrecision::kF32) return static_cast<double>(a) * b;
  const Parts of_a(a), of_b(b);
  const double *x = of_a.part, *y = of_b.part;
  switch (precision) {
    case DotPrecision::kBf16x3:
      return x[0] * y[0] + (x[0] * y[1] + x[1] * y[0]);
    case DotPrecision::kBf16x6:
      return x[0] * y[0] + (x[0] * y[1] + x[1] * y[0]) + (x[0] * y[2] + x[1] * y[1] + x[2] * y[0]);
    default:
      return x[0] * y[0];
  }
}

void dot_terms(const Op& op, const std::vector<Tensor>& inputs, DotPrecision precision,
               const Term& term) {
  const Dims &da = inputs[0].dims(), &db = inputs[1].dims();
  const auto batch = static_cast<size_t>(op.attrs.batch_dims);
  const bool a_last = op.attrs.lhs_contract == 1, b_last = op.attrs.rhs_contract == 1;
  const int64_t k = da[batch + (a_last ? 1 : 0)];
  const int64_t m = da[batch + (a_last ? 0 : 1)], n = db[batch + (b_last ? 0 : 1)];
  const int64_t batches = m * n == 0 ? 0 : op.type.elements() / (m * n);
  const auto a = inputs[0].as<float>(), b = inputs[1].as<float>();
  for (int64_t t = 0; t < batches; ++t) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t q = 0; q < k; ++q) {
          const int64_t at_a = t * m * k + (a_last ? i * k + q : q * m + i);
          const int64_t at_b = t * n * k + (b_last ? j * k + q : q * n + j);
          term((t * m + i) * n + j,
               product(precision, a[static_cast<size_t>(at_a)], b[static_cast<size_t>(at_b)]));
        }
      }
    }
  }
}

// The convolution and its two gradients all iterate over (pixel of y, tap of w, input channel,
// output channel); an element of the result is the sum over the indices that it does not have.
void convolution_terms(const Op& op, const std::vector<Tensor>& inputs, DotPrecision precision,
                       const Term& term) {
  const bool forward = op.kind == OpKind::kConvolution;
  const bool input_grad = op.kind == OpKind::kConvolutionInputGrad;
  const Dims& x = input_grad ? op.type.dims : inputs[0].dims();
  const Dims& y = forward ? op.type.dims : inputs[input_grad ? 0 : 1].dims();
  const Dims& w = forward || input_grad ? inputs[1].dims() : op.type.dims;
  const Window& window = op.attrs.window;
  const int64_t own = w[3] / op.attrs.groups;  // output channels of a group
  const auto a = inputs[0].as<float>(), b = inputs[1].as<float>();
  for (int64_t pixel = 0; pixel < y[0] * y[1] * y[2]; ++pixel) {
    const int64_t n = pixel / (y[1] * y[2]), oh = pixel / y[2] % y[1], ow = pixel % y[2];
    for (int64_t tap = 0; tap < w[0] * w[1]; ++tap) {
      const int64_t kh = tap / w[1], kw = tap % w[1];
      const int64_t h = oh * window.stride[0] - window.pad_low[0] + kh * window.dilation[0];
      const int64_t v = ow * window.stride[1] - window.pad_low[1] + kw * window.dilation[1];
      if (h < 0 || h >= x[1] || v < 0 || v >= x[2]) continue;
      for (int64_t ci = 0; ci < w[2]; ++ci) {
        for (int64_t co = 0; co < w[3]; ++co) {
          const auto at_x = ((n * x[1] + h) * x[2] + v) * x[3] + co / own * w[2] + ci;
          const auto at_w = (tap * w[2] + ci) * w[3] + co;
          const auto at_y = pixel * y[3] + co;
          const auto first = static_cast<size_t>(input_grad ? at_y : at_x);
          const auto second = static_cast<size_t>(forward || input_grad ? at_w : at_y);
          term(forward ? at_y : input_grad ? at_x : at_w, product(precision, a[first], b[second]));
        }
      }
    }
  }
}

void reduce_terms(const Op& op, const Tensor& x, const Term& term) {
  const Dims& d = x.dims();
  std::vector<int64_t> stride(d.size(), 0);  // strides of the result; 0 along reduced dimensions
  int64_t next = 1;
  for (size_t i = d.size(); i-- > 0;) {
    if (std::ranges::find(op.attrs.dims, static_cast<int64_t>(i)) != op.attrs.dims.end()) continue;
    stride[i] = next;
    next *= d[i];
  }
  for (int64_t e = 0; e < x.elements(); ++e) {
    int64_t rest = e, at = 0;
    for (size_t i = d.size(); i-- > 0; rest /= d[i]) at += rest % d[i] * stride[i];
    term(at, x.as<float>()[static_cast<size_t>(e)]);
  }
}

void scatter_terms(const Op& op, const Tensor& ids, const Tensor& dy, const Term& term) {
  const int64_t rows = op.type.dims[0],
                row = ids.elements() == 0 ? 0 : dy.elements() / ids.elements();
  for (int64_t i = 0; i < ids.elements(); ++i) {
    const int64_t to = std::clamp<int64_t>(ids.as<int32_t>()[static_cast<size_t>(i)], 0, rows - 1);
    for (int64_t e = 0; e < row; ++e)
      term(to * row + e, dy.as<float>()[static_cast<size_t>(i * row + e)]);
  }
}

// Calls f(element of y, the elements of x under its window) for every window, in order.
void each_window(const Dims& x, const Window& window,
                 const std::function<void(int64_t, const std::vector<int64_t>&)>& f) {
  std::vector<int64_t> under;
  const int64_t rows = window.out(x[1], 0), columns = window.out(x[2], 1);
  for (int64_t e = 0; e < x[0] * rows * columns * x[3]; ++e) {
    const int64_t c = e % x[3], ow = e / x[3] % columns, oh = e / x[3] / columns % rows;
    const int64_t n = e / x[3] / columns / rows;
    under.clear();
    for (int64_t kh = 0; kh < window.size[0]; ++kh) {
      for (int64_t kw = 0; kw < window.size[1]; ++kw) {
        const int64_t h = oh * window.stride[0] - window.pad_low[0] + kh;
        const int64_t v = ow * window.stride[1] - window.pad_low[1] + kw;
        if (h >= 0 && h < x[1] && v >= 0 && v < x[2])
          under.push_back(((n * x[1] + h) * x[2] + v) * x[3] + c);
      }
    }
    f(e, under);
  }
}

void window_terms(const Op& op, const std::vector<Tensor>& inputs, bool last_maximum,
                  const Term& term) {
  const bool forward = op.kind == OpKind::kReduceWindow;
  const Dims& x = forward ? inputs[0].dims() : op.type.dims;
  const auto a = inputs[0].as<float>(), dy = inputs.back().as<float>();
  each_window(x, op.attrs.window, [&](int64_t e, const std::vector<int64_t>& under) {
    if (under.empty()) return;
    if (op.kind == OpKind::kSelectAndScatter) {
      int64_t best = under[0];
      for (int64_t at : under) {
        const float v = a[static_cast<size_t>(at)], most = a[static_cast<size_t>(best)];
        if (v > most || (v == most && last_maximum) || (std::isnan(v) && !std::isnan(most)))
          best = at;
      }
      term(best, dy[static_cast<size_t>(e)]);
      return;
    }
    for (int64_t at : under) {
      if (forward) {
        term(e, a[static_cast<size_t>(at)]);
      } else {
        term(at, dy[static_cast<size_t>(e)] / static_cast<float>(under.size()));
      }
    }
  });
}

}  // namespace

bool has_terms(const Program& program, ValueId id) {
  const Op& op = op_at(program, id);
  if (!is_f32(op) || (op.kind != OpKind::kScatterAdd && !f32_operands(program, id))) return false;
  switch (op.kind) {
    case OpKind::kReduce:
    case OpKind::kReduceWindow:
      return op.attrs.reducer != Reducer::kMax;
    case OpKind::kScatterAdd:
    case OpKind::kSelectAndScatter:
    case OpKind::kAvgPoolGrad:
      return true;
    default:
      return is_dot(op);
  }
}

void each_term(const Op& op, const std::vector<Tensor>& inputs, TermOptions options,
               const Term& term) {
  switch (op.kind) {
    case OpKind::kDotGeneral:
      return dot_terms(op, inputs, options.precision, term);
    case OpKind::kReduce:
      return reduce_terms(op, inputs[0], term);
    case OpKind::kScatterAdd:
      return scatter_terms(op, inputs[0], inputs[1], term);
    case OpKind::kReduceWindow:
    case OpKind::kSelectAndScatter:
    case OpKind::kAvgPoolGrad:
      return window_terms(op, inputs, options.last_maximum, term);
    default:
      return convolution_terms(op, inputs, options.precision, term);
  }
}

Tensor add_up(const Op& op, const std::vector<Tensor>& inputs, TermOptions options,
              const std::function<float(float, double)>& add) {
  Tensor result = Tensor::zeros(op.type);
  const auto sum = result.as<float>();
  std::vector<int64_t> count(sum.size(), 0);
  each_term(op, inputs, options, [&](int64_t element, double term) {
    const auto i = static_cast<size_t>(element);
    sum[i] = add(sum[i], term);
    ++count[i];
  });
  if (op.attrs.reducer == Reducer::kMean &&
      (op.kind == OpKind::kReduce || op.kind == OpKind::kReduceWindow)) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] /= static_cast<float>(count[i]);
  }
  return result;
}

}  // namespace twinrun
