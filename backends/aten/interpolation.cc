// Interpolation and padding, with their gradients: what each position of the result reads.
#include <algorithm>

#include "backends/aten/definitions.h"
#include "backends/aten/planes.h"
#include "backends/aten/totals.h"
#include "backends/aten/windows.h"

namespace twinrun::aten {
namespace {

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

// How far the next output lies along the inputs. `corners`: the first and the last ones meet.
double ratio_of(int64_t in, int64_t out, double factor, bool corners) {
  if (corners) return out > 1 ? static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0;
  return factor > 0 ? 1 / factor : static_cast<double>(in) / static_cast<double>(out);
}

// Which input is nearest: kernels compute floor(o * scale) in binary32.
Taps nearest(int64_t in, int64_t out, double factor, double shift) {
  const double ratio = ratio_of(in, out, factor, false);
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
  const double ratio = ratio_of(in, out, factor, corners);
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
  const double ratio = ratio_of(in, out, factor, corners);
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
  const double ratio = ratio_of(in, out, factor, corners);
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

constexpr Definition kInterpolationDefinitions[] = {
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
};

}  // namespace

std::span<const Definition> interpolation_definitions() { return kInterpolationDefinitions; }

}  // namespace twinrun::aten
