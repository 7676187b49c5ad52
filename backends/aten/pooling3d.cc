// Pooling over three dimensions, with its gradients.
#include <array>

#include "backends/aten/windows.h"

namespace twinrun::aten {
namespace {

// The last three dimensions of a tensor, and the number of such volumes.
struct Volumes {
  int64_t n = 1;
  std::array<int64_t, 3> size{};
  explicit Volumes(const Dims& dims) {
    if (dims.size() < 4) throw Undefined("volumes without channels");
    count(dims);  // no product of them overflows
    n = count(dims.part(0, -3));
    for (size_t i = 0; i < 3; ++i) size[i] = dims[dims.size() - 3 + i];
  }
  int64_t elements() const { return size[0] * size[1] * size[2]; }
};
using Axes = std::array<Spans, 3>;
Dims pooled(Dims dims, const Axes& axes) {
  for (size_t i = 0; i < 3; ++i) dims[dims.size() - 3 + i] = length(axes[i]);
  return dims;
}
std::array<int64_t, 3> triple(const Arguments& a, size_t position, std::string_view name,
                              int64_t otherwise) {
  const Dims given = a.integers(position, name, {});
  if (given.empty()) return {otherwise, otherwise, otherwise};
  if (given.size() == 1) return {given[0], given[0], given[0]};
  if (given.size() != 3) throw Undefined("a window of other dimensions");
  return {given[0], given[1], given[2]};
}
// Arguments kernel, stride and padding from `first` on.
Axes windows_of(const Arguments& a, const Dims& dims, size_t first, size_t dilation_at,
                size_t ceil_at) {
  const Volumes v(dims);
  const auto kernel = triple(a, first, "kernel_size", 1), pad = triple(a, first + 2, "padding", 0);
  const auto stride = triple(a, first + 1, "stride", 0);
  const auto dilation = triple(a, dilation_at, "dilation", 1);
  const bool ceil = a.flag(ceil_at, "ceil_mode", false);
  Axes axes;
  for (size_t i = 0; i < 3; ++i) {
    axes[i] = windows(v.size[i], kernel[i], stride[i] == 0 ? kernel[i] : stride[i], pad[i],
                      dilation[i], ceil);
  }
  return axes;
}
Axes adaptive3d_of(const Dims& from, const Dims& to) {
  const Volumes v(from);
  Axes axes;
  for (size_t i = 0; i < 3; ++i) axes[i] = adaptive(v.size[i], to[to.size() - 3 + i]);
  return axes;
}

// The three spans of output i, and f(place) for each input that it reads.
struct Box {
  std::array<Span, 3> spans;
  int64_t first = 0;  // of the volume
  Box(const Axes& axes, const Volumes& v, int64_t i) {
    for (size_t d = 3; d-- > 0; i /= length(axes[d]))
      spans[d] = axes[d][static_cast<size_t>(i % length(axes[d]))];
    first = i * v.elements();
  }
  template <typename F>
  void each(const Volumes& v, F f) const {
    for (int64_t d = spans[0].begin; d < spans[0].end; d += spans[0].step) {
      for (int64_t h = spans[1].begin; h < spans[1].end; h += spans[1].step) {
        for (int64_t w = spans[2].begin; w < spans[2].end; w += spans[2].step)
          f((d * v.size[1] + h) * v.size[2] + w);
      }
    }
  }
  int64_t inside() const {
    int64_t n = 1;
    for (const Span& s : spans) n *= std::max<int64_t>(0, s.end - s.begin);
    return n;
  }
  int64_t padded() const { return count({spans[0].padded, spans[1].padded, spans[2].padded}); }
};
void allow(const Axes& axes, int64_t boxes) {
  take_steps(kStepsOfOne * static_cast<double>(boxes) * most_read(axes[0]) * most_read(axes[1]) *
             most_read(axes[2]));
}

// The largest of each window, and a position where it is: the call's own if that is right.
Expected max_over(const Arguments& a, const Array& x, const Axes& axes) {
  const Volumes v(x.dims);
  Array out = empty_array(pooled(x.dims, axes), true), at = empty_array(out.dims, true);
  const Checked<int64_t> given = integers_of(a.result(1));
  if (given.size() != at.value.size()) throw Undefined("indices of another shape");
  allow(axes, out.size());
  for (int64_t i = 0; i < out.size(); ++i) {
    const Box box(axes, v, i);
    const auto u = static_cast<size_t>(i);
    const auto volume = [&](int64_t at) { return x.value[static_cast<size_t>(box.first + at)]; };
    double best = -kInfinity;
    int64_t where = -1;
    bool own_inside = false;
    box.each(v, [&](int64_t place) {
      const double e = volume(place);
      if (where < 0 || e > best || (e != e && best == best)) best = e, where = place;
      own_inside = own_inside || place == given[u];
    });
    if (where < 0) throw Undefined("a window without elements");
    if (own_inside) {
      const double own = volume(given[u]);
      if (own == best || (own != own && best != best)) where = given[u];
    }
    out.value[u] = best;
    at.value[u] = static_cast<double>(where);
  }
  Expected expected(std::move(out));
  expected.results.emplace_back(std::move(at));
  return expected;
}
Expected max_pool3d(const Arguments& a) {
  const Array x = a.array(0, "self");
  return max_over(a, x, windows_of(a, x.dims, 1, 4, 5));
}
Expected adaptive_max_pool3d(const Arguments& a) {
  const Array x = a.array(0, "self");
  const auto out = triple(a, 1, "output_size", 1);
  return max_over(a, x, adaptive3d_of(x.dims, {out[0], out[1], out[2]}));
}
Expected max_gradient3d(const Arguments& a, size_t indices_at) {
  const Array dy = a.array(0, "grad_output");
  const Dims& dims = a.view(1, "self").dims;
  const Checked<int64_t> index = integers_of(a.view(indices_at, "indices"));
  const Volumes from(dy.dims), to(dims);
  if (static_cast<int64_t>(index.size()) != dy.size() || from.n != to.n)
    throw Undefined("indices of another shape");
  Totals totals = totals_of(dims);
  for (int64_t i = 0; i < dy.size(); ++i) {
    const int64_t k = index[static_cast<size_t>(i)];
    if (k < 0 || k >= to.elements()) throw Undefined("an index out of range");
    add(totals, i / from.elements() * to.elements() + k, dy.at(i));
  }
  return array_from(a.m, totals, dims, half_unit(a.view(1).element));
}
Expected max_pool3d_backward(const Arguments& a) { return max_gradient3d(a, 7); }
Expected adaptive_max_pool3d_backward(const Arguments& a) { return max_gradient3d(a, 2); }

// The mean of each window, or its gradient. Kernels of half precision may add up and divide in it;
// adaptive ones divide by one size after the other.
struct Average3d {
  Axes axes;
  bool count_padding = false, adaptive = false;
  int64_t divisor = 0;

  Estimate divided(const Arithmetic& m, Estimate e, const Box& box, double half) const {
    const int64_t by = divisor != 0 ? divisor : count_padding ? box.padded() : box.inside();
    if (by == 1) return e;
    e = m.div(e, exactly(static_cast<double>(by)));
    if (adaptive) e = m.more(e, 5 * m.unit);
    return half > 0 ? m.more(e, 3 * half) : e;
  }
  Array forward(const Arithmetic& m, const Array& x, double half) const {
    const Volumes v(x.dims);
    Array out = empty_array(pooled(x.dims, axes));
    allow(axes, out.size());
    in_ranges(m, out.size(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Box box(axes, v, i);
        Total total;
        box.each(v, [&](int64_t place) { total.add(x.at(box.first + place)); });
        out.set(i, box.inside() == 0 ? exactly(0) : divided(m, total.of(m, half), box, half));
      }
    });
    return out;
  }
  Array backward(const Arithmetic& m, const Array& dy, const Dims& dims, double half) const {
    const Volumes v(dims);
    if (dy.dims != pooled(dims, axes)) throw Undefined("a gradient of another shape");
    allow(axes, dy.size());
    Totals totals = totals_of(dims);
    for (int64_t i = 0; i < dy.size(); ++i) {
      const Box box(axes, v, i);
      if (box.inside() == 0) continue;
      const Estimate e = divided(m, dy.at(i), box, half);
      box.each(v, [&](int64_t place) { add(totals, box.first + place, e); });
    }
    return array_from(m, totals, dims, half);
  }
};
double half_of(const Arguments& a) {
  const Element e = a.view(0).element;
  if (!is_float(e)) throw Undefined("averages of integers");
  return half_unit(e);
}
// The arguments from `first` on: kernel, stride, padding, ceil_mode, count_include_pad, divisor.
Average3d average3d_of(const Arguments& a, const Dims& dims, size_t first) {
  return {windows_of(a, dims, first, SIZE_MAX, first + 3),
          a.flag(first + 4, "count_include_pad", true), false,
          a.integer(first + 5, "divisor_override", 0)};
}
Expected avg_pool3d(const Arguments& a) {
  const double half = half_of(a);
  const Array x = a.array(0, "self");
  return average3d_of(a, x.dims, 1).forward(a.m, x, half);
}
Expected avg_pool3d_backward(const Arguments& a) {
  const Dims& dims = a.view(1, "self").dims;
  return average3d_of(a, dims, 2).backward(a.m, a.array(0, "grad_output"), dims, half_of(a));
}
Expected adaptive_avg_pool3d(const Arguments& a) {
  const double half = half_of(a);
  const Array x = a.array(0, "self");
  const auto out = triple(a, 1, "output_size", 1);
  return Average3d{adaptive3d_of(x.dims, {out[0], out[1], out[2]}), false, true, 0}.forward(a.m, x,
                                                                                            half);
}
Expected adaptive_avg_pool3d_backward(const Arguments& a) {
  const Array dy = a.array(0, "grad_output");
  const Dims& dims = a.view(1, "self").dims;
  if (dy.dims.size() != dims.size()) throw Undefined("a gradient of another shape");
  return Average3d{adaptive3d_of(dims, dy.dims), false, true, 0}.backward(a.m, dy, dims,
                                                                          half_of(a));
}

constexpr Definition kPooling3dDefinitions[] = {
    {"aten.max_pool3d_with_indices", max_pool3d},
    {"aten.max_pool3d_with_indices_backward", max_pool3d_backward},
    {"aten.adaptive_max_pool3d", adaptive_max_pool3d},
    {"aten.adaptive_max_pool3d_backward", adaptive_max_pool3d_backward},
    {"aten.avg_pool3d", avg_pool3d},
    {"aten.avg_pool3d_backward", avg_pool3d_backward},
    {"aten._adaptive_avg_pool3d", adaptive_avg_pool3d},
    {"aten._adaptive_avg_pool3d_backward", adaptive_avg_pool3d_backward},
};

}  // namespace

std::span<const Definition> pooling3d_definitions() { return kPooling3dDefinitions; }

}  // namespace twinrun::aten
