// Where the elements of a tensor go in a reduction, and which pixels a window of pooling has: the walks that binary64 (reduce.cc)
// and the prime field (field_reduce.cc) share.
//
//   const RunTargets targets(x.dims(), op.attrs.dims);     // element i of run r belongs to targets.of_run(r) + i * targets.step()
//   Pooling(image, grid, window).taps(y, x, [&](int64_t pixel) { .. });
#pragma once

#include <algorithm>
#include <vector>

#include "program/base/types.h"
#include "program/ops/op.h"

namespace twinrun::oracle {

// For runs along the last dimension of a tensor: the flat index of the reduction that each belongs to.
class RunTargets {
 public:
  RunTargets(const Dims& dims, const Dims& reduced) : dims_(dims), strides_(dims.size(), 0) {
    int64_t stride = 1;
    for (size_t d = dims.size(); d-- > 0;) {
      if (std::find(reduced.begin(), reduced.end(), static_cast<int64_t>(d)) != reduced.end())
        continue;
      strides_[d] = stride;
      stride *= dims[d];
    }
  }
  int64_t run() const { return dims_.empty() ? 1 : dims_.back(); }  // elements
  int64_t step() const {
    return dims_.empty() ? 0 : strides_.back();
  }  // 0: a run is reduced to one
  int64_t of_run(int64_t row) const {
    int64_t at = 0;
    for (size_t d = dims_.empty() ? 0 : dims_.size() - 1; d-- > 0;) {
      at += row % dims_[d] * strides_[d];
      row /= dims_[d];
    }
    return at;
  }

 private:
  const Dims& dims_;
  std::vector<int64_t> strides_;
};

// Pooling, channels side by side: windows of an image [n, h, w, c], and the taps of one that lie inside it.
struct Pooling {
  Pooling(const Dims& image, const Dims& grid, const Window& w)
      : image(image), grid(grid), window(w) {}
  const Dims& image;
  const Dims& grid;
  const Window& window;
  int64_t channels() const { return image[3]; }

  // f(pixel of sample n) for window (y, x), in (kh, kw) order.
  template <typename F>
  void taps(int64_t y, int64_t x, F f) const {
    for (int64_t kh = 0; kh < window.size[0]; ++kh) {
      const int64_t ih = y * window.stride[0] - window.pad_low[0] + kh;
      if (ih < 0 || ih >= image[1]) continue;
      for (int64_t kw = 0; kw < window.size[1]; ++kw) {
        const int64_t iw = x * window.stride[1] - window.pad_low[1] + kw;
        if (iw >= 0 && iw < image[2]) f(ih * image[2] + iw);
      }
    }
  }
  // f(window of the sample, y, x), in row-major order.
  template <typename F>
  void windows(F f) const {
    for (int64_t y = 0; y < grid[1]; ++y) {
      for (int64_t x = 0; x < grid[2]; ++x) f(y * grid[2] + x, y, x);
    }
  }
};

}  // namespace twinrun::oracle
