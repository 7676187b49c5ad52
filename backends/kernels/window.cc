// Pooling and its gradients over [n, h, w, c], vectorised over channels. Images are independent.
#include <limits>

#include "backends/kernels/arithmetic.h"
#include "backends/kernels/kernel_list.h"
#include "backends/kernels/scratch.h"
#include "backends/kernels/vector_f32.h"

namespace twinrun {
namespace {

struct Pool {
  int64_t images, height, width, channels, out[2];
  const Window& window;
  Pool(const Dims& x, const Window& w)
      : images(x[0]),
        height(x[1]),
        width(x[2]),
        channels(x[3]),
        out{w.out(x[1], 0), w.out(x[2], 1)},
        window(w) {}

  int64_t size() const { return height * width * channels; }
  // Whether every pixel lies in a window, for windows that do not overlap (apart()).
  bool covered() const {
    int64_t seen[2] = {0, 0};
    for (int axis = 0; axis < 2; ++axis) {
      for (int64_t o = 0; o < out[axis]; ++o) {
        int64_t begin, end;
        range(axis, o, begin, end);
        seen[axis] += std::max<int64_t>(0, end - begin);
      }
    }
    return seen[0] == height && seen[1] == width;
  }
  // Elements from a window to that of the next row, which is prefetched.
  int64_t ahead() const { return window.stride[0] * width * channels; }
  bool few() const { return window.size[0] * window.size[1] <= 64; }  // fits into Taps
  // Whether no two windows share a pixel.
  bool apart() const {
    return window.stride[0] >= window.size[0] && window.stride[1] >= window.size[1];
  }
  // Rows (axis 0) or columns (axis 1) of output o that lie inside the image.
  void range(int axis, int64_t o, int64_t& begin, int64_t& end) const {
    const int64_t low = o * window.stride[axis] - window.pad_low[axis];
    begin = std::max<int64_t>(low, 0);
    end = std::min(low + window.size[axis], axis == 0 ? height : width);
  }
  // Calls tap(pixel) for the pixels of output (y, x) inside the image, in (kh, kw) order; returns
  // their number.
  template <typename F>
  int64_t taps(int64_t y, int64_t x, F&& tap) const {
    int64_t r0, r1, c0, c1;
    range(0, y, r0, r1);
    range(1, x, c0, c1);
    for (int64_t r = r0; r < r1; ++r) {
      for (int64_t c = c0; c < c1; ++c) tap(r * width + c);
    }
    return std::max<int64_t>(0, r1 - r0) * std::max<int64_t>(0, c1 - c0);
  }
};

template <typename T, bool kFlush>
inline float element(typename T::type x) {
  return kFlush ? flush(T::load(x)) : T::load(x);
}

constexpr int64_t kChannels = 256;  // most channels computed in one pass

// Calls piece(image, c0, c1) for all images; where images are few, cuts them by channels as well.
template <typename F>
void for_images(const KernelContext& context, const Pool& pool, int64_t work, F&& piece) {
  int64_t blocks = (pool.channels + kChannels - 1) / kChannels;
  if (pool.images < threads_of(context)) {
    blocks = std::max(blocks, std::min<int64_t>(threads_of(context), pool.channels / 16));
  }
  for_pieces(context, pool.images * blocks, pool.images * pool.size() * work, [&](int64_t i) {
    const int64_t b = i % blocks;
    const FlushScope scope(context.arithmetic.flush);
    piece(i / blocks, pool.channels * b / blocks, pool.channels * (b + 1) / blocks);
  });
}

// The pixels of one window, in (kh, kw) order, for the functions below that keep values in
// registers.
struct Taps {
  static constexpr int64_t kMax = 64;
  int64_t offset[kMax];  // offset of each pixel's channel 0
  int count = 0;
  Taps(const Pool& pool, int64_t y, int64_t x) {
    pool.taps(y, x, [&](int64_t pixel) { offset[count++] = pixel * pool.channels; });
  }
};

// reduce_window for binary32, with the results of the general loops below; `channels` is a multiple
// of 8.
template <bool kFlush>
void window_f32(const Taps& taps, bool mean, const float* from, float* to, int64_t channels,
                int64_t ahead) {
  const __m256 nothing = _mm256_set1_ps(mean ? 0.0f : -std::numeric_limits<float>::infinity());
  const __m256 divisor = _mm256_set1_ps(static_cast<float>(taps.count));
  for (int64_t c = 0; c < channels; c += 8) {
    const auto load = [&](int t) {
      const float* x = from + taps.offset[t] + c;
      __builtin_prefetch(x + ahead, 0, 3);
      return flush8<kFlush>(_mm256_loadu_ps(x));
    };
    __m256 value = taps.count == 0 ? nothing : load(0);
    if (mean) {
      for (int t = 1; t < taps.count; ++t) value = _mm256_add_ps(value, load(t));
      value = _mm256_div_ps(value, divisor);
    } else {
      for (int t = 1; t < taps.count; ++t) value = maximum8(value, load(t));
    }
    _mm256_storeu_ps(to + c, canonical8(value));
  }
}

// select_and_scatter for binary32 where every pixel has at most one window; `channels` is a
// multiple of 8.
template <bool kFlush>
void scatter_f32(const Taps& taps, const float* from, const float* dy, float* to, int64_t channels,
                 int64_t ahead) {
  for (int64_t c = 0; c < channels; c += 8) {
    const auto load = [&](int t) {
      const float* x = from + taps.offset[t] + c;
      __builtin_prefetch(x + ahead, 0, 3);
      __builtin_prefetch(to + taps.offset[t] + c + ahead, 1);
      return flush8<kFlush>(_mm256_loadu_ps(x));
    };
    __m256 best = taps.count == 0 ? _mm256_setzero_ps() : load(0);
    __m256i where = _mm256_setzero_si256();
    // Select the larger tap, or the first NaN; ties stay with the earlier tap.
    for (int t = 1; t < taps.count; ++t) {
      const __m256 v = load(t);
      const __m256 nan = _mm256_andnot_ps(_mm256_cmp_ps(best, best, _CMP_UNORD_Q),
                                          _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
      const __m256 better = _mm256_or_ps(_mm256_cmp_ps(v, best, _CMP_GT_OQ), nan);
      best = _mm256_blendv_ps(best, v, better);
      where = _mm256_blendv_epi8(where, _mm256_set1_epi32(t), _mm256_castps_si256(better));
    }
    const __m256 d = canonical8(flush8<kFlush>(_mm256_loadu_ps(dy + c)));
    for (int t = 0; t < taps.count; ++t) {
      const __m256i here = _mm256_cmpeq_epi32(where, _mm256_set1_epi32(t));
      _mm256_storeu_ps(to + taps.offset[t] + c, _mm256_and_ps(_mm256_castsi256_ps(here), d));
    }
  }
}

template <typename T, bool kFlush>
void reduce_window(const KernelContext& context, const Op& op, const Tensor& x, Tensor& output) {
  using E = typename T::type;
  const Pool pool(x.dims(), op.attrs.window);
  const bool mean = op.attrs.reducer != Reducer::kMax;
  for_images(context, pool, 2, [&](int64_t image, int64_t c0, int64_t c1) {
    const E* from = x.as<E>().data() + image * pool.size();
    E* to = output.as<E>().data() + image * pool.out[0] * pool.out[1] * pool.channels;
    float value[kChannels];
    const int64_t n = c1 - c0;
    if constexpr (std::is_same_v<T, F32>) {
      if (n % 8 == 0 && pool.few()) {
        for (int64_t i = 0; i < pool.out[0] * pool.out[1]; ++i) {
          const Taps taps(pool, i / pool.out[1], i % pool.out[1]);
          window_f32<kFlush>(taps, mean, from + c0, to + i * pool.channels + c0, n, pool.ahead());
        }
        return;
      }
    }
    for (int64_t i = 0; i < pool.out[0] * pool.out[1]; ++i) {
      bool first = true;
      const int64_t count = pool.taps(i / pool.out[1], i % pool.out[1], [&](int64_t pixel) {
        const E* p = from + pixel * pool.channels + c0;
        if (first) {
          for (int64_t c = 0; c < n; ++c) value[c] = element<T, kFlush>(p[c]);
        } else if (mean) {
          for (int64_t c = 0; c < n; ++c) value[c] += element<T, kFlush>(p[c]);
        } else {
          for (int64_t c = 0; c < n; ++c) {
            const float a = value[c], b = element<T, kFlush>(p[c]);
            const float larger = a > b ? a : b;
            const float m = a == b ? from_bits(to_bits(a) & to_bits(b)) : larger;
            value[c] = a != a ? a : m;
          }
        }
        first = false;
      });
      if (first) std::fill_n(value, n, mean ? 0.0f : -std::numeric_limits<float>::infinity());
      const auto divisor = static_cast<float>(count);
      E* result = to + i * pool.channels + c0;
      for (int64_t c = 0; c < n; ++c)
        result[c] = T::template store<kFlush>(mean ? value[c] / divisor : value[c]);
    }
  });
}

// Marks pixels that no window has reached: no sum of canonical inputs has these bits.
constexpr uint32_t kUntouched = 0xFFFFFFFFu;

// Stores an image's sums as the result; pixels that no window has reached become +0.
template <typename T, bool kFlush>
void store_sums(const float* sums, typename T::type* to, int64_t pixels, int64_t channels,
                int64_t c0, int64_t c1) {
  for (int64_t p = 0; p < pixels; ++p) {
    const float* from = sums + p * (c1 - c0);
    for (int64_t c = 0; c < c1 - c0; ++c) {
      to[p * channels + c0 + c] =
          T::template store<kFlush>(to_bits(from[c]) == kUntouched ? 0.0f : from[c]);
    }
  }
}

template <typename T, bool kFlush>
void select_and_scatter(const KernelContext& context, const Op& op, const Tensor& x,
                        const Tensor& dy, Tensor& output) {
  using E = typename T::type;
  const Pool pool(x.dims(), op.attrs.window);
  for_images(context, pool, 6, [&](int64_t image, int64_t c0, int64_t c1) {
    const E* from = x.as<E>().data() + image * pool.size();
    const E* grad = dy.as<E>().data() + image * pool.out[0] * pool.out[1] * pool.channels;
    const int64_t n = c1 - c0;
    if constexpr (std::is_same_v<T, F32>) {
      if (n % 8 == 0 && pool.few() && pool.apart()) {
        float* to = output.as<float>().data() + image * pool.size();
        if (!pool.covered()) {
          for (int64_t p = 0; p < pool.height * pool.width; ++p)
            std::fill_n(to + p * pool.channels + c0, n, 0.0f);
        }
        for (int64_t i = 0; i < pool.out[0] * pool.out[1]; ++i) {
          const Taps taps(pool, i / pool.out[1], i % pool.out[1]);
          scatter_f32<kFlush>(taps, from + c0, grad + i * pool.channels + c0, to + c0, n,
                              pool.ahead());
        }
        return;
      }
    }
    float* sums = scratch<float>(Scratch::kSlab, static_cast<size_t>(pool.height * pool.width * n));
    std::fill_n(sums, pool.height * pool.width * n, from_bits(kUntouched));
    float best[kChannels];
    int32_t where[kChannels];
    for (int64_t i = 0; i < pool.out[0] * pool.out[1]; ++i) {
      bool first = true;
      pool.taps(i / pool.out[1], i % pool.out[1], [&](int64_t pixel) {
        const E* p = from + pixel * pool.channels + c0;
        const auto at = static_cast<int32_t>(pixel);
        for (int64_t c = 0; c < n; ++c) {
          const float v = element<T, kFlush>(p[c]);
          // Larger, or the first NaN; ties stay with the earlier tap.
          const bool better = first | (v > best[c]) | ((v != v) & (best[c] == best[c]));
          best[c] = better ? v : best[c];
          where[c] = better ? at : where[c];
        }
        first = false;
      });
      if (first) continue;
      const E* g = grad + i * pool.channels + c0;
      for (int64_t c = 0; c < n; ++c) {
        float& sum = sums[where[c] * n + c];
        const float d = canonical(element<T, kFlush>(g[c]));
        sum = to_bits(sum) == kUntouched ? d : canonical(sum + d);
      }
    }
    store_sums<T, kFlush>(sums, output.as<E>().data() + image * pool.size(),
                          pool.height * pool.width, pool.channels, c0, c1);
  });
}

template <typename T, bool kFlush>
void avg_pool_grad(const KernelContext& context, const Op& op, const Tensor& dy, Tensor& output) {
  using E = typename T::type;
  const Pool pool(output.dims(), op.attrs.window);
  for_images(context, pool, 3, [&](int64_t image, int64_t c0, int64_t c1) {
    const E* grad = dy.as<E>().data() + image * pool.out[0] * pool.out[1] * pool.channels;
    const int64_t n = c1 - c0;
    float* sums = scratch<float>(Scratch::kSlab, static_cast<size_t>(pool.height * pool.width * n));
    std::fill_n(sums, pool.height * pool.width * n, from_bits(kUntouched));
    float share[kChannels];
    for (int64_t i = 0; i < pool.out[0] * pool.out[1]; ++i) {
      const int64_t y = i / pool.out[1], x = i % pool.out[1];
      const auto count = static_cast<float>(pool.taps(y, x, [](int64_t) {}));
      const E* g = grad + i * pool.channels + c0;
      for (int64_t c = 0; c < n; ++c) share[c] = canonical(element<T, kFlush>(g[c]) / count);
      pool.taps(y, x, [&](int64_t pixel) {
        float* sum = sums + pixel * n;
        for (int64_t c = 0; c < n; ++c) {
          const float joined = canonical(sum[c] + share[c]);
          sum[c] = to_bits(sum[c]) == kUntouched ? share[c] : joined;
        }
      });
    }
    store_sums<T, kFlush>(sums, output.as<E>().data() + image * pool.size(),
                          pool.height * pool.width, pool.channels, c0, c1);
  });
}

}  // namespace

void run_window(const KernelContext& context, const Op& op, Inputs inputs, Tensor& output) {
  if (output.elements() == 0) return;
  dispatch_float(output.dtype(), context.arithmetic.flush,
                 [&]<typename T, bool kFlush>(T, std::bool_constant<kFlush>) {
                   switch (op.kind) {
                     case OpKind::kReduceWindow:
                       return reduce_window<T, kFlush>(context, op, inputs[0], output);
                     case OpKind::kSelectAndScatter:
                       return select_and_scatter<T, kFlush>(context, op, inputs[0], inputs[1],
                                                            output);
                     default:
                       return avg_pool_grad<T, kFlush>(context, op, inputs[0], output);
                   }
                 });
}

}  // namespace twinrun
