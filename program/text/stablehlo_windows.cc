// Convolutions, pools and their gradients, as StableHLO's general convolution and reduce_window.
// Along an image axis with k taps, stride s, dilation d, padding p before, input size n and output
// size m:
//
//   gradient of the input    dy dilated by s, the kernel reversed (by stablehlo.reverse, as JAX
//                            does: XLA has fast convolutions for that, none for a reversed window);
//                            padding d(k-1) - p before, and after it what gives n outputs
//   gradient of the kernel   dy is the kernel, dilated by s; the stride is d;
//                            padding p before, and after it what gives k outputs
//   gradient of a mean pool  dy / taps dilated by s, summed over k;
//                            padding k-1 - p before, and after it what gives n outputs
#include "program/text/stablehlo_writer.h"

namespace twinrun::stablehlo {
namespace {

struct Axis {
  int64_t k, s, d, p, n, m;
  Axis(const Window& w, int i, int64_t in, int64_t out)
      : k(w.size[i]), s(w.stride[i]), d(w.dilation[i]), p(w.pad_low[i]), n(in), m(out) {}
  int64_t spread() const { return (m - 1) * s + 1; }  // size of dy once it is dilated by s
};

struct ConvolutionWindow {
  int64_t stride[2], low[2], high[2], lhs_dilate[2], rhs_dilate[2];
  std::string text() const {
    const auto pair = [](const int64_t* v) { return fmt::format("[{}, {}]", v[0], v[1]); };
    return fmt::format("stride = {}, pad = [[{}, {}], [{}, {}]], lhs_dilate = {}, rhs_dilate = {}",
                       pair(stride), low[0], high[0], low[1], high[1], pair(lhs_dilate),
                       pair(rhs_dilate));
  }
};

}  // namespace

std::string padding_text(const Dims& low, const Dims& high) {
  std::string pairs;
  for (size_t i = 0; i < low.size(); ++i)
    pairs += fmt::format("{}[{}, {}]", i == 0 ? "" : ", ", low[i], high[i]);
  return fmt::format("dense<[{}]> : tensor<{}x2xi64>", pairs, low.size());
}

std::string window_text(const Window& w) {
  return fmt::format(
      "window_dimensions = {}, window_strides = {}, padding = {}",
      array_text({1, w.size[0], w.size[1], 1}), array_text({1, w.stride[0], w.stride[1], 1}),
      padding_text({0, w.pad_low[0], w.pad_low[1], 0}, {0, w.pad_high[0], w.pad_high[1], 0}));
}

void Writer::convolution(ValueId id, const std::string& lhs, const TensorType& lhs_type,
                         const std::string& rhs, const TensorType& rhs_type,
                         std::string_view numbers, std::string_view window, int64_t feature_groups,
                         int64_t batch_groups) {
  const Window& w = graph_.op(id).attrs.window;
  std::string as_given;
  if (window.empty()) {
    as_given = ConvolutionWindow{{w.stride[0], w.stride[1]},
                                 {w.pad_low[0], w.pad_low[1]},
                                 {w.pad_high[0], w.pad_high[1]},
                                 {1, 1},
                                 {w.dilation[0], w.dilation[1]}}
                   .text();
    window = as_given;
  }
  line(ref(id),
       "stablehlo.convolution({}, {}) dim_numbers = {}, window = {{{}}} {{batch_group_count = {} : "
       "i64, feature_group_count = {} : i64, precision_config = [#stablehlo<precision {}>, "
       "#stablehlo<precision {}>]}} : ({}, {}) -> {}",
       lhs, rhs, numbers, window, batch_groups, feature_groups, options_.precision,
       options_.precision, type_text(lhs_type), type_text(rhs_type), type_text(type(id)));
}

void Writer::input_grad(ValueId id, const Op& op) {
  const Window& w = op.attrs.window;
  const TensorType& dy = type(op.operands[0]);
  TensorType kernel = type(op.operands[1]);
  std::string rhs = ref(op.operands[1]);
  ConvolutionWindow c{};
  for (int i = 0; i < 2; ++i) {
    const auto at = static_cast<size_t>(i) + 1;
    const Axis a(w, i, op.type.dims[at], dy.dims[at]);
    c.stride[i] = 1;
    c.lhs_dilate[i] = a.s;
    c.rhs_dilate[i] = a.d;
    c.low[i] = a.d * (a.k - 1) - a.p;
    c.high[i] = a.n - a.spread() - c.low[i] + a.d * (a.k - 1);
  }
  if (const int64_t groups = op.attrs.groups; groups > 1) {
    // [kh, kw, ci/G, co] to [kh, kw, ci, co/G]: the gradient maps a group's outputs to its inputs.
    const Dims k = kernel.dims;
    const TensorType cut{kernel.dtype, {k[0], k[1], k[2], groups, k[3] / groups}};
    const TensorType swapped{kernel.dtype, {k[0], k[1], groups, k[2], k[3] / groups}};
    const TensorType joined{kernel.dtype, {k[0], k[1], k[2] * groups, k[3] / groups}};
    line(ref(id) + "_cut", "stablehlo.reshape {} : ({}) -> {}", rhs, type_text(kernel),
         type_text(cut));
    line(ref(id) + "_swapped", "stablehlo.transpose {}, dims = [0, 1, 3, 2, 4] : ({}) -> {}",
         ref(id) + "_cut", type_text(cut), type_text(swapped));
    line(ref(id) + "_kernel", "stablehlo.reshape {} : ({}) -> {}", ref(id) + "_swapped",
         type_text(swapped), type_text(joined));
    kernel = joined;
    rhs = ref(id) + "_kernel";
  }
  const std::string turned = ref(id) + "_reversed";
  line(turned, "stablehlo.reverse {}, dims = [0, 1] : {}", rhs, type_text(kernel));
  rhs = turned;
  convolution(id, ref(op.operands[0]), dy, rhs, kernel, "[b, 0, 1, f]x[0, 1, o, i]->[b, 0, 1, f]",
              c.text(), op.attrs.groups, 1);
}

void Writer::kernel_grad(ValueId id, const Op& op) {
  const Window& w = op.attrs.window;
  const TensorType &x = type(op.operands[0]), &dy = type(op.operands[1]);
  ConvolutionWindow c{};
  for (int i = 0; i < 2; ++i) {
    const auto at = static_cast<size_t>(i) + 1;
    const Axis a(w, i, x.dims[at], dy.dims[at]);
    c.stride[i] = a.d;
    c.lhs_dilate[i] = 1;
    c.rhs_dilate[i] = a.s;
    c.low[i] = a.p;
    c.high[i] = a.d * (a.k - 1) + a.spread() - a.n - a.p;
  }
  convolution(id, ref(op.operands[0]), x, ref(op.operands[1]), dy,
              "[f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f]", c.text(), 1, op.attrs.groups);
}

std::string Writer::tap_counts(ValueId id, const Dims& image, const Window& w,
                               const TensorType& as) {
  // Along axis i: how many taps of window o lie inside the image.
  const auto inside = [&](int i, int64_t o) {
    int64_t taps = 0;
    for (int64_t k = 0; k < w.size[i]; ++k) {
      const int64_t at = o * w.stride[i] - w.pad_low[i] + k;
      taps += at >= 0 && at < image[static_cast<size_t>(i) + 1];
    }
    return taps;
  };
  const int64_t rows = w.out(image[1], 0), columns = w.out(image[2], 1);
  std::string values;
  bool same = true;
  for (int64_t r = 0; r < rows; ++r) {
    std::string row;
    for (int64_t c = 0; c < columns; ++c) {
      row += fmt::format("{}{}.0", c == 0 ? "" : ", ", inside(0, r) * inside(1, c));
      same = same && inside(0, r) * inside(1, c) == inside(0, 0) * inside(1, 0);
    }
    values += fmt::format("{}[{}]", r == 0 ? "" : ", ", row);
  }
  if (same) return divisor(id, "taps", as, static_cast<double>(inside(0, 0) * inside(1, 0)));
  const TensorType table{as.dtype, {rows, columns}};
  line(ref(id) + "_table", "stablehlo.constant dense<[{}]> : {}", values, type_text(table));
  line(ref(id) + "_kept", "stablehlo.optimization_barrier {} : {}", ref(id) + "_table",
       type_text(table));
  line(ref(id) + "_taps", "stablehlo.broadcast_in_dim {}, dims = [1, 2] : ({}) -> {}",
       ref(id) + "_kept", type_text(table), type_text(as));
  return ref(id) + "_taps";
}

void Writer::reduce_window(ValueId id, const Op& op) {
  const ValueId x = op.operands[0];
  const bool mean = op.attrs.reducer == Reducer::kMean;
  const TensorType scalar{op.type.dtype, {}};
  const std::string init =
      constant(id, "init", scalar,
               op.attrs.reducer == Reducer::kMax ? -std::numeric_limits<double>::infinity() : 0);
  const std::string taken = mean ? ref(id) + "_sum" : ref(id);
  line(taken, "\"stablehlo.reduce_window\"({}, {}) <{{{}}}> {} : ({}, {}) -> {}", ref(x), init,
       window_text(op.attrs.window),
       region(op.type.dtype, op.attrs.reducer == Reducer::kMax ? "maximum" : "add"),
       type_text(type(x)), type_text(scalar), type_text(op.type));
  if (!mean) return;
  const std::string taps = tap_counts(id, type(x).dims, op.attrs.window, op.type);
  line(ref(id), "stablehlo.divide {}, {} : {}", taken, taps, type_text(op.type));
}

void Writer::select_and_scatter(ValueId id, const Op& op) {
  const ValueId x = op.operands[0], dy = op.operands[1];
  const TensorType scalar{op.type.dtype, {}};
  const std::string zero = constant(id, "zero", scalar, 0), of = type_text(scalar);
  // The selected tap is kept while it is not smaller than the next one, which selects the first
  // maximum.
  line(ref(id),
       "\"stablehlo.select_and_scatter\"({}, {}, {}) <{{{}}}> ({{\n      ^bb0(%a: {}, %b: {}):\n   "
       "  "
       "   %c = stablehlo.compare GE, %a, %b, FLOAT : ({}, {}) -> tensor<i1>\n        "
       "stablehlo.return %c : tensor<i1>\n    }}, {} : ({}, {}, {}) -> {}",
       ref(x), ref(dy), zero, window_text(op.attrs.window), of, of, of, of,
       region(op.type.dtype, "add").substr(1), type_text(type(x)), type_text(type(dy)), of,
       type_text(op.type));
}

void Writer::avg_pool_grad(ValueId id, const Op& op) {
  const Window& w = op.attrs.window;
  const TensorType& dy = type(op.operands[0]);
  const TensorType scalar{op.type.dtype, {}};
  const std::string taps = tap_counts(id, op.type.dims, w, dy), share = ref(id) + "_share";
  line(share, "stablehlo.divide {}, {} : {}", ref(op.operands[0]), taps, type_text(dy));
  Dims low(4, 0), high(4, 0);
  for (int i = 0; i < 2; ++i) {
    const auto at = static_cast<size_t>(i) + 1;
    const Axis a(w, i, op.type.dims[at], dy.dims[at]);
    low[at] = a.k - 1 - a.p;
    high[at] = a.n - a.spread() - low[at] + a.k - 1;
  }
  const std::string zero = constant(id, "zero", scalar, 0);
  line(ref(id),
       "\"stablehlo.reduce_window\"({}, {}) <{{window_dimensions = {}, window_strides = {}, "
       "base_dilations = {}, padding = {}}}> {} : ({}, {}) -> {}",
       share, zero, array_text({1, w.size[0], w.size[1], 1}), array_text({1, 1, 1, 1}),
       array_text({1, w.stride[0], w.stride[1], 1}), padding_text(low, high),
       region(op.type.dtype, "add"), type_text(dy), type_text(scalar), type_text(op.type));
}

}  // namespace twinrun::stablehlo
