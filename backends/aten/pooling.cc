// Pooling and the moves of pixels, with their gradients.
#include <algorithm>

#include "backends/aten/definitions.h"
#include "backends/aten/planes.h"
#include "backends/aten/totals.h"
#include "backends/aten/windows.h"

namespace twinrun::aten {
namespace {

// The largest of each window, and a position where it is: the call's own if that is right.
Expected max_over(const Arguments& a, const Spans& rows, const Spans& columns) {
  const Array x = a.array(0, "self");
  const Planes p(x.dims);
  const Dims dims = with_planes(x.dims, length(rows), length(columns));
  Array out = empty_array(dims, true), at = empty_array(dims, true);
  take_steps(kStepsOfOne * static_cast<double>(out.size()) * most_read(rows) * most_read(columns));
  Checked<int64_t> given;
  if (a.has_result(1)) given = integers_of(a.result(1));
  if (a.has_result(1) && given.size() != at.value.size())
    throw Undefined("indices of another shape");
  int64_t i = 0;
  for (int64_t n = 0; n < p.n; ++n) {
    const auto plane = [&](int64_t i) { return x.value[static_cast<size_t>(n * p.h * p.w + i)]; };
    for (const Span& r : rows) {
      for (const Span& c : columns) {
        const auto u = static_cast<size_t>(i++);
        double best = -kInfinity;
        int64_t where = -1;
        const int64_t own = given.empty() ? -1 : given[u];
        bool own_inside = false;
        for (int64_t h = r.begin; h < r.end; h += r.step) {
          for (int64_t w = c.begin; w < c.end; w += c.step) {
            const double v = plane(h * p.w + w);
            if (where < 0 || v > best || (v != v && best == best)) best = v, where = h * p.w + w;
            own_inside = own_inside || h * p.w + w == own;
          }
        }
        if (where < 0) throw Undefined("a window without elements");
        if (own_inside && (plane(own) == best || (plane(own) != plane(own) && best != best)))
          where = own;
        out.value[u] = best;
        at.value[u] = static_cast<double>(where);
      }
    }
  }
  Expected expected(std::move(out));
  if (a.has_result(1)) expected.results.emplace_back(std::move(at));
  return expected;
}
Expected max_pool2d(const Arguments& a) {
  const Planes p(a.view(0, "self").dims);
  const auto kernel = a.pair(1, "kernel_size", 1);
  auto stride = a.pair(2, "stride", 0);
  if (stride.first == 0) stride = kernel;
  const auto pad = a.pair(3, "padding", 0), dilation = a.pair(4, "dilation", 1);
  const bool ceil = a.flag(5, "ceil_mode", false);
  return max_over(a, windows(p.h, kernel.first, stride.first, pad.first, dilation.first, ceil),
                  windows(p.w, kernel.second, stride.second, pad.second, dilation.second, ceil));
}
Expected adaptive_max_pool2d(const Arguments& a) {
  const Planes p(a.view(0, "self").dims);
  const auto out = a.pair(1, "output_size", 1);
  return max_over(a, adaptive(p.h, out.first), adaptive(p.w, out.second));
}
// Adds each gradient at the index of its maximum.
Expected max_gradient(const Arguments& a, size_t indices_at) {
  const Array dy = a.array(0, "grad_output");
  const Dims& dims = a.view(1, "self").dims;
  const Checked<int64_t> index = integers_of(a.view(indices_at, "indices"));
  const Planes from(dy.dims), to(dims);
  if (static_cast<int64_t>(index.size()) != dy.size() || from.n != to.n)
    throw Undefined("indices of another shape");
  Totals totals = totals_of(dims);
  for (int64_t i = 0; i < dy.size(); ++i) {
    const int64_t k = index[static_cast<size_t>(i)];
    if (k < 0 || k >= to.h * to.w) throw Undefined("an index out of range");
    add(totals, i / (from.h * from.w) * to.h * to.w + k, dy.at(i));
  }
  return array_from(a.m, totals, dims, half_unit(a));
}
Expected max_pool2d_backward(const Arguments& a) { return max_gradient(a, 7); }
Expected adaptive_max_pool2d_backward(const Arguments& a) { return max_gradient(a, 2); }

// The mean of each window, or its gradient. `divisor` of 0: the number of elements.
enum class Count { kInside, kPadded, kAdaptive };
struct Average {
  Spans rows, columns;
  Count count = Count::kInside;
  int64_t divisor = 0;

  void allow(int64_t windows) const {
    take_steps(kStepsOfOne * static_cast<double>(windows) * most_read(rows) * most_read(columns));
  }
  Estimate divided(const Arithmetic& m, Estimate e, const Span& r, const Span& c) const {
    const int64_t height = r.end - r.begin, width = c.end - c.begin;
    int64_t by = count == Count::kPadded ? r.padded * c.padded : height * width;
    if (divisor != 0) by = divisor;
    e = m.div(e, exactly(static_cast<double>(by)));
    // Adaptive kernels divide by the height, then by the width.
    if (count == Count::kAdaptive && by > 1) e = m.more(e, 2.5 * m.unit);
    return e;
  }
  Array forward(const Arithmetic& m, const Array& x, double half) const {
    const Planes p(x.dims);
    Array out = empty_array(with_planes(x.dims, length(rows), length(columns)));
    const int64_t nr = length(rows), nc = length(columns);
    allow(out.size());
    in_ranges(m, out.size(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Span& r = rows[static_cast<size_t>(i / nc % nr)];
        const Span& c = columns[static_cast<size_t>(i % nc)];
        Total total;
        for (int64_t h = r.begin; h < r.end; ++h) {
          for (int64_t w = c.begin; w < c.end; ++w)
            total.add(x.at((i / (nc * nr) * p.h + h) * p.w + w));
        }
        const bool none = r.end <= r.begin || c.end <= c.begin;
        out.set(i, none ? exactly(0) : divided(m, total.of(m, half), r, c));
      }
    });
    return out;
  }
  Array backward(const Arithmetic& m, const Array& dy, const Dims& dims, double half) const {
    const Planes p(dims);
    const int64_t nr = length(rows), nc = length(columns);
    if (dy.size() != aten::count({p.n, nr, nc})) throw Undefined("a gradient of another shape");
    allow(dy.size());
    Totals totals = totals_of(dims);
    for (int64_t i = 0; i < dy.size(); ++i) {
      const Span& r = rows[static_cast<size_t>(i / nc % nr)];
      const Span& c = columns[static_cast<size_t>(i % nc)];
      if (r.end <= r.begin || c.end <= c.begin) continue;
      Estimate e = divided(m, dy.at(i), r, c);
      e.radius += 2 * half * std::fabs(e.value);  // quotients are stored before they are added
      for (int64_t h = r.begin; h < r.end; ++h) {
        for (int64_t w = c.begin; w < c.end; ++w)
          add(totals, (i / (nc * nr) * p.h + h) * p.w + w, e);
      }
    }
    return array_from(m, totals, dims, half);
  }
};
// The arguments from `first` on: kernel, stride, padding, ceil_mode, count_include_pad, divisor.
Average average_of(const Arguments& a, const Dims& dims, size_t first) {
  const Planes p(dims);
  const auto kernel = a.pair(first, "kernel_size", 1);
  auto stride = a.pair(first + 1, "stride", 0);
  if (stride.first == 0) stride = kernel;
  const auto pad = a.pair(first + 2, "padding", 0);
  const bool ceil = a.flag(first + 3, "ceil_mode", false);
  Average v;
  v.rows = windows(p.h, kernel.first, stride.first, pad.first, 1, ceil);
  v.columns = windows(p.w, kernel.second, stride.second, pad.second, 1, ceil);
  v.count = a.flag(first + 4, "count_include_pad", true) ? Count::kPadded : Count::kInside;
  v.divisor = a.integer(first + 5, "divisor_override", 0);
  return v;
}
Expected avg_pool2d(const Arguments& a) {
  need_floats(a);
  const Array x = a.array(0, "self");
  return average_of(a, x.dims, 1).forward(a.m, x, 0);
}
Expected avg_pool2d_backward(const Arguments& a) {
  need_floats(a);
  const Dims& dims = a.view(1, "self").dims;
  return average_of(a, dims, 2).backward(a.m, a.array(0, "grad_output"), dims, half_unit(a));
}
Expected avg_pool1d(const Arguments& a) {
  need_floats(a);
  Array x = a.array(0, "self");
  if (x.dims.empty()) throw Undefined("planes of fewer than two dimensions");
  Dims dims = x.dims;
  dims.put(-1, 1);
  const int64_t kernel = a.pair(1, "kernel_size", 1).first;
  Average v;
  v.rows = {{0, 1, 1, 1}};
  v.columns = windows(dims.back(), kernel, a.pair(2, "stride", kernel).first,
                      a.pair(3, "padding", 0).first, 1, a.flag(4, "ceil_mode", false));
  v.count = a.flag(5, "count_include_pad", true) ? Count::kPadded : Count::kInside;
  Array y = v.forward(a.m, reshaped(std::move(x), dims), 0);
  dims = y.dims;
  dims.drop(-2);
  return reshaped(std::move(y), dims);
}
Expected adaptive_avg_pool2d(const Arguments& a) {
  need_floats(a);
  const Array x = a.array(0, "self");
  const Planes p(x.dims);
  const auto out = a.pair(1, "output_size", 1);
  return Average{adaptive(p.h, out.first), adaptive(p.w, out.second), Count::kAdaptive, 0}.forward(
      a.m, x, 0);
}
Expected adaptive_avg_pool2d_backward(const Arguments& a) {
  need_floats(a);
  const Array dy = a.array(0, "grad_output");
  const Dims& dims = a.view(1, "self").dims;
  const Planes from(dy.dims), to(dims);
  return Average{adaptive(to.h, from.h), adaptive(to.w, from.w), Count::kAdaptive, 0}.backward(
      a.m, dy, dims, half_unit(a));
}

// Moves between channels and the pixels of r x r blocks.
Expected shuffled(const Arguments& a, bool apart) {
  const Array x = a.array(0, "self");
  const int64_t r = a.integer(1, apart ? "downscale_factor" : "upscale_factor", 1);
  if (x.dims.size() < 3 || r < 1) throw Undefined("pixels without channels");
  const Planes p(x.dims);
  const int64_t c = x.dims[x.dims.size() - 3], n = c == 0 ? 0 : p.n / c;
  Dims dims = x.dims;
  const size_t rank = dims.size();
  if (apart) {
    dims[rank - 3] = count({c, r, r}), dims[rank - 2] = p.h / r, dims[rank - 1] = p.w / r;
    return reshaped(permuted(reshaped(x, {n, c, p.h / r, r, p.w / r, r}), {0, 1, 3, 5, 2, 4}),
                    dims);
  }
  dims[rank - 3] = c / (r * r), dims[rank - 2] = p.h * r, dims[rank - 1] = p.w * r;
  return reshaped(permuted(reshaped(x, {n, c / (r * r), r, r, p.h, p.w}), {0, 1, 4, 2, 5, 3}),
                  dims);
}
Expected pixel_shuffle(const Arguments& a) { return shuffled(a, false); }
Expected pixel_unshuffle(const Arguments& a) { return shuffled(a, true); }

// Where each element of [channels, kernel, positions] lies in [channels, h, w]; -1: padding.
Checked<int64_t> columns_of(const Arguments& a, size_t first, const Planes& p) {
  const auto kernel = a.pair(first, "kernel_size", 1), dilation = a.pair(first + 1, "dilation", 1);
  const auto pad = a.pair(first + 2, "padding", 0), stride = a.pair(first + 3, "stride", 1);
  const Spans rows = windows(p.h, kernel.first, stride.first, pad.first, dilation.first, false);
  const Spans across =
      windows(p.w, kernel.second, stride.second, pad.second, dilation.second, false);
  const int64_t across_all = length(across), positions = length(rows) * across_all;
  const int64_t taps = kernel.first * kernel.second;
  Checked<int64_t> out(
      static_cast<size_t>(allowed_count({p.n, kernel.first, kernel.second, positions})));
  in_ranges(a.m, std::ssize(out), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = i % positions, k = i / positions % taps, n = i / positions / taps;
      const int64_t h =
          at / across_all * stride.first - pad.first + k / kernel.second * dilation.first;
      const int64_t w =
          at % across_all * stride.second - pad.second + k % kernel.second * dilation.second;
      const bool inside = h >= 0 && h < p.h && w >= 0 && w < p.w;
      out[static_cast<size_t>(i)] = inside ? (n * p.h + h) * p.w + w : -1;
    }
  });
  return out;
}
Expected im2col(const Arguments& a) {
  const Array x = a.array(0, "self");
  if (x.dims.size() < 3) throw Undefined("pixels without channels");
  const Planes p(x.dims);
  const auto kernel = a.pair(1, "kernel_size", 1);
  const Checked<int64_t> index = columns_of(a, 1, p);
  const int64_t rows = count({p.n, kernel.first, kernel.second});
  if (rows == 0) throw Undefined("columns of nothing");
  Dims dims = x.dims.part(0, -2);
  dims.back() *= kernel.first * kernel.second;
  dims.push_back(static_cast<int64_t>(index.size()) / rows);
  return gathered(x, index, dims);
}
Expected col2im(const Arguments& a) {
  const Array x = a.array(0, "self");
  if (x.dims.size() < 2) throw Undefined("columns without positions");
  const auto size = a.pair(1, "output_size", 1), kernel = a.pair(2, "kernel_size", 1);
  Dims dims = x.dims.part(0, -1);
  dims.back() = quotient(dims.back(), kernel.first * kernel.second);
  dims.push_back(size.first);
  dims.push_back(size.second);
  const Checked<int64_t> index = columns_of(a, 2, Planes(dims));
  if (static_cast<int64_t>(index.size()) != x.size()) throw Undefined("columns of another shape");
  Totals totals = totals_of(dims);
  for (size_t i = 0; i < index.size(); ++i) {
    if (index[i] >= 0) add(totals, index[i], x.at(static_cast<int64_t>(i)));
  }
  return array_from(a.m, totals, dims, half_unit(a));
}

constexpr Definition kPoolingDefinitions[] = {
    {"aten.max_pool2d_with_indices", max_pool2d},
    {"aten.max_pool2d_with_indices_backward", max_pool2d_backward},
    {"aten.adaptive_max_pool2d", adaptive_max_pool2d},
    {"aten.adaptive_max_pool2d_backward", adaptive_max_pool2d_backward},
    {"aten.avg_pool1d", avg_pool1d},
    {"aten.avg_pool2d", avg_pool2d},
    {"aten.avg_pool2d_backward", avg_pool2d_backward},
    {"aten._adaptive_avg_pool2d", adaptive_avg_pool2d},
    {"aten._adaptive_avg_pool2d_backward", adaptive_avg_pool2d_backward},
    {"aten.pixel_shuffle", pixel_shuffle},
    {"aten.pixel_unshuffle", pixel_unshuffle},
    {"aten.im2col", im2col},
    {"aten.col2im", col2im},
};

}  // namespace

std::span<const Definition> pooling_definitions() { return kPoolingDefinitions; }

}  // namespace twinrun::aten
