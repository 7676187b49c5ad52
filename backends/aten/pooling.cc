// Pooling, interpolation, padding and the moves of pixels, with their gradients.
#include <algorithm>

#include "backends/aten/definitions.h"
#include "backends/aten/totals.h"
#include "backends/aten/windows.h"

namespace twinrun::aten {
namespace {

double half_unit(const Arguments& a) { return half_unit(a.view(0, "self").element); }
void need_floats(const Arguments& a) {
  if (!is_float(a.view(0, "self").element)) throw Undefined("averages of integers");
}

// A tensor whose last two dimensions are height and width, and the number of such planes.
struct Planes {
  int64_t n = 0, h = 0, w = 0;
  explicit Planes(const Dims& dims) {
    if (dims.size() < 2) throw Undefined("planes of fewer than two dimensions");
    count(dims);  // no product of them overflows
    h = dims[dims.size() - 2], w = dims.back();
    n = count(dims.part(0, -2));
  }
};
Dims with_planes(Dims dims, int64_t h, int64_t w) {
  dims[dims.size() - 2] = h, dims.back() = w;
  return dims;
}

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

// What an output position of an axis reads: positions of the input with their weights.
struct Tap {
  int64_t at = 0;
  Estimate weight{1, 0};
};
using Taps = Checked<Checked<Tap>>;
Estimate weighted(const Arithmetic& m, const Tap& r, const Tap& c, Estimate e, double half) {
  const Estimate w = m.mul(r.weight, c.weight);
  if (w.value == 1 && w.radius == 0) return e;
  // Whether an element of weight 0 is read at all depends on a rounding.
  if (!finite(e.value) && std::fabs(w.value) <= w.radius) return {0, kInfinity};
  e = m.mul(w, e);
  e.radius += 2 * half * std::fabs(e.value);
  return e;
}
Array interpolated(const Arithmetic& m, const Array& x, const Taps& rows, const Taps& columns,
                   double half) {
  const Planes p(x.dims);
  const auto nr = static_cast<int64_t>(rows.size()), nc = static_cast<int64_t>(columns.size());
  Array out = empty_array(with_planes(x.dims, nr, nc));
  in_ranges(m, out.size(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Total total;
      for (const Tap& r : rows[static_cast<size_t>(i / nc % nr)]) {
        for (const Tap& c : columns[static_cast<size_t>(i % nc)]) {
          const Estimate v = x.at((i / (nc * nr) * p.h + r.at) * p.w + c.at);
          total.add(weighted(m, r, c, v, 0));
        }
      }
      out.set(i, total.of(m, half));
    }
  });
  return out;
}
// The gradient: each output's gradient, times the weights, to where the output read.
Array spread(const Arithmetic& m, const Array& dy, const Dims& dims, const Taps& rows,
             const Taps& columns, double half) {
  const Planes p(dims);
  const auto nr = static_cast<int64_t>(rows.size()), nc = static_cast<int64_t>(columns.size());
  if (dy.size() != count({p.n, nr, nc})) throw Undefined("a gradient of another shape");
  Totals totals = totals_of(dims);
  for (int64_t i = 0; i < dy.size(); ++i) {
    for (const Tap& r : rows[static_cast<size_t>(i / nc % nr)]) {
      for (const Tap& c : columns[static_cast<size_t>(i % nc)]) {
        add(totals, (i / (nc * nr) * p.h + r.at) * p.w + c.at, weighted(m, r, c, dy.at(i), half));
      }
    }
  }
  return array_from(m, totals, dims, half);
}

// Before memory is taken for an interpolated or padded axis.
void need_size(int64_t size, int64_t other = 1) {
  if (size < 1 || other < 1 || allowed_count({size, other}) < 1)
    throw Undefined("an axis without elements");
}

// Which input is nearest: kernels compute floor(o * scale) in binary32.
Taps nearest(int64_t in, int64_t out, double factor, double shift) {
  const double ratio = factor > 0 ? 1 / factor : static_cast<double>(in) / static_cast<double>(out);
  const auto scale = static_cast<float>(ratio);
  need_size(out);
  Taps taps;
  taps.reserve(static_cast<size_t>(out));
  for (int64_t o = 0; o < out; ++o) {
    const double v = (static_cast<double>(o) + shift) * ratio;
    const float f = (static_cast<float>(o) + static_cast<float>(shift)) * scale;
    // At the edge of two inputs kernels of other precision may take the other one.
    if (in != out && std::floor(v * (1 + 0x1p-22)) != std::floor(v * (1 - 0x1p-22)) &&
        std::floor(static_cast<double>(f)) != std::floor(v)) {
      throw Undefined("a nearest element that depends on a rounding");
    }
    const auto at = std::min(as_integer(std::floor(f)), in - 1);
    // CPU kernels ignore the factor at these sizes, CUDA's do not.
    if (shift == 0 && ((out == in && at != o) || (out == 2 * in && at != o / 2)))
      throw Undefined("a factor that does not fit the sizes");
    taps.push_back({{at, {1, 0}}});
  }
  return taps;
}
// The two neighbours of each output. Their weights carry the rounding of the position, which may
// also fall on the other side of an input.
Taps linear(const Arithmetic& m, int64_t in, int64_t out, double factor, bool corners,
            double half) {
  double ratio = factor > 0 ? 1 / factor : static_cast<double>(in) / static_cast<double>(out);
  if (corners) ratio = out > 1 ? static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0;
  Taps taps;
  for (int64_t o = 0; o < out; ++o) {
    const auto at = static_cast<double>(o);
    const double position = corners ? ratio * at : std::fmax(0, ratio * (at + 0.5) - 0.5);
    const auto low = std::min(as_integer(position), in - 1);
    // The same size gives the same positions in every kernel.
    if (in == out && position != at) throw Undefined("a factor that does not fit the sizes");
    if (in == out) {
      taps.push_back({{o, {1, 0}}});
      continue;
    }
    const double slack = position == 0 && corners ? 0 : 4 * m.unit * (position + 1);
    const double part = std::fmin(position - static_cast<double>(low), 1);
    const auto weight = [&](double w) { return Estimate{w, slack + 2 * half * w}; };
    Checked<Tap> one;
    one.reserve(2);
    if (low + 1 >= in) {
      one.push_back({low, {1, 2 * m.unit}});
      if (part <= slack && low > 0) one.push_back({low - 1, weight(0)});
    } else {
      if (part <= slack && low > 0) one.push_back({low - 1, weight(0)});
      one.push_back({low, weight(1 - part)});
      one.push_back({low + 1, weight(part)});
      if (1 - part <= slack && low + 2 < in) one.push_back({low + 2, weight(0)});
    }
    taps.push_back(std::move(one));
  }
  return taps;
}

// Keys' cubic kernel with its free number: -0.75 where PyTorch interpolates, -0.5 where it also
// averages ("antialias").
double cubic_weight(double x, double a) {
  x = std::fabs(x);
  return x <= 1 ? ((a + 2) * x - (a + 3)) * x * x + 1 : x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}
double linear_weight(double x) { return std::fmax(0, 1 - std::fabs(x)); }
// No weight of the kernels above changes faster than this with its position.
constexpr double kSteepest = 1.5;

// The four neighbours of each output; one more on each side may be read with a weight near zero
// where the position lies at an input. Beyond the edges the outermost input counts.
Taps cubic(const Arithmetic& m, int64_t in, int64_t out, double factor, bool corners, double half) {
  double ratio = factor > 0 ? 1 / factor : static_cast<double>(in) / static_cast<double>(out);
  if (corners) ratio = out > 1 ? static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0;
  Taps taps;
  for (int64_t o = 0; o < out; ++o) {
    const auto at = static_cast<double>(o);
    const double position = corners ? ratio * at : ratio * (at + 0.5) - 0.5;
    if (in == out && position != at) throw Undefined("a factor that does not fit the sizes");
    const auto low = as_integer(std::floor(position));
    const double slack = in == out ? 0 : 4 * kSteepest * m.unit * (std::fabs(position) + 2);
    Checked<Tap> one;
    for (int64_t k = low - 2; k <= low + 3; ++k) {
      const double w = cubic_weight(position - static_cast<double>(k), -0.75);
      if (w == 0 && slack == 0) continue;
      one.push_back(
          {std::clamp<int64_t>(k, 0, in - 1), {w, slack + (w == 1 ? 0 : 2 * half * std::fabs(w))}});
    }
    taps.push_back(std::move(one));
  }
  return taps;
}

// Each output is an average of the inputs below a kernel that is stretched by the ratio of the
// sizes (as Pillow does): weights F((j - c + 1/2) / stretch) over their sum. Rounding moves c, and
// so each weight by at most `moved`, and the sum by as much for each of its terms. An input at the
// kernel's end may be read or not: its weight is near zero.
template <typename F>
Taps averaging(const Arithmetic& m, int64_t in, int64_t out, double factor, bool corners,
               double reach, F kernel, double half) {
  double ratio = factor > 0 ? 1 / factor : static_cast<double>(in) / static_cast<double>(out);
  if (corners) ratio = out > 1 ? static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0;
  const double stretch = std::fmax(ratio, 1);
  need_size(out, as_integer(2 * reach * stretch) + 3);
  Taps taps;
  for (int64_t o = 0; o < out; ++o) {
    const double center = ratio * (static_cast<double>(o) + 0.5);
    const double moved = 4 * kSteepest * m.unit * (center + reach * stretch + 1) / stretch;
    const auto from = std::max<int64_t>(0, as_integer(std::floor(center - reach * stretch)) - 1);
    const auto to = std::min(in, as_integer(std::ceil(center + reach * stretch)) + 1);
    double total = 0;
    Checked<Tap> one;
    for (int64_t j = from; j < to; ++j) {
      const double w = kernel((static_cast<double>(j) - center + 0.5) / stretch);
      total += w;
      one.push_back({j, {w, 0}});
    }
    const auto terms = static_cast<double>(one.size());
    if (!(total > terms * moved)) throw Undefined("an average that its rounding decides");
    for (Tap& tap : one) {
      const double w = tap.weight.value / total;
      tap.weight = {w, moved * (1 + terms * std::fabs(w)) / (total - terms * moved) +
                           (4 * m.unit + 2 * half) * std::fabs(w)};
    }
    taps.push_back(std::move(one));
  }
  return taps;
}

// The factor of an axis: a number, or of the `.vec` overloads one of a list; 0 where there is none.
double factor_of(const Arguments& a, size_t at, std::string_view name, size_t axis) {
  if (!a.call().op.ends_with(".vec")) return a.number(at + axis, name, 0);
  const Value* list = a.find(at, "scale_factors");
  if (list == nullptr || list->items.size() <= axis) return 0;
  const Value& v = list->items[axis];
  return v.kind == Value::Kind::kNumber ? v.number : static_cast<double>(v.integer);
}

// The output size of the `.vec` overloads may be None.
struct Resize {
  int64_t h = 0, w = 0;
  double by_h = 0, by_w = 0;
};
Resize resize_of(const Arguments& a, const Dims& in, size_t scales_at) {
  const Planes p(in);
  Resize r;
  r.by_h = factor_of(a, scales_at, "scales_h", 0);
  r.by_w = factor_of(a, scales_at, "scales_w", 1);
  if (a.has(1, "output_size")) {
    const auto size = a.pair(1, "output_size", 1);
    r.h = size.first, r.w = size.second;
  } else {
    r.h = as_integer(static_cast<double>(p.h) * r.by_h);
    r.w = as_integer(static_cast<double>(p.w) * r.by_w);
  }
  need_size(r.h, r.w);
  return r;
}
Expected nearest2d(const Arguments& a, double shift) {
  const Array x = a.array(0, "self");
  const Planes p(x.dims);
  const Resize r = resize_of(a, x.dims, 2);
  return interpolated(a.m, x, nearest(p.h, r.h, r.by_h, shift), nearest(p.w, r.w, r.by_w, shift),
                      0);
}
Expected upsample_nearest2d(const Arguments& a) { return nearest2d(a, 0); }
Expected upsample_nearest_exact2d(const Arguments& a) { return nearest2d(a, 0.5); }
Expected nearest2d_backward(const Arguments& a, double shift) {
  const Dims dims = a.integers(2, "input_size", {});
  const Planes p(dims);
  const Resize r = resize_of(a, dims, 3);
  return spread(a.m, a.array(0, "grad_output"), dims, nearest(p.h, r.h, r.by_h, shift),
                nearest(p.w, r.w, r.by_w, shift), half_unit(a));
}
Expected upsample_nearest2d_backward(const Arguments& a) { return nearest2d_backward(a, 0); }
Expected upsample_nearest_exact2d_backward(const Arguments& a) {
  return nearest2d_backward(a, 0.5);
}
// How the outputs of an axis read its inputs.
using Axis = Taps (*)(const Arithmetic& m, int64_t in, int64_t out, double factor, bool corners,
                      double half);
Taps averaging_linear(const Arithmetic& m, int64_t in, int64_t out, double factor, bool corners,
                      double half) {
  return averaging(m, in, out, factor, corners, 1, linear_weight, half);
}
Taps averaging_cubic(const Arithmetic& m, int64_t in, int64_t out, double factor, bool corners,
                     double half) {
  return averaging(
      m, in, out, factor, corners, 2, [](double x) { return cubic_weight(x, -0.5); }, half);
}
template <Axis kAxis>
Expected resized(const Arguments& a) {
  need_floats(a);
  const Array x = a.array(0, "self");
  const Planes p(x.dims);
  const Resize r = resize_of(a, x.dims, 3);
  const bool corners = a.flag(2, "align_corners", false);
  // Kernels of half precision may store the weights and the interpolated rows.
  const double half = half_unit(a);
  return interpolated(a.m, x, kAxis(a.m, p.h, r.h, r.by_h, corners, half),
                      kAxis(a.m, p.w, r.w, r.by_w, corners, half), half);
}
template <Axis kAxis>
Expected resized_backward(const Arguments& a) {
  need_floats(a);
  const Dims dims = a.integers(2, "input_size", {});
  const Planes p(dims);
  const Resize r = resize_of(a, dims, 4);
  const bool corners = a.flag(3, "align_corners", false);
  const double half = half_unit(a);
  return spread(a.m, a.array(0, "grad_output"), dims, kAxis(a.m, p.h, r.h, r.by_h, corners, half),
                kAxis(a.m, p.w, r.w, r.by_w, corners, half), half);
}

// Lines are planes of one row. `factor_at`: which argument is the factor.
template <bool kBack>
Expected resized_lines(const Arguments& a, Axis axis, size_t factor_at, bool corners, double half) {
  Array x = a.array(0, kBack ? "grad_output" : "self");
  const Dims given = kBack ? a.integers(2, "input_size", {}) : x.dims;
  if (given.size() != 3 || x.dims.size() != 3)
    throw Undefined("lines of other than three dimensions");
  const Dims plane = {given[0], given[1], 1, given[2]};
  const double factor = factor_of(a, factor_at, "scales", 0);
  const int64_t out = a.has(1, "output_size") ? a.pair(1, "output_size", 1).first
                                              : as_integer(static_cast<double>(given[2]) * factor);
  need_size(out);
  const Taps columns = axis(a.m, given[2], out, factor, corners, half);
  if constexpr (kBack) {
    x = reshaped(std::move(x), {given[0], given[1], 1, out});
    return reshaped(spread(a.m, x, plane, {{Tap{}}}, columns, half), given);
  } else {
    return reshaped(interpolated(a.m, reshaped(std::move(x), plane), {{Tap{}}}, columns, half),
                    {given[0], given[1], out});
  }
}
Taps nearest_axis(const Arithmetic&, int64_t in, int64_t out, double factor, bool, double) {
  return nearest(in, out, factor, 0);
}
Expected upsample_nearest1d(const Arguments& a) {
  return resized_lines<false>(a, nearest_axis, 2, false, 0);
}
Expected upsample_nearest1d_backward(const Arguments& a) {
  return resized_lines<true>(a, nearest_axis, 3, false, half_unit(a));
}
Expected upsample_linear1d(const Arguments& a) {
  need_floats(a);
  return resized_lines<false>(a, linear, 3, a.flag(2, "align_corners", false), half_unit(a));
}
Expected upsample_linear1d_backward(const Arguments& a) {
  need_floats(a);
  return resized_lines<true>(a, linear, 4, a.flag(3, "align_corners", false), half_unit(a));
}

// Padding by elements of the input: each position of the result reads one.
Taps padding(int64_t in, int64_t before, int64_t after, bool reflect) {
  need_size(in), need_size(before + in + after);
  Taps taps;
  taps.reserve(static_cast<size_t>(before + in + after));
  for (int64_t o = -before; o < in + after; ++o) {
    int64_t at = std::clamp<int64_t>(o, 0, in - 1);
    if (reflect && o < 0) at = -o;
    if (reflect && o >= in) at = 2 * (in - 1) - o;
    if (at < 0 || at >= in) throw Undefined("a padding wider than the input");
    taps.push_back({{at, {1, 0}}});
  }
  return taps;
}
Expected padded(const Arguments& a, bool back, bool reflect, bool flat) {
  const Dims pad = a.integers(back ? 2 : 1, "padding", {});
  if (pad.size() != (flat ? 2U : 4U)) throw Undefined("a padding of another length");
  Array x = a.array(0, back ? "grad_output" : "self");
  Dims dims = back ? a.view(1, "self").dims : x.dims;
  const Dims own = dims;
  if (flat) {
    dims.put(-1, 1);
    Dims across = x.dims;
    across.put(-1, 1);
    x = reshaped(std::move(x), across);
  }
  const Planes p(dims);
  if (!flat) need_size(p.h + pad[2] + pad[3], p.w + pad[0] + pad[1]);
  const Taps columns = padding(p.w, pad[0], pad[1], reflect);
  const Taps rows = flat ? Taps{{Tap{}}} : padding(p.h, pad[2], pad[3], reflect);
  if (back) return reshaped(spread(a.m, x, dims, rows, columns, half_unit(a)), own);
  Array y = interpolated(a.m, x, rows, columns, 0);
  Dims to = y.dims;
  if (flat) to.drop(-2);
  return reshaped(std::move(y), to);
}
Expected reflection_pad1d(const Arguments& a) { return padded(a, false, true, true); }
Expected reflection_pad2d(const Arguments& a) { return padded(a, false, true, false); }
Expected replication_pad2d(const Arguments& a) { return padded(a, false, false, false); }
Expected reflection_pad1d_backward(const Arguments& a) { return padded(a, true, true, true); }
Expected reflection_pad2d_backward(const Arguments& a) { return padded(a, true, true, false); }
Expected replication_pad2d_backward(const Arguments& a) { return padded(a, true, false, false); }

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
    {"aten.upsample_nearest1d", upsample_nearest1d},
    {"aten.upsample_nearest1d_backward", upsample_nearest1d_backward},
    {"aten.upsample_linear1d", upsample_linear1d},
    {"aten.upsample_linear1d_backward", upsample_linear1d_backward},
    {"aten.upsample_nearest2d", upsample_nearest2d},
    {"aten.upsample_nearest2d_backward", upsample_nearest2d_backward},
    {"aten._upsample_nearest_exact2d", upsample_nearest_exact2d},
    {"aten._upsample_nearest_exact2d_backward", upsample_nearest_exact2d_backward},
    {"aten.upsample_bilinear2d", resized<linear>},
    {"aten.upsample_bilinear2d_backward", resized_backward<linear>},
    {"aten.upsample_bicubic2d", resized<cubic>},
    {"aten.upsample_bicubic2d_backward", resized_backward<cubic>},
    {"aten._upsample_bilinear2d_aa", resized<averaging_linear>},
    {"aten._upsample_bilinear2d_aa_backward", resized_backward<averaging_linear>},
    {"aten._upsample_bicubic2d_aa", resized<averaging_cubic>},
    {"aten._upsample_bicubic2d_aa_backward", resized_backward<averaging_cubic>},
    {"aten.reflection_pad1d", reflection_pad1d},
    {"aten.reflection_pad2d", reflection_pad2d},
    {"aten.replication_pad2d", replication_pad2d},
    {"aten.reflection_pad1d_backward", reflection_pad1d_backward},
    {"aten.reflection_pad2d_backward", reflection_pad2d_backward},
    {"aten.replication_pad2d_backward", replication_pad2d_backward},
    {"aten.pixel_shuffle", pixel_shuffle},
    {"aten.pixel_unshuffle", pixel_unshuffle},
    {"aten.im2col", im2col},
    {"aten.col2im", col2im},
};

}  // namespace

std::span<const Definition> pooling_definitions() { return kPoolingDefinitions; }

}  // namespace twinrun::aten
