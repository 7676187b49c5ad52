// Index arithmetic of reductions and pooling, shared by binary64 (reduce.cc) and the prime field
// (field_reduce.cc).
//
//   // Element i of run r is reduced into element targets.of_run(r) + i * targets.step().
//   const RunTargets targets(x.dims(), op.attrs.dims);
//   Pooling(image, grid, window).taps(y, x, [&](int64_t pixel) { .. });
#pragma once

#include <algorithm>
#include <vector>

#include "program/base/types.h"
#include "program/ops/op.h"

namespace twinrun::oracle {

// For runs along the last dimension of a tensor: the flat indices of the results that they are
// reduced into.
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
  int64_t run() const { return dims_.empty() ? 1 : dims_.back(); }  // elements of a run
  // 0 if a run is reduced to one element.
  int64_t step() const { return dims_.empty() ? 0 : strides_.back(); }
  // Whether all runs are reduced into the same elements.
  bool same_targets() const {
    return std::all_of(strides_.begin(), strides_.empty() ? strides_.end() : strides_.end() - 1,
                       [](int64_t stride) { return stride == 0; });
  }
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

// The windows of pooling over an image [n, h, w, c], and the taps of each that are inside the
// image. All channels of a pixel are handled together.
struct Pooling {
  Pooling(const Dims& image, const Dims& grid, const Window& w)
      : image(image), grid(grid), window(w) {}
  const Dims& image;
  const Dims& grid;
  const Window& window;
  int64_t channels() const { return image[3]; }

  // Calls f(pixel within its sample) for the taps of window (y, x), in (kh, kw) order.
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
  // Calls f(window within its sample, y, x) for all windows, in row-major order.
  template <typename F>
  void windows(F f) const {
    for (int64_t y = 0; y < grid[1]; ++y) {
      for (int64_t x = 0; x < grid[2]; ++x) f(y * grid[2] + x, y, x);
    }
  }
};

}  // namespace twinrun::oracle
