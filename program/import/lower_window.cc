// reduce-window and select-and-scatter: pooling and its gradient. Sums are computed along one axis
// after the other: windows that do not overlap as a reduction, overlapping ones as a sum of shifted
// copies. Maxima and the gradient cover two dimensions at a time.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "program/import/reductions.h"

namespace twinrun {
namespace {

// How an operand becomes an image [n, h, w, c]: the windowed dimensions are h and w, the other ones
// are merged into n, or c if it is last.
struct Pool {
  Dims axes;   // the windowed dimensions, one or two
  Dims order;  // the operand's dimensions: others, windowed ones, and c
  Dims dims;   // [n, h, w, c]
  Dims moved;  // sizes of the dimensions in `order`
  Window window;
};

bool is_windowed(const HloWindow& w, size_t i) {
  return w.size[i] != 1 || w.stride[i] != 1 || w.pad_low[i] != 0 || w.pad_high[i] != 0;
}

HloWindow pooling_window(Site& s, const TensorType& t) {
  const HloWindow w = window_attribute(s.in, static_cast<size_t>(t.rank()));
  const auto dilated = [](const Dims& d) {
    return std::ranges::any_of(d, [](int64_t v) { return v != 1; });
  };
  if ((dilated(w.rhs_dilate) || dilated(w.lhs_dilate)) && s.region() != "add")
    s.refuse("a dilated window; allowed: in convolutions, and in sums");
  return w;
}

// The windowed dimensions in pairs. The last ones come last, because of equal maxima the gradient
// goes to the first in row-major order.
std::vector<Dims> pairs_of(const HloWindow& w) {
  std::vector<Dims> pairs;
  for (size_t i = w.size.size(); i-- > 0;) {
    if (!is_windowed(w, i)) continue;
    if (pairs.empty() || pairs.front().size() == 2) pairs.insert(pairs.begin(), Dims{});
    pairs.front().insert(pairs.front().begin(), static_cast<int64_t>(i));
  }
  return pairs;
}

// If the last dimension is not windowed, it stays the channels: the usual layout needs no
// transpose.
Pool pool_of(Site& s, const TensorType& t, const HloWindow& w, const Dims& axes) {
  Pool p;
  p.axes = axes;
  const Dims others = other_dims(t.rank(), axes);
  p.order = others;
  const bool channels = !others.empty() && others.back() == t.rank() - 1;
  const size_t before = others.size() - (channels ? 1 : 0);
  p.order.insert(p.order.begin() + static_cast<std::ptrdiff_t>(before), axes.begin(), axes.end());
  p.dims = {1, 1, 1, channels ? t.dims.back() : 1};
  for (size_t i = 0; i < before; ++i) p.dims[0] *= t.dims[static_cast<size_t>(others[i])];
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto at = static_cast<size_t>(axes[i]);
    p.dims[i + 1] = t.dims[at];
    p.window.size[i] = w.size[at];
    p.window.stride[i] = w.stride[at];
    p.window.pad_low[i] = w.pad_low[at];
    p.window.pad_high[i] = w.pad_high[at];
    if (w.pad_low[at] < 0 || w.pad_high[at] < 0) s.refuse("a window with negative padding");
  }
  s.check_size({p.dims[0], p.window.out(p.dims[1], 0), p.window.out(p.dims[2], 1), p.dims[3]});
  for (int64_t d : p.order) p.moved.push_back(t.dims[static_cast<size_t>(d)]);
  return p;
}

ValueId to_image(Site& s, const Pool& p, ValueId x, const Dims& image) {
  return s.reshape(s.transpose(x, p.order, "image"), image, "image_2d");
}

// Brings [n, oh, ow, c] back to the operand's order of dimensions.
ValueId from_image(Site& s, const Pool& p, ValueId y) {
  const Dims out = s.b.type(y).dims;
  Dims moved = p.moved, back(p.order.size());
  for (size_t i = 0; i < p.order.size(); ++i) {
    back[static_cast<size_t>(p.order[i])] = static_cast<int64_t>(i);
    const auto axis = std::ranges::find(p.axes, p.order[i]);
    if (axis != p.axes.end()) moved[i] = out[static_cast<size_t>(1 + (axis - p.axes.begin()))];
  }
  return s.transpose(s.reshape(y, moved, "unrolled"), back, "result");
}

ValueId max_pool(Site& s, ValueId x, const HloWindow& w, const Dims& axes,
                 const std::string& name) {
  const Pool p = pool_of(s, s.b.type(x), w, axes);
  return from_image(s, p,
                    s.b.reduce_window(to_image(s, p, x, p.dims), p.window, Reducer::kMax, name));
}

// Sums of windows along one axis, with zeros in the padding and between dilated elements.
ValueId window_sum(Site& s, ValueId x, int64_t axis, const HloWindow& w) {
  const auto i = static_cast<size_t>(axis);
  const int64_t size = w.size[i], stride = w.stride[i];
  x = s.widen(x, axis, w.pad_low[i], w.pad_high[i], w.lhs_dilate[i] - 1);
  if (size == 1 && stride == 1) return x;
  const Dims dims = s.b.type(x).dims;
  const int64_t n = dims[static_cast<size_t>(axis)], dilation = w.rhs_dilate[i];
  const int64_t extent = (size - 1) * dilation + 1;
  if (n < extent) s.refuse("a window larger than its operand");
  const int64_t count = (n - extent) / stride + 1;
  if (stride == size && dilation == 1) {
    x = s.cut(x, axis, 0, count * size);
    Dims grouped = dims;
    grouped[static_cast<size_t>(axis)] = count;
    grouped.insert(grouped.begin() + axis + 1, size);
    return s.b.reduce(s.reshape(x, grouped, "windows"), {axis + 1}, Reducer::kSum, s.name());
  }
  ValueId sum = kNoValue;
  for (int64_t k = 0; k < size; ++k) {
    const int64_t begin = k * dilation;
    const ValueId part = s.cut(x, axis, begin, begin + (count - 1) * stride + 1, stride);
    sum = sum == kNoValue ? part : s.b.add(sum, part, s.name());
  }
  return sum;
}

// Windows of any length along one axis, by any associative op, in few ops: those of 2, 4, 8, ..
// elements from the ones of half their length, and the others from these.
ValueId long_windows(Site& s, OpKind kind, ValueId x, int64_t axis, int64_t size) {
  const int64_t count = s.b.type(x).dims[static_cast<size_t>(axis)] - size + 1;
  if (count < 1) s.refuse("a window larger than its operand");
  ValueId out = kNoValue, power = x;
  int64_t done = 0;
  for (int64_t length = 1, rest = size; rest > 0; length *= 2, rest /= 2) {
    if (rest % 2 == 1) {
      const ValueId part = s.cut(power, axis, done, done + count);
      out = out == kNoValue ? part : s.b.binary(kind, out, part, s.name());
      done += length;
    }
    if (rest == 1) break;
    const int64_t now = s.b.type(power).dims[static_cast<size_t>(axis)];
    const ValueId first = s.cut(power, axis, 0, now - length),
                  second = s.cut(power, axis, length, now);
    power = s.b.binary(kind, first, second, s.name("doubled"));
  }
  return out;
}

// Pads with a value that changes nothing.
ValueId padded(Site& s, ValueId x, int64_t axis, int64_t low, int64_t high, double value) {
  if (value == 0) return s.widen(x, axis, low, high);
  const int64_t size = s.b.type(x).dims[static_cast<size_t>(axis)];
  x = s.cut(x, axis, std::max<int64_t>(0, -low), size - std::max<int64_t>(0, -high));
  const auto around = [&](int64_t n) {
    TensorType like = s.b.type(x);
    like.dims[static_cast<size_t>(axis)] = n;
    s.check_size(like.dims);
    return s.splat(value, like, "padding");
  };
  if (low > 0) {
    const ValueId before = around(low);
    x = s.b.concatenate(before, x, axis, s.name("padded"));
  }
  if (high > 0) {
    const ValueId after = around(high);
    x = s.b.concatenate(x, after, axis, s.name("padded"));
  }
  return x;
}

// Cumulative sums and the like: windows along one axis after the other.
ValueId cumulative(Site& s, OpKind kind, const HloWindow& w, double neutral) {
  ValueId x = s.x[0];
  for (size_t i = 0; i < w.size.size(); ++i) {
    const auto axis = static_cast<int64_t>(i);
    x = padded(s, x, axis, w.pad_low[i], w.pad_high[i], neutral);
    if (w.size[i] > 1) x = long_windows(s, kind, x, axis, w.size[i]);
    x = s.cut(x, axis, 0, s.b.type(x).dims[i], w.stride[i]);
  }
  return x;
}

constexpr int64_t kLongWindow = 64;  // up to here windows are computed tap by tap

ValueId reduce_window(Site& s) {
  s.expect(2);
  const TensorType t = s.type(0);
  if (const auto kind = kind_of_region(s.region(), t.dtype)) {
    const HloWindow w = pooling_window(s, t);
    const bool dilated = std::ranges::any_of(w.lhs_dilate, [](int64_t d) { return d != 1; });
    // Windows that do not overlap are reductions.
    bool far = !is_floating(t.dtype) || *kind == OpKind::kMultiply;
    for (size_t i = 0; i < w.size.size(); ++i)
      far = far || (w.size[i] > kLongWindow && w.stride[i] != w.size[i]);
    const bool no_sign = is_unsigned(s.hlo_type(0)),
               narrow =
                   bits_of_integer(s.hlo_type(0)) % 64 != 0 && bits_of_integer(s.hlo_type(0)) < 32;
    const bool extreme = *kind == OpKind::kMaximum || *kind == OpKind::kMinimum;
    const bool exact = t.dtype != DType::kI32 || extreme || !narrow;
    if (far && !dilated && exact && !(no_sign && extreme) && bits_of_integer(s.hlo_type(0)) != 64 &&
        starts_neutral(s, s.x[1], s.region(), t.dtype, s.hlo_type(0)))
      return cumulative(s, *kind, w, neutral_of(s.region(), t.dtype, s.hlo_type(0)));
  }
  if (t.dtype != DType::kF32 && t.dtype != DType::kBF16)
    s.refuse(fmt::format("reduce-window of {}; allowed: f32, bf16", to_string(t)));
  const std::string region = s.region();
  const auto init = splat_of(s.b.graph(), s.x[1]);
  if (region == "add" && init && *init == 0) {
    const HloWindow w = pooling_window(s, t);
    ValueId x = s.x[0];
    for (size_t i = 0; i < w.size.size(); ++i) x = window_sum(s, x, static_cast<int64_t>(i), w);
    return x;
  }
  if ((region != "maximum" && region != "minimum") || !init || !std::isinf(*init) ||
      (*init < 0) != (region == "maximum"))
    s.refuse(fmt::format(
        "reduce-window by '{}'; allowed: add from 0, maximum from -inf, minimum from inf",
        region.empty() ? text_attribute(s.in, "to_apply") : region));
  const HloWindow w = pooling_window(s, t);
  const bool least = region == "minimum";
  ValueId x = s.x[0];
  if (least) x = s.b.unary(OpKind::kNegate, x, s.name("negated"));
  std::vector<Dims> pairs = pairs_of(w);
  std::ranges::reverse(pairs);
  for (size_t i = 0; i < pairs.size(); ++i)
    x = max_pool(s, x, w, pairs[i], i + 1 == pairs.size() ? s.name() : s.name("part"));
  return least ? s.b.unary(OpKind::kNegate, x, s.name("minimum")) : x;
}

ValueId select_and_scatter(Site& s) {
  s.expect(3);
  const TensorType t = s.type(0);
  const auto init = splat_of(s.b.graph(), s.x[2]);
  if (s.region("select") != "compare GE" || s.region("scatter") != "add" || !init || *init != 0 ||
      (t.dtype != DType::kF32 && t.dtype != DType::kBF16) || s.type(1).dtype != t.dtype)
    s.refuse(
        "select-and-scatter; allowed: select GE, scatter add from 0, of floats (the gradient of "
        "max pooling)");
  const HloWindow w = pooling_window(s, t);
  const std::vector<Dims> pairs = pairs_of(w);
  // What each pair is pooled from: the last one from the operand.
  std::vector<ValueId> from = {s.x[0]};
  for (size_t i = pairs.size(); i-- > 1;)
    from.insert(from.begin(), max_pool(s, from.front(), w, pairs[i], s.name("pooled")));
  ValueId d = s.x[1];
  for (size_t i = 0; i < pairs.size(); ++i) {
    const Pool p = pool_of(s, s.b.type(from[i]), w, pairs[i]);
    const Dims out = {p.dims[0], p.window.out(p.dims[1], 0), p.window.out(p.dims[2], 1), p.dims[3]};
    if (s.b.type(d).rank() != t.rank() || s.b.type(d).elements() != product(out))
      s.refuse("a source whose size is not the number of windows");
    const ValueId x = to_image(s, p, from[i], p.dims), dy = to_image(s, p, d, out);
    const std::string name = i + 1 == pairs.size() ? s.name() : s.name("part");
    d = from_image(s, p, s.b.select_and_scatter(x, dy, p.window, name));
  }
  return d;
}

}  // namespace

void add_windows(LoweringTable& table) {
  table["reduce-window"] = reduce_window;
  table["select-and-scatter"] = select_and_scatter;
}

}  // namespace twinrun
