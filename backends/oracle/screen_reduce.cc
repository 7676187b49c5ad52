// The screen of sums and maxima: recomputes sums in binary64 in any order; the tolerance is
// relative to the sizes of their terms.
#include <vector>

#include "backends/oracle/screen_internal.h"

namespace twinrun::screen {
namespace {

// What is accumulated for each output: the sum and the sum of sizes, or the maximum.
struct Sums {
  std::vector<double> value, size;
  std::vector<float> most;
};

enum class Collect { kSum, kMax };

// Accumulates x[i] into output at + i, for i in [0, n).
template <Collect kWhat>
void add_each(const float* x, int64_t n, Sums& s, int64_t at) {
  if constexpr (kWhat == Collect::kMax) {
    float* most = s.most.data() + at;
    for (int64_t i = 0; i < n; ++i) most[i] = larger(most[i], x[i]);
  } else {
    double* value = s.value.data() + at;
    double* size = s.size.data() + at;
    for (int64_t i = 0; i < n; ++i) {
      const auto v = static_cast<double>(x[i]);
      value[i] += v;
      size[i] += std::fabs(v);
    }
  }
}
// Accumulates all of x[0, n) into output `at`.
template <Collect kWhat>
void add_all(const float* x, int64_t n, Sums& s, int64_t at) {
  constexpr int kLanes = 8;
  const auto u = static_cast<size_t>(at);
  int64_t i = 0;
  if constexpr (kWhat == Collect::kMax) {
    float most[kLanes];
    std::fill(most, most + kLanes, s.most[u]);
    for (; i + kLanes <= n; i += kLanes) {
      for (int l = 0; l < kLanes; ++l) most[l] = larger(most[l], x[i + l]);
    }
    for (; i < n; ++i) most[0] = larger(most[0], x[i]);
    for (float m : most) s.most[u] = larger(s.most[u], m);
  } else {
    double value[kLanes] = {}, size[kLanes] = {};
    for (; i + kLanes <= n; i += kLanes) {
      for (int l = 0; l < kLanes; ++l) {
        const auto v = static_cast<double>(x[i + l]);
        value[l] += v;
        size[l] += std::fabs(v);
      }
    }
    for (; i < n; ++i)
      value[0] += static_cast<double>(x[i]), size[0] += std::fabs(static_cast<double>(x[i]));
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int l = 0; l < half; ++l) value[l] += value[l + half], size[l] += size[l + half];
    }
    s.value[u] += value[0], s.size[u] += size[0];
  }
}

// The operand as groups of kept and reduced dimensions, outermost first; adjacent dimensions of the
// same kind are merged.
struct Layout {
  Dims sizes;
  std::vector<bool> kept;
  Layout(const Dims& dims, const Dims& reduced) {
    for (size_t d = 0; d < dims.size(); ++d) {
      const bool keep =
          std::find(reduced.begin(), reduced.end(), static_cast<int64_t>(d)) == reduced.end();
      if (dims[d] == 1) continue;
      if (!sizes.empty() && kept.back() == keep) {
        sizes.back() *= dims[d];
      } else {
        sizes.push_back(dims[d]), kept.push_back(keep);
      }
    }
    if (sizes.empty()) sizes.push_back(1), kept.push_back(true);
  }
  // The first output element of row i, where rows run along the innermost group.
  int64_t output(int64_t i) const {
    int64_t at = 0, stride = kept.back() ? sizes.back() : 1;
    for (size_t d = sizes.size() - 1; d-- > 0;) {
      if (kept[d]) at += i % sizes[d] * stride, stride *= sizes[d];
      i /= sizes[d];
    }
    return at;
  }
};

// Accumulates rows [begin, end), which run along the innermost group.
template <Collect kWhat>
void collect(const Call& call, const Layout& layout, int64_t begin, int64_t end, Sums& sums) {
  const int64_t length = layout.sizes.back();
  const bool kept = layout.kept.back(), flushes = kWhat == Collect::kMax && call.declared.flush;
  // The next outer group is stepped through without division.
  const int64_t run = layout.sizes.size() > 1 ? layout.sizes[layout.sizes.size() - 2] : 1;
  const bool run_kept = layout.sizes.size() > 1 && layout.kept[layout.sizes.size() - 2];
  float buffer[kChunk];
  for (int64_t i = begin; i < end;) {
    const int64_t rows = std::min(end - i, run - i % run);
    int64_t at = layout.output(i);
    for (int64_t j = 0; j < rows; ++j, at += run_kept ? (kept ? length : 1) : 0) {
      for (int64_t k = 0; k < length; k += kChunk) {
        const int64_t n = std::min(kChunk, length - k);
        const float* x = floats(call.inputs[0], (i + j) * length + k, n, buffer, flushes);
        kept ? add_each<kWhat>(x, n, sums, at + k) : add_all<kWhat>(x, n, sums, at);
      }
    }
    i += rows;
  }
}

Sums fresh(Collect what, int64_t outputs) {
  const auto n = static_cast<size_t>(outputs);
  if (what == Collect::kMax)
    return {{}, {}, std::vector<float>(n, -std::numeric_limits<float>::infinity())};
  return {std::vector<double>(n), std::vector<double>(n), {}};
}

template <Collect kWhat>
Sums collected(const Call& call) {
  const Layout layout(call.inputs[0].dims(), call.op.attrs.dims);
  const int64_t outputs = call.output.elements(),
                rows = call.inputs[0].elements() / layout.sizes.back();
  Sums all = fresh(kWhat, outputs);
  if (layout.kept.front() && layout.sizes.size() > 1) {  // pieces share no output
    const int64_t inner = rows / layout.sizes.front();
    const int64_t cut = std::max<int64_t>(1, kRange / (inner * layout.sizes.back()));
    all_ranges(call.pool, layout.sizes.front(), cut, [&](int64_t begin, int64_t end) {
      collect<kWhat>(call, layout, begin * inner, end * inner, all);
      return true;
    });
    return all;
  }
  const int64_t outer = layout.sizes.size() > 1 ? layout.sizes.front() : 1;
  const int64_t pieces =
      std::clamp<int64_t>(std::min(outer, call.inputs[0].elements() / kRange), 1, 8);
  const int64_t each = (outer + pieces - 1) / pieces, inner = rows / outer;
  std::vector<Sums> parts(static_cast<size_t>(pieces));
  all_pieces(call.pool, pieces, [&](int64_t i) {
    Sums& part = parts[static_cast<size_t>(i)] = fresh(kWhat, outputs);
    collect<kWhat>(call, layout, std::min(outer, i * each) * inner,
                   std::min(outer, (i + 1) * each) * inner, part);
    return true;
  });
  for (const Sums& part : parts) {
    for (size_t i = 0; i < part.most.size(); ++i) all.most[i] = larger(all.most[i], part.most[i]);
    for (size_t i = 0; i < part.value.size(); ++i)
      all.value[i] += part.value[i], all.size[i] += part.size[i];
  }
  return all;
}

// The tolerance of output elements: relative * size + of_value * |value| + absolute, where of_value
// covers the rounding of a division or to bf16. holds() checks elements [begin, begin + n).
struct Tolerance {
  double relative, absolute, of_value;
};
bool holds(const Call& call, int64_t begin, int64_t n, const double* value, const double* size,
           Tolerance t) {
  float buffer[kChunk];
  double radius[kChunk];
  if (call.output.dtype() == DType::kBF16) t.of_value += 0x1.01p-8, t.absolute += 0x1p-133;
  if (call.declared.flush) t.absolute += kMinNormal;
  for (int64_t at = 0; at < n; at += kChunk) {
    const int64_t count = std::min(kChunk, n - at);
    for (int64_t i = 0; i < count; ++i) {
      const double s = size[at + i];
      radius[i] = s < kMayOverflow
                      ? t.relative * s + t.of_value * std::fabs(value[at + i]) + t.absolute
                      : kInfinity;
    }
    if (!within(floats(call.output, begin + at, count, buffer, false), value + at, radius, count))
      return false;
  }
  return true;
}

}  // namespace

bool same_numbers(const float* x, const float* y, int64_t n) {
  if (same_bytes(x, y, static_cast<size_t>(n) * 4)) return true;
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] != y[i] && !(x[i] != x[i] && y[i] != y[i])) return false;
  }
  return true;
}

bool sums_agree(const Call& call, double terms, std::vector<double>& value,
                std::vector<double>& size) {
  // Our own engines: 16 lanes in segments of 4096, a tree over the lanes, then the segments.
  const double ours = std::ceil(std::min(terms, 4096.0) / 16) + 4 + std::ceil(terms / 4096);
  const double depth = std::max(0.0, std::min(terms - 1, call.declared.ours ? ours : terms));
  const double relative = sum_error(depth) + (terms > 1 ? terms * 0x1p-52 : 0);
  Tolerance t{relative, call.declared.flush ? terms * kMinNormal : 0, 0};
  if (call.op.attrs.reducer == Reducer::kMean) {
    for (double& x : value) x /= terms;
    for (double& x : size) x = x < kMayOverflow ? x / terms : kInfinity;
    t.absolute = t.absolute / terms + 0x1p-149, t.of_value = 0x1p-23;
  }
  return holds(call, 0, call.output.elements(), value.data(), size.data(), t);
}

bool reduce(const Call& call) {
  const int64_t outputs = call.output.elements();
  if (!is_floating(call.inputs[0].dtype())) return true;
  if (call.op.attrs.reducer == Reducer::kMax) {
    const Sums s = collected<Collect::kMax>(call);
    std::vector<float> buffer(static_cast<size_t>(outputs));
    return same_numbers(floats(call.output, 0, outputs, buffer.data(), false), s.most.data(),
                        outputs);
  }
  Sums s = collected<Collect::kSum>(call);
  const double terms =
      static_cast<double>(call.inputs[0].elements()) / static_cast<double>(outputs);
  return sums_agree(call, terms, s.value, s.size);
}

bool scatter_add(const Call& call) {
  const Tensor &ids = call.inputs[0], &dy = call.inputs[1];
  const int64_t rows = call.output.dims()[0], width = call.output.elements() / rows;
  const auto id = ids.as<const int32_t>();
  const auto row_of = [&](size_t i) { return std::clamp<int64_t>(id[i], 0, rows - 1); };
  if (call.output.dtype() == DType::kI32) {
    std::vector<uint32_t> sums(static_cast<size_t>(rows * width));
    const auto from = dy.as<const uint32_t>();
    for (size_t i = 0; i < id.size(); ++i) {
      for (int64_t c = 0; c < width; ++c)
        sums[static_cast<size_t>(row_of(i) * width + c)] +=
            from[i * static_cast<size_t>(width) + static_cast<size_t>(c)];
    }
    return same_bytes(sums.data(), call.output.raw(), call.output.bytes());
  }
  if (!is_floating(call.output.dtype())) return true;
  std::vector<double> value(static_cast<size_t>(rows * width)), size(value);
  std::vector<int64_t> terms(static_cast<size_t>(rows));
  std::vector<float> buffer(static_cast<size_t>(width));
  for (size_t i = 0; i < id.size(); ++i) {
    const int64_t row = row_of(i);
    ++terms[static_cast<size_t>(row)];
    const float* x = floats(dy, static_cast<int64_t>(i) * width, width, buffer.data(), false);
    for (int64_t c = 0; c < width; ++c) {
      value[static_cast<size_t>(row * width + c)] += static_cast<double>(x[c]);
      size[static_cast<size_t>(row * width + c)] += std::fabs(static_cast<double>(x[c]));
    }
  }
  for (int64_t row = 0; row < rows; ++row) {
    const auto n = static_cast<double>(terms[static_cast<size_t>(row)]);
    const double lost = call.declared.flush ? n * kMinNormal : 0;
    if (!holds(call, row * width, width, value.data() + row * width, size.data() + row * width,
               {std::max(n - 1, 0.0) * kUnit + n * 0x1p-52, lost, 0}))
      return false;
  }
  return true;
}

bool all_reduce(const Call& call) {
  if (call.output.dtype() == DType::kI32) {
    const auto y = call.output.as<const uint32_t>();
    for (size_t i = 0; i < y.size(); ++i) {
      uint32_t sum = 0;
      for (const Tensor& in : call.inputs) sum += in.as<const uint32_t>()[i];
      if (sum != y[i]) return false;
    }
    return true;
  }
  if (!is_floating(call.output.dtype())) return true;
  const auto replicas = static_cast<double>(call.inputs.size());
  const bool bf16 = call.output.dtype() == DType::kBF16;
  Tolerance t{(replicas - 1) * (bf16 ? 0x1.1p-8 : kUnit) + replicas * 0x1p-52, 0, 0};
  t.absolute = call.declared.flush ? replicas * kMinNormal : bf16 ? replicas * 0x1p-133 : 0;
  return all_ranges(call.pool, call.output.elements(), kRange, [&](int64_t begin, int64_t end) {
    double value[kChunk], size[kChunk];
    float buffer[kChunk];
    for (int64_t at = begin; at < end; at += kChunk) {
      const int64_t n = std::min(kChunk, end - at);
      std::fill(value, value + n, 0.0);
      std::fill(size, size + n, 0.0);
      for (const Tensor& in : call.inputs) {
        const float* x = floats(in, at, n, buffer, false);
        for (int64_t i = 0; i < n; ++i) {
          const auto v = static_cast<double>(x[i]);
          value[i] += v;
          size[i] += std::fabs(v);
        }
      }
      if (!holds(call, at, n, value, size, t)) return false;
    }
    return true;
  });
}

// ---- windows over [n, h, w, c]

namespace {

// Calls f(index of the pixel's first channel within its sample) for the taps of window (y, x) that
// are inside the image, and returns their number.
template <typename F>
int64_t taps(const Window& window, const Dims& image, int64_t y, int64_t x, F f) {
  int64_t inside = 0;
  for (int64_t kh = 0; kh < window.size[0]; ++kh) {
    const int64_t ih = y * window.stride[0] - window.pad_low[0] + kh;
    if (ih < 0 || ih >= image[1]) continue;
    for (int64_t kw = 0; kw < window.size[1]; ++kw) {
      const int64_t iw = x * window.stride[1] - window.pad_low[1] + kw;
      if (iw < 0 || iw >= image[2]) continue;
      f((ih * image[2] + iw) * image[3]);
      ++inside;
    }
  }
  return inside;
}

bool pooling(const Call& call) {
  const Dims &image = call.inputs[0].dims(), &grid = call.output.dims();
  const Window& w = call.op.attrs.window;
  const int64_t c = image[3], per_image = image[1] * image[2] * c, per_grid = grid[1] * grid[2] * c;
  const bool max = call.op.attrs.reducer == Reducer::kMax, flushes = max && call.declared.flush;
  const double terms = static_cast<double>(w.size[0] * w.size[1]);
  return all_pieces(call.pool, grid[0], [&](int64_t n) {
    std::vector<float> buffer(
        static_cast<size_t>(flushes || call.inputs[0].dtype() == DType::kBF16 ? per_image : 0));
    const float* in = floats(call.inputs[0], n * per_image, per_image, buffer.data(), flushes);
    // One row of windows at a time.
    const int64_t width = grid[2] * c;
    std::vector<float> most(static_cast<size_t>(max ? c : 0)), row(static_cast<size_t>(c));
    std::vector<double> value(static_cast<size_t>(max ? 0 : width)), size(value);
    for (int64_t y = 0; y < grid[1]; ++y) {
      const int64_t at = n * per_grid + y * width;
      std::fill(value.begin(), value.end(), 0.0);
      std::fill(size.begin(), size.end(), 0.0);
      for (int64_t x = 0; x < grid[2]; ++x) {
        if (max) {
          std::fill(most.begin(), most.end(), -std::numeric_limits<float>::infinity());
          float* const m = most.data();
          taps(w, image, y, x, [&](int64_t tap) {
            const float* p = in + tap;
            for (int64_t i = 0; i < c; ++i) m[i] = larger(m[i], p[i]);
          });
          if (!same_numbers(floats(call.output, at + x * c, c, row.data(), false), m, c))
            return false;
          continue;
        }
        double *const v = value.data() + x * c, *const s = size.data() + x * c;
        const auto count = static_cast<double>(taps(w, image, y, x, [&](int64_t tap) {
          const float* p = in + tap;
          for (int64_t i = 0; i < c; ++i) {
            v[i] += static_cast<double>(p[i]);
            s[i] += std::fabs(static_cast<double>(p[i]));
          }
        }));
        for (int64_t i = 0; i < c; ++i) {
          v[i] /= count;
          s[i] = s[i] < kMayOverflow ? s[i] / count : kInfinity;
        }
      }
      const Tolerance t{terms * kUnit, 0x1p-149 + (call.declared.flush ? terms * kMinNormal : 0),
                        0x1p-23};
      if (!max && !holds(call, at, width, value.data(), size.data(), t)) return false;
    }
    return true;
  });
}

// select_and_scatter and avg_pool_grad: recomputes what every pixel receives.
bool scatter(const Call& call) {
  const bool average = call.op.kind == OpKind::kAvgPoolGrad;
  const Tensor& dy = call.inputs[average ? 0 : 1];
  const Dims &image = call.output.dims(), &grid = dy.dims();
  const Window& w = call.op.attrs.window;
  const int64_t c = image[3], per_image = image[1] * image[2] * c, per_grid = grid[1] * grid[2] * c;
  const bool flushes = call.declared.flush;
  const double terms = static_cast<double>(w.size[0] * w.size[1]);
  return all_pieces(call.pool, image[0], [&](int64_t n) {
    thread_local std::vector<double> value, size, share;
    thread_local std::vector<float> buffer_x, buffer_dy, most;
    thread_local std::vector<int32_t> where;
    value.assign(static_cast<size_t>(per_image), 0.0),
        size.assign(static_cast<size_t>(per_image), 0.0);
    buffer_dy.resize(static_cast<size_t>(per_grid)),
        buffer_x.resize(static_cast<size_t>(average ? 0 : per_image));
    share.resize(static_cast<size_t>(c)), most.resize(static_cast<size_t>(c)),
        where.resize(static_cast<size_t>(c));
    const float* g = floats(dy, n * per_grid, per_grid, buffer_dy.data(), average && flushes);
    const float* in =
        average ? nullptr
                : floats(call.inputs[0], n * per_image, per_image, buffer_x.data(), flushes);
    double *const v = value.data(), *const s = size.data();
    for (int64_t y = 0; y < grid[1]; ++y) {
      for (int64_t x = 0; x < grid[2]; ++x, g += c) {
        if (average) {
          const auto count = static_cast<double>(taps(w, image, y, x, [](int64_t) {}));
          double* const p = share.data();
          for (int64_t i = 0; i < c; ++i) p[i] = static_cast<double>(g[i]) / count;
          taps(w, image, y, x, [&](int64_t tap) {
            double *const vt = v + tap, *const st = s + tap;
            for (int64_t i = 0; i < c; ++i) vt[i] += p[i];
            for (int64_t i = 0; i < c; ++i) st[i] += std::fabs(p[i]);
          });
          continue;
        }
        float* const m = most.data();
        int32_t* const at = where.data();
        std::fill(at, at + c, -1);
        bool first = true;
        taps(w, image, y, x, [&](int64_t tap) {
          const float* p = in + tap;
          if (first) {
            for (int64_t i = 0; i < c; ++i) m[i] = p[i], at[i] = static_cast<int32_t>(tap);
          } else {
            for (int64_t i = 0; i < c; ++i) {
              const bool better = m[i] == m[i] && !(p[i] <= m[i]);  // the first NaN wins
              m[i] = better ? p[i] : m[i];
              at[i] = better ? static_cast<int32_t>(tap) : at[i];
            }
          }
          first = false;
        });
        for (int64_t i = 0; i < c; ++i) {
          if (at[i] < 0) continue;
          v[at[i] + i] += static_cast<double>(g[i]);
          s[at[i] + i] += std::fabs(static_cast<double>(g[i]));
        }
      }
    }
    const double lost = flushes ? 2 * terms * kMinNormal : average ? terms * 0x1p-149 : 0;
    return holds(call, n * per_image, per_image, v, s, {(terms + 1) * kUnit, lost, 0});
  });
}

}  // namespace

bool window(const Call& call) {
  if (!is_floating(call.output.dtype())) return true;
  return call.op.kind == OpKind::kReduceWindow ? pooling(call) : scatter(call);
}

}  // namespace twinrun::screen
