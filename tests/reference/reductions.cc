// The second interpreter's reductions, scatter_add, pooling and gradients of pooling.
#include "tests/reference/pieces.h"

namespace twinrun::reference {
// Contract rule 4: segments of 4096, 16 lanes in each, joined in the tree 8/4/2/1.
static float lane_sum(const Scalar& s, const Floats& x) {
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
      if (std::find(op.attrs.dims.begin(), op.attrs.dims.end(), static_cast<int64_t>(d)) ==
          op.attrs.dims.end()) {
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
      out.push_back(
          op.attrs.reducer == Reducer::kSum ? sum : s.div(sum, static_cast<float>(group.size())));
    }
  }
  return save(out, op.type);
}

// Flat positions of those taps of the window that lie inside the image, in (kh, kw) order.
static std::vector<size_t> taps(const Dims& image, const Window& win, int64_t n, int64_t oh,
                                int64_t ow, int64_t c) {
  std::vector<size_t> out;
  for (int64_t kh = 0; kh < win.size[0]; ++kh) {
    for (int64_t kw = 0; kw < win.size[1]; ++kw) {
      const int64_t h = oh * win.stride[0] - win.pad_low[0] + kh,
                    w = ow * win.stride[1] - win.pad_low[1] + kw;
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

namespace {
// Sums of contributions, as in the gradients of pooling: each x receives them in ascending (oh, ow)
// order. The first one is stored, not added to zero.
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
}  // namespace

Tensor scatter_add(const Op& op, const Tensor& ids, const Tensor& dy_t, const Scalar& s) {
  const int64_t rows = op.type.dims[0], width = op.type.elements() / rows;
  const auto row = [&](int64_t i) {
    return std::clamp<int64_t>(ids.as<int32_t>()[static_cast<size_t>(i)], 0, rows - 1);
  };
  if (op.type.dtype == DType::kI32) {
    Tensor t = Tensor::zeros(op.type);
    for (int64_t i = 0; i < dy_t.elements(); ++i)
      t.as<uint32_t>()[static_cast<size_t>(row(i / width) * width + i % width)] +=
          dy_t.as<uint32_t>()[static_cast<size_t>(i)];
    return t;
  }
  const Floats dy = load(dy_t);
  Scatter sums(s, op.type.elements());
  for (int64_t i = 0; i < dy_t.elements(); ++i) {
    const auto at = static_cast<size_t>(row(i / width) * width + i % width);
    sums.add(at, dy[static_cast<size_t>(i)]);
  }
  return save(sums.values, op.type);
}

Tensor select_and_scatter(const Op& op, const Tensor& x_t, const Tensor& dy_t, const Scalar& s) {
  const Floats x = load(x_t), dy = load(dy_t);
  Scatter dx(s, op.type.elements());
  for (int64_t i = 0; i < dy_t.elements(); ++i) {
    const auto o = unflatten(i, dy_t.dims());
    const auto at = taps(x_t.dims(), op.attrs.window, o[0], o[1], o[2], o[3]);
    size_t best = at.at(0);
    for (size_t j : at) {
      if (x[best] != x[best]) break;  // the first NaN counts as the maximum
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

}  // namespace twinrun::reference
