// The second interpreter: sources, moves, elementwise ops, all-reduce, and the dispatch over all op
// kinds. Dots are in dots.cc, reductions and pooling in reductions.cc.
#include "tests/reference/interpreter.h"

#include "program/base/philox.h"
#include "tests/reference/correctly_rounded.h"
#include "tests/reference/pieces.h"

namespace twinrun {
namespace {

using namespace reference;

[[noreturn]] void unsupported(const Op& op) {
  throw std::logic_error("reference_op: " + std::string(name_of(op.kind)) + " of " +
                         to_string(op.type));
}

// ---- elementary functions

float by_mpfr(float x, bool flush, CorrectlyRounded::Function function) {
  const CorrectlyRounded truth(function);
  return flush ? truth.flushed(x) : truth(x);
}

// ---- sources and moves

Tensor constant(const Op& op) {
  Tensor t = Tensor::empty(op.type);
  for (size_t i = 0; i < static_cast<size_t>(t.elements()); ++i) {
    switch (op.type.dtype) {
      case DType::kF32:
        t.as<float>()[i] = canonical(static_cast<float>(op.attrs.value));
        break;
      case DType::kBF16:
        t.as<uint16_t>()[i] = bf16_round(static_cast<float>(op.attrs.value));
        break;
      case DType::kI32:
        t.as<int32_t>()[i] = static_cast<int32_t>(op.attrs.value);
        break;
      case DType::kPred:
        t.as<uint8_t>()[i] = op.attrs.value != 0;
        break;
      default:
        unsupported(op);
    }
  }
  return t;
}

Tensor iota(const Op& op) {
  Tensor t = Tensor::empty(op.type);
  for (int64_t i = 0; i < t.elements(); ++i) {
    const int64_t at = unflatten(i, op.type.dims)[static_cast<size_t>(op.attrs.dims[0])];
    if (op.type.dtype == DType::kI32) {
      t.as<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(at);
    } else {
      t.as<float>()[static_cast<size_t>(i)] = static_cast<float>(at);
    }
  }
  return t;
}

Tensor rng_uniform(const Op& op, const Tensor& step, const Tensor& samples) {
  Tensor t = Tensor::empty(op.type);
  const int64_t per_sample = op.type.elements() / samples.elements();
  for (int64_t i = 0; i < t.elements(); ++i) {
    const auto sample =
        static_cast<uint32_t>(samples.as<int32_t>()[static_cast<size_t>(i / per_sample)]);
    const uint32_t u = draw({op.attrs.seed, kStreamOps + op.attrs.stream},
                            static_cast<uint32_t>(step.as<int32_t>()[0]), sample,
                            static_cast<uint64_t>(i % per_sample));
    t.as<float>()[static_cast<size_t>(i)] = uniform(u);
  }
  return t;
}

void copy_element(const Tensor& from, int64_t i, Tensor& to, int64_t j) {
  const size_t size = size_of(from.dtype());
  std::copy_n(from.raw() + static_cast<size_t>(i) * size, size,
              to.raw() + static_cast<size_t>(j) * size);
}

Tensor move(const Op& op, std::span<const Tensor> inputs) {
  Tensor t = Tensor::empty(op.type);
  const Tensor& x = inputs[0];
  for (int64_t i = 0; i < t.elements(); ++i) {
    const auto index = unflatten(i, op.type.dims);
    std::vector<int64_t> from(x.dims().size());
    switch (op.kind) {
      case OpKind::kBroadcastInDim:
        for (size_t d = 0; d < from.size(); ++d) {
          from[d] = x.dims()[d] == 1 ? 0 : index[static_cast<size_t>(op.attrs.dims[d])];
        }
        copy_element(x, flatten(from, x.dims()), t, i);
        break;
      case OpKind::kTranspose:
        for (size_t d = 0; d < from.size(); ++d)
          from[static_cast<size_t>(op.attrs.dims[d])] = index[d];
        copy_element(x, flatten(from, x.dims()), t, i);
        break;
      case OpKind::kReshape:
        copy_element(x, i, t, i);
        break;
      default:
        copy_element(inputs[x.as<uint8_t>()[static_cast<size_t>(i)] != 0 ? 1 : 2], i, t, i);
    }
  }
  return t;
}

// concatenate, slice, pad and gather, element by element.
Tensor rearrange(const Op& op, std::span<const Tensor> inputs) {
  Tensor t = Tensor::zeros(op.type);
  const Tensor& x = inputs[0];
  for (int64_t i = 0; i < t.elements(); ++i) {
    auto index = unflatten(i, op.type.dims);
    if (op.kind == OpKind::kGather) {
      const auto ids = static_cast<std::ptrdiff_t>(inputs[1].dims().size());
      int64_t row = inputs[1].as<int32_t>()[static_cast<size_t>(
          flatten({index.begin(), index.begin() + ids}, inputs[1].dims()))];
      if (row < 0) row = 0;
      if (row >= x.dims()[0]) row = x.dims()[0] - 1;
      std::vector<int64_t> from(index.begin() + ids, index.end());
      from.insert(from.begin(), row);
      copy_element(x, flatten(from, x.dims()), t, i);
      continue;
    }
    const auto axis = static_cast<size_t>(op.attrs.dims[0]);
    int64_t& at = index[axis];
    const int64_t size = x.dims()[axis];
    if (op.kind == OpKind::kSlice) at += op.attrs.dims[1];
    if (op.kind == OpKind::kPad) {
      at -= op.attrs.dims[1];
      if (at < 0 || at >= size) continue;
    }
    if (op.kind == OpKind::kConcatenate && at >= size) {
      at -= size;
      copy_element(inputs[1], flatten(index, inputs[1].dims()), t, i);
    } else {
      copy_element(x, flatten(index, x.dims()), t, i);
    }
  }
  return t;
}

// ---- elementwise

template <typename T>
bool holds(CompareKind kind, T a, T b) {
  switch (kind) {
    case CompareKind::kEq:
      return a == b;
    case CompareKind::kNe:
      return a != b;
    case CompareKind::kLt:
      return a < b;
    case CompareKind::kLe:
      return a <= b;
    case CompareKind::kGt:
      return a > b;
    case CompareKind::kGe:
      return a >= b;
  }
  return false;
}

Tensor compare(const Op& op, const Tensor& a, const Tensor& b, const Scalar& s) {
  Tensor t = Tensor::empty(op.type);
  auto out = t.as<uint8_t>();
  if (a.dtype() == DType::kI32) {
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = holds(op.attrs.compare, a.as<int32_t>()[i], b.as<int32_t>()[i]);
  } else {
    const Floats x = load(a), y = load(b);
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = holds(op.attrs.compare, s.in(x[i]), s.in(y[i]));
  }
  return t;
}

int32_t to_i32(float x) {
  if (x != x) return 0;
  if (x >= 0x1p31f) return INT32_MAX;
  if (x <= -0x1p31f) return INT32_MIN;
  return static_cast<int32_t>(x);
}

Tensor convert(const Op& op, const Tensor& x, const Scalar& s) {
  const auto n = static_cast<size_t>(x.elements());
  Floats values(n);
  for (size_t i = 0; i < n; ++i) {
    switch (x.dtype()) {
      case DType::kI32:
        values[i] = static_cast<float>(x.as<int32_t>()[i]);
        break;
      case DType::kPred:
        values[i] = x.as<uint8_t>()[i] != 0 ? 1.0f : 0.0f;
        break;
      case DType::kF32:
        values[i] = s.in(x.as<float>()[i]);
        break;
      case DType::kBF16:
        values[i] = s.in(bf16_to_f32(x.as<uint16_t>()[i]));
        break;
      default:
        unsupported(op);
    }
  }
  if (op.type.dtype != DType::kI32) return save(values, op.type);
  Tensor t = Tensor::empty(op.type);
  for (size_t i = 0; i < n; ++i) t.as<int32_t>()[i] = to_i32(values[i]);
  return t;
}

Tensor integers(const Op& op, std::span<const Tensor> inputs) {
  Tensor t = Tensor::empty(op.type);
  for (size_t i = 0; i < static_cast<size_t>(t.elements()); ++i) {
    const int64_t a = inputs[0].as<int32_t>()[i];
    const int64_t b = inputs.size() > 1 ? inputs[1].as<int32_t>()[i] : 0;
    int64_t r = 0;
    switch (op.kind) {
      case OpKind::kAdd:
        r = a + b;
        break;
      case OpKind::kSubtract:
        r = a - b;
        break;
      case OpKind::kMultiply:
        r = a * b;
        break;
      case OpKind::kDivide:
        r = b == 0 ? -1 : a / b;
        break;
      case OpKind::kRemainder:
        r = b == 0 ? a : a - a / b * b;
        break;
      case OpKind::kAnd:
      case OpKind::kOr:
      case OpKind::kXor:
        for (int bit = 0; bit < 32; ++bit) {
          const int64_t p = a >> bit & 1, q = b >> bit & 1;
          const bool set = op.kind == OpKind::kAnd  ? p * q == 1
                           : op.kind == OpKind::kOr ? p + q > 0
                                                    : p != q;
          if (set) r += int64_t{1} << bit;
        }
        break;
      case OpKind::kShiftLeft:
        r = b < 0 || b > 31 ? 0 : a << b;
        break;
      case OpKind::kShiftRightLogical:
        r = b < 0 || b > 31 ? 0 : (a & 0xFFFFFFFF) / (int64_t{1} << b);
        break;
      case OpKind::kShiftRightArithmetic:
        r = b < 0 || b > 31 ? (a < 0 ? -1 : 0) : a >> b;
        break;
      case OpKind::kMaximum:
        r = a > b ? a : b;
        break;
      case OpKind::kMinimum:
        r = a < b ? a : b;
        break;
      case OpKind::kNegate:
        r = -a;
        break;
      case OpKind::kAbs:
        r = a < 0 ? -a : a;
        break;
      default:
        unsupported(op);
    }
    t.as<int32_t>()[i] = static_cast<int32_t>(static_cast<uint32_t>(static_cast<uint64_t>(r)));
  }
  return t;
}

Tensor bitcast(const Op& op, const Tensor& x) {
  Tensor t = Tensor::empty(op.type);
  for (int64_t i = 0; i < t.elements(); ++i) {
    copy_element(x, i, t, i);
    const float number = x.as<float>()[static_cast<size_t>(i)];
    if (number != number) t.as<uint32_t>()[static_cast<size_t>(i)] = kCanonicalNaN;
  }
  return t;
}

// The position of an element is the number of those that come before it.
Tensor sort_order(const Op& op, const Tensor& x) {
  Tensor t = Tensor::empty(op.type);
  const auto from = x.as<int32_t>();
  const auto width = static_cast<size_t>(op.type.dims.back());
  for (size_t row = 0; row < from.size(); row += width) {
    for (size_t i = 0; i < width; ++i) {
      size_t before = 0;
      for (size_t j = 0; j < width; ++j) {
        if (from[row + j] < from[row + i] || (from[row + j] == from[row + i] && j < i)) ++before;
      }
      t.as<int32_t>()[row + before] = static_cast<int32_t>(i);
    }
  }
  return t;
}

float node(const Op& op, float a, float b, const Scalar& s) {
  switch (op.kind) {
    case OpKind::kNegate:
      return from_bits(to_bits(a) ^ 0x80000000u);
    case OpKind::kAbs:
      return from_bits(to_bits(a) & 0x7FFFFFFFu);
    case OpKind::kAdd:
      return s.add(a, b);
    case OpKind::kSubtract:
      return s.sub(a, b);
    case OpKind::kMultiply:
      return s.mul(a, b);
    case OpKind::kDivide:
      return s.div(a, b);
    case OpKind::kMaximum:
      return maximum(s.in(a), s.in(b));
    case OpKind::kMinimum:
      return -maximum(-s.in(a), -s.in(b));
    case OpKind::kSqrt:
      return s.sqrt(a);
    case OpKind::kRsqrt:
      return s.div(1.0f, s.sqrt(a));
    case OpKind::kExponential:
      return reference_exp(a, s.flush);
    case OpKind::kLog:
      return reference_log(a, s.flush);
    case OpKind::kTanh:
      return reference_tanh(a, s.flush);
    case OpKind::kErf:
      return reference_erf(a, s.flush);
    case OpKind::kLog1p:
      return reference_log1p(a, s.flush);
    case OpKind::kSine:
      return reference_sin(a, s.flush);
    case OpKind::kCosine:
      return reference_cos(a, s.flush);
    case OpKind::kLogistic:
      return s.div(1.0f, s.add(1.0f, reference_exp(-a, s.flush)));
    default:
      unsupported(op);
  }
}

Tensor elementwise(const Op& op, std::span<const Tensor> inputs, const Scalar& s) {
  if (op.type.dtype == DType::kI32) return integers(op, inputs);
  const Floats a = load(inputs[0]);
  const Floats b = inputs.size() > 1 ? load(inputs[1]) : a;
  Floats out(a.size());
  for (size_t i = 0; i < a.size(); ++i) out[i] = node(op, a[i], b[i], s);
  return save(out, op.type);
}

}  // namespace

float reference_exp(float x, bool flush) { return by_mpfr(x, flush, mpfr_exp); }
float reference_log(float x, bool flush) { return by_mpfr(x, flush, mpfr_log); }
float reference_tanh(float x, bool flush) { return by_mpfr(x, flush, mpfr_tanh); }
float reference_erf(float x, bool flush) { return by_mpfr(x, flush, mpfr_erf); }
float reference_log1p(float x, bool flush) { return by_mpfr(x, flush, mpfr_log1p); }
float reference_sin(float x, bool flush) { return by_mpfr(x, flush, mpfr_sin); }
float reference_cos(float x, bool flush) { return by_mpfr(x, flush, mpfr_cos); }

Tensor reference_op(const Op& op, std::span<const Tensor> inputs, ReferenceArithmetic arithmetic) {
  const Scalar s{arithmetic.flush};
  switch (op.kind) {
    case OpKind::kConstant:
      return constant(op);
    case OpKind::kIota:
      return iota(op);
    case OpKind::kBroadcastInDim:
    case OpKind::kReshape:
    case OpKind::kTranspose:
    case OpKind::kSelect:
      return move(op, inputs);
    case OpKind::kConcatenate:
    case OpKind::kSlice:
    case OpKind::kPad:
    case OpKind::kGather:
      return rearrange(op, inputs);
    case OpKind::kScatterAdd:
      return scatter_add(op, inputs[0], inputs[1], s);
    case OpKind::kConvert:
      return convert(op, inputs[0], s);
    case OpKind::kCompare:
      return compare(op, inputs[0], inputs[1], s);
    case OpKind::kBitcastConvert:
      return bitcast(op, inputs[0]);
    case OpKind::kSortOrder:
      return sort_order(op, inputs[0]);
    case OpKind::kDotGeneral:
      return dot_general(op, inputs[0], inputs[1], arithmetic);
    case OpKind::kConvolution:
      return convolution(op, inputs[0], inputs[1], arithmetic);
    case OpKind::kConvolutionInputGrad:
      return convolution_input_grad(op, inputs[0], inputs[1], arithmetic);
    case OpKind::kConvolutionKernelGrad:
      return convolution_kernel_grad(op, inputs[0], inputs[1], arithmetic);
    case OpKind::kReduce:
      return reduce(op, inputs[0], s);
    case OpKind::kReduceWindow:
      return reduce_window(op, inputs[0], s);
    case OpKind::kSelectAndScatter:
      return select_and_scatter(op, inputs[0], inputs[1], s);
    case OpKind::kAvgPoolGrad:
      return avg_pool_grad(op, inputs[0], s);
    case OpKind::kRngUniform:
      return rng_uniform(op, inputs[0], inputs[1]);
    case OpKind::kParameter:
    case OpKind::kAllReduce:
      unsupported(op);
    default:
      return elementwise(op, inputs, s);
  }
}

Tensor reference_all_reduce(std::span<const Tensor> contributions, ReferenceArithmetic arithmetic) {
  const Scalar s{arithmetic.flush};
  const TensorType type = contributions[0].type();
  const auto n = static_cast<int64_t>(contributions.size());
  const int64_t length = contributions[0].elements();
  if (type.dtype == DType::kI32) {
    Tensor sum = Tensor::zeros(type);
    for (const Tensor& t : contributions) {
      for (size_t i = 0; i < sum.as<uint32_t>().size(); ++i)
        sum.as<uint32_t>()[i] += t.as<const uint32_t>()[i];
    }
    return sum;
  }
  std::vector<Floats> x;
  for (const Tensor& t : contributions) x.push_back(load(t));
  auto hop = [&](float v) { return type.dtype == DType::kBF16 ? bf16_to_f32(bf16_round(v)) : v; };
  Floats out(static_cast<size_t>(length));
  for (int64_t c = 0; c < n; ++c) {
    for (int64_t i = c * length / n; i < (c + 1) * length / n; ++i) {
      const auto u = static_cast<size_t>(i);
      float sum = x[static_cast<size_t>((c + 1) % n)][u];
      for (int64_t j = 2; j <= n; ++j)
        sum = hop(s.add(sum, x[static_cast<size_t>((c + j) % n)][u]));
      out[u] = sum;
    }
  }
  return save(out, type);
}

}  // namespace twinrun
