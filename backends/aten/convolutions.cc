// Convolutions and their gradients, by the oracle's binary64 products of patches.
#include <algorithm>

#include "backends/aten/definitions.h"
#include "backends/aten/fast_convolutions.h"
#include "backends/oracle/oracle.h"
#include "program/ops/graph.h"
#include "program/ops/op_def.h"

namespace twinrun::aten {
namespace {

struct Shape {
  Window window;
  int64_t groups = 1;
  bool transposed = false;
  int64_t spatial = 2;  // 1 to 3 dimensions
  // The first of three dimensions, of which the others are those of the window.
  int64_t depth = 1, stride = 1, pad = 0, dilation = 1;
  double half = 0;  // unit of the type in which a kernel may add up parts of the result
};

// Arguments stride, padding, dilation, transposed, output_padding, groups from `first` on.
Shape shape_of(const Arguments& a, size_t first, const Dims& weight) {
  Shape s;
  s.spatial = static_cast<int64_t>(weight.size()) - 2;
  if (s.spatial < 1 || s.spatial > 3) throw Undefined("a convolution over other dimensions");
  const Dims stride = a.integers(first, "stride", {1}), pad = a.integers(first + 1, "padding", {0}),
             dilation = a.integers(first + 2, "dilation", {1});
  for (int64_t i = 0; i < s.spatial; ++i) {
    const int64_t axis = i + 2 - s.spatial;  // a single dimension is the second of two
    const auto of = [&](const Dims& d) {
      return d.size() > static_cast<size_t>(i) ? d[static_cast<size_t>(i)] : d.back();
    };
    if (of(stride) < 1 || of(dilation) < 1 || of(pad) < 0)
      throw Undefined("a convolution with an impossible stride, dilation or padding");
    if (axis < 0) {
      s.depth = weight[2], s.stride = of(stride), s.pad = of(pad), s.dilation = of(dilation);
      continue;
    }
    s.window.size[axis] = weight[static_cast<size_t>(i + 2)];
    s.window.stride[axis] = of(stride);
    s.window.pad_low[axis] = s.window.pad_high[axis] = of(pad);
    s.window.dilation[axis] = of(dilation);
  }
  s.transposed = a.flag(first + 3, "transposed", false);
  s.groups = std::max<int64_t>(1, a.integer(first + 5, "groups", 1));
  const Element type = a.view(0).element;
  s.half = type == Element::kF16                          ? 0x1p-11
           : type == Element::kBF16 && a.m.bfloat16_steps ? 0x1p-8
                                                          : 0;
  return s;
}

// [n, c, h, w] as [n, h, w, c], with h = 1 where it is missing.
Array image(const Array& x) {
  if (x.dims.size() == 3)
    return permuted(reshaped(x, {x.dims[0], x.dims[1], 1, x.dims[2]}), {0, 2, 3, 1});
  if (x.dims.size() != 4) throw Undefined("a convolution without a batch dimension");
  return permuted(x, {0, 2, 3, 1});
}
// [co, ci / groups, kh, kw] as [kh, kw, ci / groups, co].
Array kernel(const Array& w) {
  if (w.dims.size() == 3)
    return permuted(reshaped(w, {w.dims[0], w.dims[1], 1, w.dims[2]}), {2, 3, 1, 0});
  return permuted(w, {2, 3, 1, 0});
}
Array back(Array x, const Dims& order, const Dims& dims) {
  return reshaped(permuted(x, order), dims);
}

enum class Part { kValue, kMagnitude, kLargest };
Tensor tensor_of(const Array& x, Part part) {
  if (count(x.dims) != x.size()) beyond_the_end();
  Tensor t = Tensor::empty({DType::kF64, x.dims});
  double* to = t.as<double>().data();
  for (int64_t i = 0; i < x.size(); ++i) {
    const Estimate e = x.at(i);
    to[i] = part == Part::kValue ? e.value
                                 : std::fabs(e.value) + (part == Part::kLargest ? e.radius : 0);
  }
  return t;
}

// The op on two operands, with the bound of sums of `terms` products in any order, which a
// kernel for half precision may compute as `parts` sums that it stores and adds in that type.
Array evaluate(const Arithmetic& m, OpKind kind, const Array& a, const Array& b, Dims result,
               const Shape& s, int64_t terms, int64_t parts) {
  Op op;
  op.kind = kind;
  op.attrs.window = s.window;
  op.attrs.groups = s.groups;
  op.attrs.shape = result;
  op.type = {DType::kF64, result};
  try {
    const std::vector<TensorType> types = {{DType::kF64, a.dims}, {DType::kF64, b.dims}};
    if (op_def(kind).infer(op, types).dims != result) throw Undefined("a result of another shape");
  } catch (const GraphError& e) {
    throw Undefined(e.what());
  }
  Array out = empty_array(std::move(result));
  if (out.size() == 0) return out;
  take_steps(static_cast<double>(out.size()) * static_cast<double>(terms));
  if (a.size() == 0 || b.size() == 0) return filled(out.dims, 0);  // sums of nothing
  const Capabilities wide;
  const auto run = [&](Part part) {
    const Checked<Tensor> in = {tensor_of(a, part), tensor_of(b, part)};
    return eval_value(wide, op, in, m.pool);
  };
  const Tensor value = run(Part::kValue), size = run(Part::kMagnitude);
  const bool exact = a.exact() && b.exact();
  const Tensor largest = exact ? size : run(Part::kLargest);
  // Each part is rounded when it is stored, and their sum with each addition; roundings to few bits
  // may go the same way each time (Rump, as for cumsum).
  const double added = static_cast<double>(parts) * s.half;
  // Below its normal numbers binary16 errs by half its smallest number.
  const double least = s.half == 0x1p-11 ? static_cast<double>(parts) * 0x1p-25 : 0;
  const double relative = m.of_products(terms + 1, m.convolved) + added;
  const double lost = static_cast<double>(terms) * m.smallest;
  for (int64_t i = 0; i < out.size(); ++i) {
    const auto u = static_cast<size_t>(i);
    const double v = value.as<double>()[u], most = largest.as<double>()[u];
    const double given = exact ? 0 : std::fmax(0, most - size.as<double>()[u]) + 0x1p-50 * most;
    Estimate e{v, given + relative * most + (most > 0 && most < 0x1p-90 ? lost : 0) + least};
    if (finite(v) && !(most < (least > 0 ? 65504 : m.overflow))) e.radius = kInfinity;
    // A NaN of 0 times infinity at the border may be there or not.
    if (!finite(v)) e.radius = kInfinity;
    out.set(i, e);
  }
  return out;
}

// [n, co, oh, ow] of x [n, ci, h, w] and w [co, ci / groups, kh, kw].
Array forward(const Arithmetic& m, const Array& x, const Array& w, const Shape& s,
              const Dims& result) {
  const Array in = image(x), k = kernel(w);
  const Dims dims = {in.dims[0], s.window.out(in.dims[1], 0), s.window.out(in.dims[2], 1),
                     k.dims[3]};
  const int64_t terms = k.dims[0] * k.dims[1] * k.dims[2];
  return back(evaluate(m, OpKind::kConvolution, in, k, dims, s, terms, 0), {0, 3, 1, 2}, result);
}
// The gradient of x, which is also what a transposed convolution computes.
Array input_gradient(const Arithmetic& m, const Array& dy, const Array& w, const Shape& s,
                     const Dims& result) {
  const Array g = image(dy), k = kernel(w);
  const bool flat = result.size() == 3;
  const Dims dims = {result[0], flat ? 1 : result[2], result.back(), result[1]};
  const int64_t terms = quotient(s.depth * k.dims[0] * k.dims[1] * k.dims[3], s.groups);
  // PyTorch's kernel without oneDNN stores the products of all taps and adds them up.
  const int64_t taps = s.depth * k.dims[0] * k.dims[1];
  return back(evaluate(m, OpKind::kConvolutionInputGrad, g, k, dims, s, terms, taps), {0, 3, 1, 2},
              result);
}
Array kernel_gradient(const Arithmetic& m, const Array& x, const Array& dy, const Shape& s,
                      const Dims& result) {
  const Array in = image(x), g = image(dy);
  const bool flat = result.size() == 3;
  const Dims dims = {flat ? 1 : result[2], result.back(), result[1], result[0]};
  // PyTorch's kernel without oneDNN adds sample after sample to the result.
  const int64_t terms = g.dims[0] * g.dims[1] * g.dims[2];
  return back(evaluate(m, OpKind::kConvolutionKernelGrad, in, g, dims, s, terms, g.dims[0]),
              {3, 2, 0, 1}, result);
}

// Convolutions over three dimensions are those over two of inputs whose channels are the input's at
// each tap of the first dimension, one sample for each position there.

// [n, c, d, h, w] as [n * positions, c * taps, h, w], where the samples may be outside: zeros.
Array unfolded(const Array& x, const Shape& s, int64_t positions) {
  const int64_t n = x.dims[0], c = x.dims[1], d = x.dims[2], plane = x.dims[3] * x.dims[4];
  Checked<int64_t> index;
  index.reserve(static_cast<size_t>(allowed_count({n, positions, c, s.depth, plane})));
  for (int64_t i = 0; i < n * positions * c * s.depth; ++i) {
    const int64_t tap = i % s.depth, channel = i / s.depth % c, sample = i / s.depth / c;
    const int64_t from = sample % positions * s.stride - s.pad + tap * s.dilation;
    const bool inside = from >= 0 && from < d;
    const int64_t first =
        inside ? ((sample / positions * c + channel) * d + from) * plane : int64_t{0};
    for (int64_t p = 0; p < plane; ++p) index.push_back(inside ? first + p : -1);
  }
  return gathered(x, index, {n * positions, c * s.depth, x.dims[3], x.dims[4]});
}
// Its transpose: adds up the samples and taps of each element. The terms' bounds are those of the
// whole sum.
Array folded(const Arithmetic& m, const Array& x, const Shape& s, int64_t positions, Dims dims) {
  Array out = empty_array(std::move(dims));
  const int64_t c = out.dims[1], d = out.dims[2], plane = out.dims[3] * out.dims[4];
  if (x.size() != count({out.dims[0], positions, c, s.depth, plane})) beyond_the_end();
  take_steps(kStepsOfOne * static_cast<double>(out.size()) * static_cast<double>(s.depth));
  in_ranges(m, out.size(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = i / plane % d, channel = i / plane / d % c, n = i / plane / d / c;
      Estimate e;
      for (int64_t tap = 0; tap < s.depth; ++tap) {
        const int64_t past = at + s.pad - tap * s.dilation;
        if (past < 0 || remainder(past, s.stride) != 0 || quotient(past, s.stride) >= positions)
          continue;
        const Estimate term =
            x.at((((n * positions + past / s.stride) * c + channel) * s.depth + tap) * plane +
                 i % plane);
        e.value += term.value, e.radius += term.radius;
      }
      out.set(i, e);
    }
  });
  return out;
}
// [n, c, d, h, w] as [n * d, c, h, w].
Array by_depth(const Array& x) {
  return reshaped(permuted(x, {0, 2, 1, 3, 4}),
                  {x.dims[0] * x.dims[2], x.dims[1], x.dims[3], x.dims[4]});
}
Array from_depth(Array x, const Dims& dims) {
  return permuted(reshaped(std::move(x), {dims[0], dims[2], dims[1], dims[3], dims[4]}),
                  {0, 2, 1, 3, 4});
}
// [co, ci, d, h, w] as [co, ci * d, h, w].
Dims joined(const Dims& w) { return {w[0], w[1] * w[2], w[3], w[4]}; }

Array any_forward(const Arithmetic& m, const Array& x, const Array& w, const Shape& s,
                  const Dims& result) {
  if (s.spatial < 3) return forward(m, x, w, s, result);
  return from_depth(forward(m, unfolded(x, s, result[2]), reshaped(w, joined(w.dims)), s,
                            {result[0] * result[2], result[1], result[3], result[4]}),
                    result);
}
Array any_input_gradient(const Arithmetic& m, const Array& dy, const Array& w, const Shape& s,
                         const Dims& result) {
  if (s.spatial < 3) return input_gradient(m, dy, w, s, result);
  const Array taps =
      input_gradient(m, by_depth(dy), reshaped(w, joined(w.dims)), s,
                     {dy.dims[0] * dy.dims[2], result[1] * s.depth, result[3], result[4]});
  return folded(m, taps, s, dy.dims[2], result);
}
Array any_kernel_gradient(const Arithmetic& m, const Array& x, const Array& dy, const Shape& s,
                          const Dims& result) {
  if (s.spatial < 3) return kernel_gradient(m, x, dy, s, result);
  return reshaped(kernel_gradient(m, unfolded(x, s, dy.dims[2]), by_depth(dy), s, joined(result)),
                  result);
}

// Output padding only adds rows at the end of a transposed convolution's result: the convolution
// that it is the gradient of reads them or not.
void fit(Shape& s, const Dims& large, const Dims& small) {
  for (int64_t i = 0; i < s.spatial; ++i) {
    const int64_t axis = i + 2 - s.spatial;
    if (axis < 0) continue;
    const auto u = static_cast<size_t>(i + 2);
    const int64_t need = (small[u] - 1) * s.window.stride[axis] +
                         s.window.dilation[axis] * (s.window.size[axis] - 1) + 1;
    s.window.pad_high[axis] = std::max<int64_t>(0, need - large[u] - s.window.pad_low[axis]);
    if (s.window.out(large[u], static_cast<int>(axis)) != small[u])
      s.window.pad_high[axis] = s.window.pad_low[axis];
    if (s.window.out(large[u], static_cast<int>(axis)) != small[u])
      throw Undefined("a transposed convolution whose result has another size");
  }
}

// Algorithms that transform whole tiles. On a GPU the library chooses by its own measure: Fourier's
// algorithm on the whole sample errs by more than its others. Its bound also holds for Winograd's
// of independent roundings: 8 times the root of the sum of all squared effects of F(4x4, 3x3) or
// F(6x6, 3x3), 52,000 units of |x| |w| at 64 channels, is below it. Such algorithms compute in
// binary32 also where TF32 is allowed, and are not for strides above 2 or one channel a group.
enum class Fast { kNone, kNnpack, kWholeSamples };
Fast fast_of(const Arguments& a, const Shape& s, const Array& x, const Array& w, bool gradient) {
  if (a.view(0).element != Element::kF32 || s.dilation != 1 || s.window.dilation[0] != 1 ||
      s.window.dilation[1] != 1) {
    return Fast::kNone;
  }
  const auto [kh, kw] = std::pair(s.window.size[0], s.window.size[1]);
  if (a.m.gpu) {
    const bool steps = std::max({s.stride, s.window.stride[0], s.window.stride[1]}) > 2;
    const bool single = s.depth * kh * kw == 1;
    return steps || single || (s.groups > 1 && w.dims[1] == 1) ? Fast::kNone : Fast::kWholeSamples;
  }
  // PyTorch's use_nnpack(); the gradients are those of its kernel without a library.
  const bool fits = s.spatial < 3 && !s.transposed && kh <= 16 && kw <= 16 &&
                    s.window.pad_low[0] < kh && s.window.pad_low[1] < kw && x.dims[0] >= 16;
  return a.m.nnpack && !gradient && fits ? Fast::kNnpack : Fast::kNone;
}
// Adds errors that are given for the first dimensions of y, and the same at all places.
void widen(Array& y, const Array& errors) {
  const int64_t each = errors.size() == 0 ? 1 : y.size() / errors.size();
  for (int64_t i = 0; i < y.size(); ++i) {
    double& r = y.radius[static_cast<size_t>(i)];
    const double e = errors.value[static_cast<size_t>(i / each)];
    r = e < kInfinity ? r + e : kInfinity;
  }
}
// [n, c, w] as [n, c, 1, w].
Array flat(const Array& x) {
  Dims dims = x.dims;
  if (dims.size() == 3) dims.put(2, 1);
  return reshaped(x, dims);
}
// The weights with the channels of input and output exchanged, group by group.
Array exchanged(const Array& w, int64_t groups) {
  const int64_t out = quotient(w.dims[0], groups), in = w.dims[1],
                taps = quotient(quotient(count(w.dims), w.dims[0]), in);
  return reshaped(permuted(reshaped(w, {groups, out, in, taps}), {0, 2, 1, 3}),
                  {groups * in, out, taps});
}

Expected convolution(const Arguments& a) {
  const Array x = a.array(0, "input"), w = a.array(1, "weight");
  Shape s = shape_of(a, 3, w.dims);
  const Dims result = a.result(0).dims;
  if (result.size() != x.dims.size()) throw Undefined("a convolution of another rank");
  if (s.transposed) fit(s, result, x.dims);
  if (x.dims.size() != w.dims.size()) throw Undefined("a convolution without a batch dimension");
  Array y =
      s.transposed ? any_input_gradient(a.m, x, w, s, result) : any_forward(a.m, x, w, s, result);
  const Fast fast = fast_of(a, s, x, w, false);
  if (fast == Fast::kNnpack) {
    const FastLayer layer{{s.window.size[0], s.window.size[1]},
                          {s.window.pad_low[0], s.window.pad_low[1]},
                          {s.window.stride[0], s.window.stride[1]},
                          s.groups};
    Dims planes = result;
    if (planes.size() == 3) planes.put(2, 1);
    widen(y, nnpack_errors(a.m, flat(x), flat(w), layer, planes));
  } else if (fast == Fast::kWholeSamples) {
    widen(y, whole_sample_errors(a.m, x, s.transposed ? exchanged(w, s.groups) : w, s.groups));
  }
  if (!a.has(2, "bias")) return y;
  Array bias = a.array(2, "bias");
  Dims dims(y.dims.size(), 1);
  dims[1] = bias.size();
  bias = reshaped(std::move(bias), dims);
  // A kernel may begin the sum with the bias, which then takes part in every rounding of the sum.
  const int64_t inputs = s.transposed ? w.dims[0] / s.groups : w.dims[1];
  const double relative = a.m.of_sum(inputs * count(w.dims.part(2)) + 1) +
                          (fast == Fast::kNone ? 0 : fast_bias_error(a.m));
  // On a GPU the bias may be added to what the convolution stored.
  const Element type = a.result(0).element;
  const bool twice = a.m.gpu && is_half(type);
  return map(
      a.m,
      [&](Estimate p, Estimate q) {
        return a.m.add(twice ? stored(p, type) : p, a.m.more(q, relative));
      },
      y, bias);
}

Expected convolution_backward(const Arguments& a) {
  const Array dy = a.array(0, "grad_output"), x = a.array(1, "input"), w = a.array(2, "weight");
  Shape s = shape_of(a, 4, w.dims);
  const Dims wanted = a.integers(10, "output_mask", {1, 1, 1});
  const auto asked = [&](size_t i) {
    return i < wanted.size() && wanted[i] != 0 && a.has_result(i);
  };
  if (s.transposed) fit(s, dy.dims, x.dims);
  const bool fast = fast_of(a, s, x, w, true) != Fast::kNone;
  Expected out;
  out.results.resize(3);
  if (asked(0)) {
    out.results[0] = s.transposed ? any_forward(a.m, dy, w, s, x.dims)
                                  : any_input_gradient(a.m, dy, w, s, x.dims);
    if (fast) {
      widen(*out.results[0],
            whole_sample_errors(a.m, dy, s.transposed ? w : exchanged(w, s.groups), s.groups));
    }
  }
  if (asked(1)) {
    out.results[1] = s.transposed ? any_kernel_gradient(a.m, dy, x, s, w.dims)
                                  : any_kernel_gradient(a.m, x, dy, s, w.dims);
    if (fast) {
      widen(*out.results[1], s.transposed ? whole_sample_errors_of_weights(a.m, dy, x, s.groups)
                                          : whole_sample_errors_of_weights(a.m, x, dy, s.groups));
    }
  }
  if (asked(2)) {
    Dims others = {0};
    for (int64_t d = 2; d < static_cast<int64_t>(dy.dims.size()); ++d) others.push_back(d);
    out.results[2] = sum(a.m, dy, others);
  }
  return out;
}

constexpr Definition kConvolutionDefinitions[] = {
    {"aten.convolution", convolution},
    {"aten._convolution", convolution},
    {"aten.convolution_overrideable", convolution},
    {"aten.convolution_backward", convolution_backward},
};

}  // namespace

std::span<const Definition> convolution_definitions() { return kConvolutionDefinitions; }

}  // namespace twinrun::aten
