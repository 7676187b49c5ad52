// The screen of convolutions. Contracting the result's last dimension with signs leaves a
// convolution with one channel. The products of all pixels with all taps are a small matrix product
// (multiply() below); its columns are then gathered (forward), scattered (input gradient), or are
// the result themselves (kernel gradient).
#include "backends/oracle/screen_dot.h"

namespace twinrun::screen {
namespace {

// ---- y[p, t] (+)= sum over k of x[p, k] z[k, t]; z and y have `taps` columns, a multiple of 4

struct Strides {
  int64_t point, k;  // strides of x
};

template <int kPoints, int kTaps>
void multiply_block(const double* x, Strides s, int64_t ks, const double* z, double* y,
                    int64_t taps, bool add) {
  constexpr int kVectors = kTaps / 4;
  __m256d sum[kPoints][kVectors];
  for (int p = 0; p < kPoints; ++p) {
    for (int v = 0; v < kVectors; ++v)
      sum[p][v] = add ? _mm256_loadu_pd(y + p * taps + 4 * v) : _mm256_setzero_pd();
  }
  for (int64_t k = 0; k < ks; ++k) {
    __m256d right[kVectors];
    for (int v = 0; v < kVectors; ++v) right[v] = _mm256_loadu_pd(z + k * taps + 4 * v);
    for (int p = 0; p < kPoints; ++p) {
      const __m256d left = _mm256_broadcast_sd(x + p * s.point + k * s.k);
      for (int v = 0; v < kVectors; ++v) sum[p][v] = _mm256_fmadd_pd(left, right[v], sum[p][v]);
    }
  }
  for (int p = 0; p < kPoints; ++p) {
    for (int v = 0; v < kVectors; ++v) _mm256_storeu_pd(y + p * taps + 4 * v, sum[p][v]);
  }
}

template <int kTaps>
void multiply_columns(const double* x, Strides s, int64_t points, int64_t ks, const double* z,
                      double* y, int64_t taps, bool add) {
  int64_t p = 0;
  for (; p + 4 <= points; p += 4)
    multiply_block<4, kTaps>(x + p * s.point, s, ks, z, y + p * taps, taps, add);
  for (; p < points; ++p)
    multiply_block<1, kTaps>(x + p * s.point, s, ks, z, y + p * taps, taps, add);
}

void multiply(const double* x, Strides s, int64_t points, int64_t ks, const double* z, double* y,
              int64_t taps, bool add) {
  int64_t t = 0;
  for (; t + 12 <= taps; t += 12) multiply_columns<12>(x, s, points, ks, z + t, y + t, taps, add);
  for (; t + 8 <= taps; t += 8) multiply_columns<8>(x, s, points, ks, z + t, y + t, taps, add);
  for (; t < taps; t += 4) multiply_columns<4>(x, s, points, ks, z + t, y + t, taps, add);
}

// ---- geometry

struct Shape {
  int64_t samples, taps, columns;  // columns: the number of taps rounded up to a multiple of 4
  int64_t h, w, oh, ow;
  const Window& window;
  Shape(const Window& win, const Dims& image, const Dims& grid)
      : samples(image[0]),
        taps(win.size[0] * win.size[1]),
        columns((taps + 3) / 4 * 4),
        h(image[1]),
        w(image[2]),
        oh(grid[1]),
        ow(grid[2]),
        window(win) {}

  // The input coordinate that tap k reads for output coordinate o, along an axis.
  int64_t input(int axis, int64_t o, int64_t k) const {
    return o * window.stride[axis] - window.pad_low[axis] + k * window.dilation[axis];
  }
  // The output coordinates for which tap k is inside the image, along an axis: [first, last).
  struct Range {
    int64_t first, last;
  };
  Range outputs(int axis, int64_t k) const {
    const int64_t size = axis == 0 ? h : w, out = axis == 0 ? oh : ow, s = window.stride[axis];
    const int64_t shift = window.pad_low[axis] - k * window.dilation[axis];  // i = o s - shift
    const int64_t first = shift <= 0 ? 0 : (shift + s - 1) / s;
    const int64_t last = size - 1 + shift < 0 ? 0 : (size - 1 + shift) / s + 1;
    return {first, std::min(out, last)};
  }
};

// Scratch memory of a thread, kept between calls: fresh pages cost more than the sums.
double* scratch(size_t slot, int64_t n) {
  thread_local std::vector<double> slots[6];
  if (slots[slot].size() < static_cast<size_t>(n)) slots[slot].resize(static_cast<size_t>(n));
  return slots[slot].data();
}
float* scratch_floats(size_t slot, int64_t n) {
  thread_local std::vector<float> slots[2];
  if (slots[slot].size() < static_cast<size_t>(n)) slots[slot].resize(static_cast<size_t>(n));
  return slots[slot].data();
}

// For each of n pixels: the sum of |x| size over its c channels.
void pixel_sizes(const float* x, int64_t n, int64_t c, const double* size, double* out) {
  for (int64_t p = 0; p < n; ++p) out[p] = weighted_sizes(x + p * c, size, c);
}

// For each channel, the largest norm over the taps: [taps, c] -> [c].
Vector over_taps(const Vector& norm, int64_t taps, int64_t c) {
  Vector most(static_cast<size_t>(c));
  for (int64_t i = 0; i < taps * c; ++i) {
    double& m = most[static_cast<size_t>(i % c)];
    m = std::max(m, norm[static_cast<size_t>(i)]);
  }
  return most;
}

double not_finite(const Call& call, const Rows& rows, int64_t m, int64_t n) {
  // The contract also multiplies taps outside the image, so every row contains 0 times the
  // non-finite element. Foreign engines may skip these taps, so their rows are not checked.
  if (!call.declared.ours) return 0;
  std::vector<float> buffer(static_cast<size_t>(n));
  return rows.not_finite(0, m, buffer.data());
}

// ---- forward and input gradient: x (or dy) with the contracted kernel

double image_worst_row(const Call& call) {
  const bool forward = call.op.kind == OpKind::kConvolution;
  const Tensor &x = call.inputs[0], &kernel = call.inputs[1];
  const Dims& w = kernel.dims();
  const int64_t c = w[forward ? 2 : 3], n = w[forward ? 3 : 2];
  const Shape s(call.op.attrs.window, forward ? x.dims() : call.output.dims(),
                forward ? call.output.dims() : x.dims());
  const Reader read(call.declared);
  const Rows rows(call, s.taps * c, n);
  Contracted z(s.taps * c);
  if (forward) {
    contract_rows(call, read, kernel, s.taps * c, n, rows.r(), z);
  } else {
    contract_columns(call, read, kernel, s.taps, n, c, rows.r(), z);
  }
  const int64_t results = forward ? s.oh * s.ow : s.h * s.w, pixels = x.dims()[1] * x.dims()[2],
                width = x.dims()[2];
  if (!z.all_finite()) return not_finite(call, rows, s.samples * results, n);
  Vector of_tap(static_cast<size_t>(c * s.columns));  // [c, taps]
  for (int64_t t = 0; t < s.taps; ++t) {
    for (int64_t i = 0; i < c; ++i)
      of_tap[static_cast<size_t>(i * s.columns + t)] = z.sum[static_cast<size_t>(t * c + i)];
  }
  const Vector sizes = over_taps(z.norm, s.taps, c);
  std::vector<Shape::Range> wides;
  for (int64_t kw = 0; kw < s.window.size[1]; ++kw) wides.push_back(s.outputs(1, kw));

  return largest(call.pool, s.samples, [&](int64_t sample) {
    float* const buffer = scratch_floats(0, std::max(width * c, n));
    double* const row = scratch(0, width * c);
    double* const y = scratch(1, pixels * s.columns);
    double* const size = scratch(2, pixels);
    for (int64_t p = 0; p < pixels; p += width) {
      const float* in = read(x, (sample * pixels + p) * c, width * c, buffer);
      pixel_sizes(in, width, c, sizes.data(), size + p);
      for (int64_t i = 0; i < width * c; ++i) row[i] = static_cast<double>(in[i]);
      multiply(row, {c, 1}, width, c, of_tap.data(), y + p * s.columns, s.columns, false);
    }
    double* const value = scratch(3, results);
    double* const bound = scratch(4, results);
    std::fill(value, value + results, 0.0);
    std::fill(bound, bound + results, 0.0);
    // Loop over rows of windows outermost: the rows of y that their taps read then stay in L1.
    const int64_t step = s.window.stride[1];
    for (int64_t o = 0; o < s.oh; ++o) {
      for (int64_t kh = 0; kh < s.window.size[0]; ++kh) {
        const int64_t i = s.input(0, o, kh);
        if (i < 0 || i >= s.h) continue;
        for (int64_t kw = 0; kw < s.window.size[1]; ++kw) {
          const Shape::Range wide = wides[static_cast<size_t>(kw)];
          const int64_t out = o * s.ow + wide.first, in = i * s.w + s.input(1, wide.first, kw);
          const int64_t t = kh * s.window.size[1] + kw, count = wide.last - wide.first;
          const double* from = y + (forward ? in : out) * s.columns + t;
          const double* from_size = size + (forward ? in : out);
          double* to = value + (forward ? out : in);
          double* to_bound = bound + (forward ? out : in);
          if (step == 1) {
            for (int64_t j = 0; j < count; ++j) to[j] += from[j * s.columns];
            for (int64_t j = 0; j < count; ++j) to_bound[j] += from_size[j];
          } else {
            const int64_t out_step = forward ? 1 : step, in_step = forward ? step : 1;
            for (int64_t j = 0; j < count; ++j) {
              to[j * out_step] += from[j * in_step * s.columns];
              to_bound[j * out_step] += from_size[j * in_step];
            }
          }
        }
      }
    }
    double worst = 0;
    for (int64_t i = 0; i < results; ++i) {
      worst = std::max(worst, rows.ratio(sample * results + i, value[i], bound[i], buffer));
    }
    return worst;
  });
}

// ---- kernel gradient: x with the contracted dy; rows of the result are taps times channels

double kernel_worst_row(const Call& call) {
  const Tensor &x = call.inputs[0], &dy = call.inputs[1];
  const int64_t c = x.dims()[3], n = dy.dims()[3];
  const Shape s(call.op.attrs.window, x.dims(), dy.dims());
  const int64_t grid = s.oh * s.ow, terms = s.samples * grid;
  const Reader read(call.declared);
  const Rows rows(call, terms, n);
  Contracted z(terms);
  contract_rows(call, read, dy, terms, n, rows.r(), z);
  if (!z.all_finite()) return not_finite(call, rows, s.taps * c, n);

  // At most 16 groups of samples, each with its own sums.
  const int64_t groups = std::min<int64_t>(16, s.samples), each = (s.samples + groups - 1) / groups;
  const int64_t held = c * s.columns + c;
  Vector sums(static_cast<size_t>(groups * held));
  all_pieces(call.pool, groups, [&](int64_t group) {
    double* const value = sums.data() + group * held;
    double* const bound = value + c * s.columns;
    float* const buffer = scratch_floats(0, s.w * c);
    double* const row = scratch(0, s.w * c);
    // The contracted dy for every pixel of a row and every tap.
    double* const around = scratch(1, s.w * s.columns);
    double* const size = scratch(2, s.w);
    for (int64_t sample = group * each; sample < std::min(s.samples, (group + 1) * each);
         ++sample) {
      for (int64_t i = 0; i < s.h; ++i) {
        std::fill(around, around + s.w * s.columns, 0.0);
        std::fill(size, size + s.w, 0.0);
        for (int64_t kh = 0; kh < s.window.size[0]; ++kh) {
          const int64_t scaled = i + s.window.pad_low[0] - kh * s.window.dilation[0];
          if (scaled < 0 || scaled % s.window.stride[0] != 0 || scaled / s.window.stride[0] >= s.oh)
            continue;
          const int64_t from = sample * grid + scaled / s.window.stride[0] * s.ow;
          for (int64_t kw = 0; kw < s.window.size[1]; ++kw) {
            const Shape::Range wide = s.outputs(1, kw);
            const int64_t t = kh * s.window.size[1] + kw;
            for (int64_t o = wide.first; o < wide.last; ++o) {
              const int64_t at = s.input(1, o, kw);
              around[at * s.columns + t] = z.sum[static_cast<size_t>(from + o)];
              size[at] = std::max(size[at], z.norm[static_cast<size_t>(from + o)]);
            }
          }
        }
        const float* in = read(x, (sample * s.h + i) * s.w * c, s.w * c, buffer);
        for (int64_t p = 0; p < s.w; ++p) {
          for (int64_t j = 0; j < c; ++j) {
            const auto v = static_cast<double>(in[p * c + j]);
            row[p * c + j] = v;
            bound[j] = std::fma(std::fabs(v), size[p], bound[j]);
          }
        }
        multiply(row, {1, c}, c, s.w, around, value, s.columns, true);
      }
    }
    return true;
  });
  for (int64_t group = 1; group < groups; ++group) {
    for (int64_t i = 0; i < held; ++i)
      sums[static_cast<size_t>(i)] += sums[static_cast<size_t>(group * held + i)];
  }
  return largest(call.pool, s.taps, [&](int64_t t) {
    float* const buffer = scratch_floats(0, n);
    double worst = 0;
    for (int64_t j = 0; j < c; ++j) {
      const double value = sums[static_cast<size_t>(j * s.columns + t)];
      const double bound = sums[static_cast<size_t>(c * s.columns + j)];
      // A NaN of x may be at a pixel that this tap does not read.
      if (!finite(value) || !finite(bound)) continue;
      worst = std::max(worst, rows.ratio(t * c + j, value, bound, buffer));
    }
    return worst;
  });
}

}  // namespace

double convolution_worst_row(const Call& call) {
  return call.op.kind == OpKind::kConvolutionKernelGrad ? kernel_worst_row(call)
                                                        : image_worst_row(call);
}

}  // namespace twinrun::screen
