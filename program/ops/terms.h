// Lists which elements of the operands make up each element of a sum: dots, convolutions and their
// gradients, reduce, scatter_add, pooling and its gradients. Engines' variants and faults and the
// hypotheses about wrong results use it.
//
//   for_each_term(op, inputs, [&](const SumTerm& t) { sum[t.result] += x[t.a] * w[t.b]; });
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "program/base/bits.h"
#include "program/ops/contraction.h"

namespace twinrun {

// One term of the sum of element `result`. All indices are flat.
struct SumTerm {
  int64_t result = 0;
  int64_t a = -1;     // element of the first operand of a dot or convolution
  int64_t b = 0;      // element of the last operand
  int64_t count = 1;  // avg_pool_grad: the term is element b divided by this
};

// Which of several equal maxima select_and_scatter selects. The contract's is the first.
enum class Ties : uint8_t { kFirst, kLast, kAll };

// Whether for_each_term lists the terms of this op. Maxima have none.
inline bool is_sum_of_terms(const Op& op) {
  switch (op.kind) {
    case OpKind::kReduce:
    case OpKind::kReduceWindow:
      return op.attrs.reducer != Reducer::kMax;
    case OpKind::kScatterAdd:
    case OpKind::kSelectAndScatter:
    case OpKind::kAvgPoolGrad:
      return true;
    default:
      return class_of(op.kind) == OpClass::kDot;
  }
}
inline bool is_mean(const Op& op) {
  return (op.kind == OpKind::kReduce || op.kind == OpKind::kReduceWindow) &&
         op.attrs.reducer == Reducer::kMean;
}

// Calls f(flat index of the window, the flat indices of its taps that are inside the image) for all
// windows of a pooling op in row-major order, taps in (kh, kw) order.
template <typename F>
void for_each_window(const Dims& image, const Window& w, F f) {
  const int64_t rows = w.out(image[1], 0), columns = w.out(image[2], 1), channels = image[3];
  std::vector<int64_t> taps;
  for (int64_t i = 0; i < image[0] * rows * columns * channels; ++i) {
    const int64_t c = i % channels, ow = i / channels % columns, oh = i / channels / columns % rows,
                  n = i / channels / columns / rows;
    taps.clear();
    for (int64_t kh = 0; kh < w.size[0]; ++kh) {
      const int64_t h = oh * w.stride[0] - w.pad_low[0] + kh;
      if (h < 0 || h >= image[1]) continue;
      for (int64_t kw = 0; kw < w.size[1]; ++kw) {
        const int64_t v = ow * w.stride[1] - w.pad_low[1] + kw;
        if (v >= 0 && v < image[2])
          taps.push_back(((n * image[1] + h) * image[2] + v) * channels + c);
      }
    }
    f(i, taps);
  }
}

// Calls f(index) for the selected ones of these elements of x: the maxima, or the first NaN.
template <typename F>
void for_each_selected(const Tensor& x, const std::vector<int64_t>& among, Ties ties, F f) {
  const auto value = [&](int64_t i) {
    const auto u = static_cast<size_t>(i);
    return x.dtype() == DType::kBF16 ? bf16_to_f32(x.as<uint16_t>()[u]) : x.as<float>()[u];
  };
  int64_t best = -1;
  float most = 0;
  for (const int64_t at : among) {
    const float v = value(at);
    const bool better = best < 0 || (most == most && (v != v || v > most));
    if (better || (ties == Ties::kLast && v == most)) best = at, most = v;
  }
  if (best < 0) return;
  if (ties != Ties::kAll || most != most) return f(best);
  for (const int64_t at : among) {
    if (value(at) == most) f(at);
  }
}

// Calls f(SumTerm) for every term of every element. The terms of one element come in the contract's
// order (op.h). Factors of a convolution that lie in the padding are left out.
template <typename F>
void for_each_term(const Op& op, std::span<const Tensor> inputs, F f, Ties ties = Ties::kFirst) {
  switch (op.kind) {
    case OpKind::kScatterAdd: {
      const int64_t rows = op.type.dims[0], width = op.type.elements() / std::max<int64_t>(rows, 1);
      for (int64_t i = 0; i < inputs[0].elements(); ++i) {
        const int64_t id = inputs[0].as<int32_t>()[static_cast<size_t>(i)];
        const int64_t row = std::clamp<int64_t>(id, 0, rows - 1);
        for (int64_t c = 0; c < width; ++c)
          f(SumTerm{.result = row * width + c, .b = i * width + c});
      }
      return;
    }
    case OpKind::kReduceWindow:
      return for_each_window(inputs[0].dims(), op.attrs.window,
                             [&](int64_t i, const std::vector<int64_t>& taps) {
                               for (const int64_t at : taps) f(SumTerm{.result = i, .b = at});
                             });
    case OpKind::kSelectAndScatter:
      return for_each_window(
          op.type.dims, op.attrs.window, [&](int64_t i, const std::vector<int64_t>& taps) {
            for_each_selected(inputs[0], taps, ties,
                              [&](int64_t at) { f(SumTerm{.result = at, .b = i}); });
          });
    case OpKind::kAvgPoolGrad:
      return for_each_window(op.type.dims, op.attrs.window,
                             [&](int64_t i, const std::vector<int64_t>& taps) {
                               const auto count = static_cast<int64_t>(taps.size());
                               for (const int64_t at : taps)
                                 f(SumTerm{.result = at, .b = i, .count = count});
                             });
    default: {  // dots, convolutions and their gradients, reduce
      const Contraction c = contraction_of(op, inputs);
      const bool product = !c.a.terms.empty() || class_of(op.kind) == OpClass::kDot;
      for (int64_t p = 0; p < c.parts; ++p) {
        for (int64_t i = 0; i < c.m; ++i) {
          for (int64_t j = 0; j < c.n; ++j) {
            for (int64_t k = 0; k < c.k; ++k) {
              const int64_t a = product ? c.a.at(p, i, k) : -1, b = c.b.at(p, j, k);
              if ((!product || a >= 0) && b >= 0) f(SumTerm{c.result(p, i, j), a, b});
            }
          }
        }
      }
    }
  }
}

}  // namespace twinrun
