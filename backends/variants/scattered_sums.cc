// Pooling, its gradients and scatter_add: collects the terms of every result in the contract's
// order, and adds them in the variant's order.
#include <algorithm>

#include "backends/kernels/arithmetic.h"
#include "backends/variants/internal.h"
#include "backends/variants/order.h"

namespace twinrun::variants {
namespace {

struct Term {
  int64_t target;
  float value;
};

// Calls f(flat index into the image) for the taps of window (n, y, x), channel c, that are inside
// the image.
template <typename F>
void for_taps(const Dims& image, const Window& w, int64_t n, int64_t y, int64_t x, int64_t c, F f) {
  for (int64_t kh = 0; kh < w.size[0]; ++kh) {
    const int64_t h = y * w.stride[0] - w.pad_low[0] + kh;
    for (int64_t kw = 0; kw < w.size[1]; ++kw) {
      const int64_t v = x * w.stride[1] - w.pad_low[1] + kw;
      if (h < 0 || h >= image[1] || v < 0 || v >= image[2]) continue;
      f(((n * image[1] + h) * image[2] + v) * image[3] + c);
    }
  }
}

// Calls f(flat index of the window, n, y, x, c) for all windows in row-major order.
template <typename F>
void for_windows(const Dims& grid, F f) {
  int64_t i = 0;
  for (int64_t n = 0; n < grid[0]; ++n) {
    for (int64_t y = 0; y < grid[1]; ++y) {
      for (int64_t x = 0; x < grid[2]; ++x) {
        for (int64_t c = 0; c < grid[3]; ++c) f(i++, n, y, x, c);
      }
    }
  }
}

std::vector<Term> terms_of(const Op& op, std::span<const Tensor> inputs) {
  std::vector<Term> terms;
  const Window& w = op.attrs.window;
  switch (op.kind) {
    case OpKind::kScatterAdd: {
      const int64_t rows = op.type.dims[0], width = op.type.elements() / rows;
      for (int64_t i = 0; i < inputs[0].elements(); ++i) {
        const int64_t id = inputs[0].as<int32_t>()[static_cast<size_t>(i)];
        const int64_t row = std::clamp<int64_t>(id, 0, rows - 1);
        for (int64_t c = 0; c < width; ++c)
          terms.push_back({row * width + c, number(inputs[1], i * width + c)});
      }
      break;
    }
    case OpKind::kReduceWindow:
      for_windows(op.type.dims, [&](int64_t i, int64_t n, int64_t y, int64_t x, int64_t c) {
        for_taps(inputs[0].dims(), w, n, y, x, c, [&](int64_t at) {
          terms.push_back({i, number(inputs[0], at)});
        });
      });
      break;
    case OpKind::kSelectAndScatter:
      for_windows(inputs[1].dims(), [&](int64_t i, int64_t n, int64_t y, int64_t x, int64_t c) {
        int64_t best = -1;
        float most = 0;
        for_taps(op.type.dims, w, n, y, x, c, [&](int64_t at) {
          const float v = number(inputs[0], at);
          if (best >= 0 && (most != most || !(v != v || v > most))) return;
          best = at, most = v;
        });
        if (best >= 0) terms.push_back({best, number(inputs[1], i)});
      });
      break;
    default:  // avg_pool_grad
      for_windows(inputs[0].dims(), [&](int64_t i, int64_t n, int64_t y, int64_t x, int64_t c) {
        int64_t count = 0;
        for_taps(op.type.dims, w, n, y, x, c, [&](int64_t) { ++count; });
        const float share = number(inputs[0], i) / static_cast<float>(count);
        for_taps(op.type.dims, w, n, y, x, c, [&](int64_t at) { terms.push_back({at, share}); });
      });
  }
  return terms;
}

}  // namespace

void scattered_sums(const Variant& variant, const Op& op, std::span<const Tensor> inputs,
                    Tensor& output) {
  const FlushScope scope(variant.declared.flush);
  const std::vector<Term> terms = terms_of(op, inputs);
  // Group the terms by target with a stable counting sort.
  std::vector<int64_t> begin(static_cast<size_t>(output.elements()) + 1, 0);
  for (const Term& t : terms) ++begin[static_cast<size_t>(t.target) + 1];
  for (size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
  std::vector<int64_t> next(begin.begin(), begin.end() - 1);
  std::vector<float> values(terms.size());
  for (const Term& t : terms)
    values[static_cast<size_t>(next[static_cast<size_t>(t.target)]++)] = t.value;
  const bool mean = op.kind == OpKind::kReduceWindow;
  for (int64_t i = 0; i < output.elements(); ++i) {
    const int64_t from = begin[static_cast<size_t>(i)],
                  n = begin[static_cast<size_t>(i) + 1] - from;
    const float sum = sum_in_order<float>(variant.scatter, n, Numbers{values.data() + from});
    set_number(output, i, mean ? sum / static_cast<float>(n) : sum, variant.declared.flush);
  }
}

}  // namespace twinrun::variants
