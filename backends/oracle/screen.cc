// Computes an op again with the kernels of backends/kernels, on what the engine read, and compares.
// Dots and convolutions have a checksum instead (screen_dot.h): computing them again costs their
// flops.
#include "backends/oracle/screen.h"

#include <bit>

#include "backends/kernels/arithmetic.h"
#include "backends/kernels/blocks.h"
#include "backends/oracle/screen_internal.h"

namespace twinrun {
namespace screen {
namespace {

constexpr int64_t kChunk = 1024;  // elements whose results stay in L1
constexpr uint64_t kExponent = 0x7FF0000000000000u;

Tensor again(const Call& call, const Op& op, std::span<const Tensor> inputs) {
  const KernelContext context{call.pool, {.flush = call.declared.flush}};
  Tensor out = Tensor::empty(op.type);
  op.kind == OpKind::kAllReduce ? all_reduce_sum(context, inputs, out)
                                : run_kernel(context, op, inputs, out);
  return out;
}
// An elementwise op of one operand whose result is of type `dtype`.
Tensor mapped(const Call& call, OpKind kind, const Tensor& x, DType dtype) {
  Op op;
  op.kind = kind;
  op.type = {dtype, x.dims()};
  return again(call, op, {&x, 1});
}

// Element i of f32 or bf16 numbers.
float number(DType dtype, const std::byte* x, int64_t i) {
  return dtype == DType::kF32 ? reinterpret_cast<const float*>(x)[i]
                              : bf16_to_f32(reinterpret_cast<const uint16_t*>(x)[i]);
}
double number(const Tensor& t, int64_t i) {
  return static_cast<double>(number(t.dtype(), t.raw(), i));
}

// Whether the bits are equal, or both are NaN. With `numbers` zeros of either sign are equal, too,
// and where denormals are flushed so are 0 and 2^-126: processors differ in whether a result that
// rounds to 2^-126 is flushed.
bool same(const Call& call, const std::byte* x, const std::byte* y, int64_t n, bool numbers) {
  const DType dtype = call.output.dtype();
  if (x == y || std::memcmp(x, y, static_cast<size_t>(n) * size_of(dtype)) == 0) return true;
  if (!is_floating(dtype)) return false;
  const auto nearly_zero = [&](float v) {
    return v == 0 || (call.declared.flush && std::fabs(v) == 0x1p-126f);
  };
  for (int64_t i = 0; i < n; ++i) {
    const float a = number(dtype, x, i), b = number(dtype, y, i);
    if (to_bits(a) == to_bits(b) || (a != a && b != b)) continue;
    if (!numbers || !nearly_zero(a) || !nearly_zero(b)) return false;
  }
  return true;
}
bool same(const Call& call, const Tensor& value, bool numbers) {
  return same(call, call.output.raw(), value.raw(), value.elements(), numbers);
}

// Whether x agrees with `value`. NaN must agree with NaN and infinities with equal ones; a value so
// large that binary32 or bf16 may round it to infinity may also be infinite.
bool agrees(double x, double value, double radius) {
  if (x != x || value != value) return x != x && value != value;
  if (x == value) return true;
  if (!finite(x)) return std::fabs(value) >= 0x1.fep127 && (x > 0) == (value > 0);
  return std::fabs(x - value) <= radius;
}

// |x - value| <= relative size + of_value |value| + absolute, where size is the sum of the sizes of
// the terms. It covers the roundings of the engine and those of the kernel.
struct Tolerance {
  double relative = 0, of_value = 0, absolute = 0;
  double most = kMayOverflow;  // the largest size that is screened

  double radius(double value, double size) const {
    return relative * size + of_value * std::fabs(value) + absolute;
  }
};

// ---- elementwise

Tolerance of_function(const Call& call) {
  const bool bf16 = call.output.dtype() == DType::kBF16, flush = call.declared.flush;
  if (call.op.kind == OpKind::kRsqrt) return {.of_value = bf16 ? 0x1.02p-8 : 0x1p-22};
  const bool logistic = call.op.kind == OpKind::kLogistic;
  // An ulp is at most 2^-23 of the number. The kernel rounds correctly, but for the logistic, which
  // rounds three times and is 0 where exp(-x) overflows binary32.
  Tolerance t{.of_value = (call.declared.elementary_ulps + (logistic ? 2 : 1)) * 0x1p-23,
              .absolute = logistic ? 0x1p-125 : 0};
  t.of_value += bf16 ? 0x1.01p-8 : 0;
  t.absolute += (bf16 ? 0x1p-133 : 0x1p-147) + (flush ? kMinNormal : 0);
  return t;
}

// Elements [at, at + n) of exp, rsqrt and the like, whose values in binary32 these are.
bool functions_agree(const Call& call, const float* value, int64_t at, int64_t n) {
  float buffer[kChunk];
  const float* const x = floats(call.output, at, n, buffer, false);
  const Tolerance t = of_function(call);
  const auto relative = static_cast<float>(t.of_value), absolute = static_cast<float>(t.absolute);
  // Without branches, so that it is vectorised: what is left of the tolerance is negative, or an
  // infinity or NaN is among the numbers.
  uint32_t far = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float left = relative * std::fabs(value[i]) + absolute - std::fabs(x[i] - value[i]);
    far |= to_bits(left) >> 31 | ((to_bits(left) & 0x7F800000u) == 0x7F800000u ? 1u : 0u);
  }
  for (int64_t i = 0; far != 0 && i < n; ++i) {
    const auto v = static_cast<double>(value[i]);
    if (!agrees(static_cast<double>(x[i]), v, t.radius(v, 0))) return false;
  }
  return true;
}

// The same of an add or subtract, where an operand may be a product before its rounding: half an
// ulp of it more.
bool contracted_agree(const Call& call, int64_t at, int64_t n) {
  const double of_a = (call.unrounded & 1u) != 0 ? kUnit : 0,
               of_b = (call.unrounded & 2u) != 0 ? kUnit : 0;
  const double sign = call.op.kind == OpKind::kAdd ? 1 : -1;
  const double absolute = call.declared.flush ? 2 * kMinNormal : 0x1p-148;
  const float *const a = call.inputs[0].as<float>().data() + at,
                     *const b = call.inputs[1].as<float>().data() + at,
                     *const x = call.output.as<float>().data() + at;
  const auto value = [=](int64_t i) {
    return static_cast<double>(a[i]) + sign * static_cast<double>(b[i]);
  };
  const auto radius = [=](int64_t i) {
    return of_a * std::fabs(static_cast<double>(a[i])) +
           of_b * std::fabs(static_cast<double>(b[i])) + 1.001 * kUnit * std::fabs(value(i)) +
           absolute;
  };
  uint64_t far = 0;  // as above
  for (int64_t i = 0; i < n; ++i) {
    const auto left =
        std::bit_cast<uint64_t>(radius(i) - std::fabs(static_cast<double>(x[i]) - value(i)));
    far |= left >> 63 | ((left & kExponent) == kExponent ? 1u : 0u);
  }
  for (int64_t i = 0; far != 0 && i < n; ++i) {
    const double v = value(i), r = radius(i);
    // The product may have overflowed only by its rounding.
    if (finite(v) ? r < kMayOverflow && !agrees(static_cast<double>(x[i]), v, r) : finite(x[i]))
      return false;
  }
  return true;
}

bool elementwise(const Call& call) {
  const Op& op = call.op;
  const bool flush = call.declared.flush, function = has_ulps(op.kind);
  // Functions of bf16 are computed in binary32, so that only the engine's result is rounded to it.
  const bool widens = function && call.inputs[0].dtype() == DType::kBF16;
  const DType operand = call.inputs[op.kind == OpKind::kSelect ? 1 : 0].dtype();
  const BlockKernel kernel = block_kernel(op, widens ? DType::kF32 : operand, flush);
  // negate, abs and select move bits.
  const bool numbers = class_of(op.kind) == OpClass::kElementwise;
  return all_ranges(call.pool, call.output.elements(), kRange, [&](int64_t begin, int64_t end) {
    float wide[kChunk];
    alignas(64) std::byte value[kChunk * sizeof(float)];
    for (int64_t at = begin; at < end; at += kChunk) {
      const int64_t n = std::min(kChunk, end - at);
      const auto chunk = [&](const Tensor& t) {
        return t.raw() + static_cast<size_t>(at) * size_of(t.dtype());
      };
      BlockArgs block{.out = value, .n = n};
      for (size_t j = 0; j < call.inputs.size(); ++j) block.in[j] = chunk(call.inputs[j]);
      if (widens) block.in[0] = floats(call.inputs[0], at, n, wide, false);
      {
        const FlushScope scope(flush);
        kernel(block);
      }
      if (!widens && same(call, chunk(call.output), value, n, numbers)) continue;
      const auto* const found = reinterpret_cast<const float*>(value);
      if (function ? !functions_agree(call, found, at, n)
                   : call.unrounded == 0 || !contracted_agree(call, at, n))
        return false;
    }
    return true;
  });
}

// ---- sums and maxima

// The error of a sum whose terms pass through `depth` rounded additions each, in units of the sum
// of their sizes. For short sums it is the worst case, for long ones eight standard deviations of
// independent roundings.
double sum_error(double depth) { return kUnit * std::min(depth, 8 * std::sqrt(depth)); }

bool reduces(OpKind kind) { return kind == OpKind::kReduce || kind == OpKind::kReduceWindow; }

// Of sums of `terms` terms.
Tolerance of_sum(const Call& call, double terms) {
  const bool bf16 = call.output.dtype() == DType::kBF16;
  const bool mean = reduces(call.op.kind) && call.op.attrs.reducer == Reducer::kMean;
  Tolerance t;
  if (call.op.kind == OpKind::kReduce) {
    // Our own engines: 16 lanes in segments of 4096, a tree over the lanes, then the segments.
    const double any = std::max(terms - 1, 0.0);
    const double ours =
        std::min(any, std::ceil(std::min(terms, 4096.0) / 16) + 4 + std::ceil(terms / 4096));
    t.relative = sum_error(ours) + sum_error(call.declared.ours ? ours : any);
  } else if (call.op.kind == OpKind::kAllReduce) {  // each hop rounds to the type
    t.relative = (terms - 1) * (bf16 ? 0x1.1p-8 : 2 * kUnit);
  } else {
    t.relative = 2 * (terms + 1) * kUnit;
  }
  t.of_value = (mean ? 2 * 0x1p-23 : 0) + (bf16 ? 0x1.01p-8 : 0);
  t.absolute = 2 * terms * (call.declared.flush ? kMinNormal : bf16 ? 0x1p-133 : 0x1p-149);
  if (mean) t.most /= terms;
  return t;
}

// One for all sums of the result, or one for each row of it.
std::vector<Tolerance> of_sums(const Call& call) {
  const Op& op = call.op;
  if (op.kind == OpKind::kScatterAdd) {
    std::vector<double> added(static_cast<size_t>(op.type.dims[0]));
    for (const int32_t id : call.inputs[0].as<int32_t>())
      ++added[static_cast<size_t>(std::clamp<int64_t>(id, 0, op.type.dims[0] - 1))];
    std::vector<Tolerance> of_row;
    for (const double terms : added) of_row.push_back(of_sum(call, terms));
    return of_row;
  }
  const auto of_all = [&](double terms) { return std::vector{of_sum(call, terms)}; };
  if (op.kind == OpKind::kAllReduce) return of_all(static_cast<double>(call.inputs.size()));
  if (op.kind == OpKind::kReduce)
    return of_all(static_cast<double>(call.inputs[0].elements() / call.output.elements()));
  return of_all(static_cast<double>(op.attrs.window.size[0] * op.attrs.window.size[1]));
}

bool sums(const Call& call) {
  const Op& op = call.op;
  if (!is_floating(op.type.dtype)) {  // other kinds have no kernel for integers
    const bool adds = op.kind == OpKind::kScatterAdd || op.kind == OpKind::kAllReduce;
    return !adds || op.type.dtype != DType::kI32 || same(call, again(call, op, call.inputs), false);
  }
  Tensor value = again(call, op, call.inputs);
  if (same(call, value, true)) return true;
  if (reduces(op.kind) && op.attrs.reducer == Reducer::kMax) return false;
  // Again without roundings to bf16, and on the sizes of the terms, which are the last operand.
  Op wide = op;
  wide.type.dtype = DType::kF32;
  std::vector<Tensor> terms(call.inputs.begin(), call.inputs.end());
  for (Tensor& t : terms) {
    if (t.dtype() == DType::kBF16) t = mapped(call, OpKind::kConvert, t, DType::kF32);
  }
  if (op.type.dtype == DType::kBF16) value = again(call, wide, terms);
  for (size_t i = op.kind == OpKind::kAllReduce ? 0 : terms.size() - 1; i < terms.size(); ++i)
    terms[i] = mapped(call, OpKind::kAbs, terms[i], DType::kF32);
  const Tensor size = again(call, wide, terms);
  const std::vector<Tolerance> of_row = of_sums(call);
  const int64_t n = value.elements(), width = n / static_cast<int64_t>(of_row.size());
  return all_ranges(call.pool, n, kRange, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Tolerance& t = of_row[static_cast<size_t>(i / width)];
      const double x = number(call.output, i), v = number(value, i);
      const double s = 1.01 * number(size, i);  // it is rounded as well
      // If a term is NaN, the result is NaN or infinite; which one is not known.
      if (s != s && finite(x)) return false;
      if (s < t.most && !agrees(x, v, t.radius(v, s))) return false;
    }
    return true;
  });
}

}  // namespace
}  // namespace screen

bool plausible(const Capabilities& declared, const Op& op, std::span<const Tensor> inputs,
               const Tensor& output, ThreadPool* pool, unsigned unrounded) {
  if (output.elements() == 0 || output.dtype() == DType::kF64) return true;
  for (const Tensor& t : inputs) {
    if (t.dtype() == DType::kF64) return true;
  }
  const screen::Call call{declared, op, inputs, output, pool, unrounded};
  switch (op.kind) {
    case OpKind::kParameter:
      return true;
    case OpKind::kReshape:
      return screen::same(call, inputs[0], false);
    case OpKind::kSelect:
    case OpKind::kNegate:
    case OpKind::kAbs:
      return screen::elementwise(call);
    default:
      break;
  }
  switch (class_of(op.kind)) {
    case OpClass::kElementwise:
      return screen::elementwise(call);
    case OpClass::kDot:
      return screen::worst_row(call) <= 1;
    case OpClass::kReduce:
    case OpClass::kWindow:
    case OpClass::kCollective:
      return screen::sums(call);
    case OpClass::kSource:
    case OpClass::kRandom:
    case OpClass::kMove:
      return screen::same(call, screen::again(call, op, inputs), false);
  }
  return true;
}

}  // namespace twinrun
