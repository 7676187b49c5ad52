// Sources, moves and elementwise ops: per element one rounded operation, or a formula of two or
// three.
#include "backends/oracle/elementary.h"
#include "backends/oracle/internal.h"
#include "backends/oracle/stretches.h"
#include "program/base/philox.h"
#include "program/ops/numbers.h"

namespace twinrun::oracle {
namespace {

// The error of the oracle's own binary64 operation.
double own_error(double value) { return finite(value) ? std::fabs(value) * 0x1p-52 : 0; }

// The bits of a number as one of the other type.
double recast(double x, DType to) {
  if (to == DType::kI32) return as_i32(to_bits(canonical(static_cast<float>(x))));
  return canonical(from_bits(static_cast<uint32_t>(static_cast<int64_t>(x))));
}

// The exact result of convert.
double converted(double x, DType from, DType to, bool flush) {
  switch (to) {
    case DType::kPred:
      return x != 0;
    case DType::kI32:
      if (x != x) return 0;
      return std::trunc(std::clamp(x, -0x1p31, 0x1p31 - 1));
    case DType::kF32:
    case DType::kBF16: {
      float f = static_cast<float>(x);  // exact but for i32, which rounds to nearest even
      if (flush && (from == DType::kF32 || from == DType::kBF16)) f = twinrun::flush(f);
      return to == DType::kBF16 ? bf16_to_f32(bf16_round(f)) : f;
    }
    case DType::kF64:
      break;
  }
  return x;
}

// True if the exact result is a binary32 number, or the midpoint of two: then a correctly rounded
// operation has only one possible result, where a radius of half an ulp would also admit a
// neighbour (ties; the lower neighbour of a power of two). Rounding the binary64 result of + - * /
// sqrt to binary32 gives what binary32 arithmetic gives (53 >= 2 * 24 + 2, Figueroa).
bool no_choice(double value, Storage storage) {
  const auto nearest = static_cast<double>(static_cast<float>(value));
  if (storage.dtype != DType::kF32 || storage.wide || !finite(nearest)) return false;
  if (storage.flush && std::fabs(nearest) <= kMinNormal) return nearest == 0 && value == 0;
  return value == nearest || std::fabs(value - nearest) == kBinary32.half_ulp(value);
}

// One correctly rounded operation.
Estimate rounded_once(double value, Storage storage) {
  if (no_choice(value, storage)) return {static_cast<double>(static_cast<float>(value)), 0};
  return store({value, own_error(value)}, Final::kRounds, storage);
}

// a + b or a - b of an engine that may have used an operand, which is a product, before its
// rounding: it was within half an ulp of the stored operand, or below 2^-126 if it was flushed. If
// the stored product overflowed, the unrounded one may have been any number.
Estimate contracted(double value, double a, double b, unsigned unrounded, Storage storage) {
  double moved = 0;
  for (const double product : {(unrounded & 1u) != 0 ? a : 0.0, (unrounded & 2u) != 0 ? b : 0.0}) {
    if (!finite(product)) return {value, product != product ? 0 : kInfinity};
    const bool flushed = storage.flush && std::fabs(product) <= kMinNormal;
    moved = std::fmax(moved, flushed ? kMinNormal : kBinary32.half_ulp(product));
  }
  return store({value, moved + own_error(value)}, Final::kRounds, storage);
}

// exp, log, tanh, erf or log1p with the declared error, as stored.
Estimate elementary(double value, const Capabilities& declared, Storage storage) {
  if (!finite(value)) return {value, 0};
  const auto nearest = static_cast<double>(static_cast<float>(value));
  if (declared.elementary_ulps <= 0.5 && value == nearest && no_choice(value, storage))
    return {value, 0};
  const double ulps = declared.elementary_ulps * 2 * kBinary32.half_ulp(value);
  return store({value, ulps + std::fabs(value) * kElementaryError}, Final::kIncluded, storage);
}

// 1 / sqrt(x): the relative error of the root carries over to the quotient, which rounds again.
Estimate rsqrt(double x, Storage storage) {
  const double value = 1 / std::sqrt(x);
  return store({value, finite(value) ? std::fabs(value) * (kUnit + 0x1p-46) : 0}, Final::kRounds,
               storage);
}

// 1 / (1 + exp(-x)), node by node. If exp(-x) may overflow, the engine's result may be 0.
Estimate logistic(double x, const Capabilities& declared, Storage storage) {
  const double e = exponential(-x);
  const double value = 1 / (1 + e);
  if (!finite(e)) return store({e != e ? e : 0.0, 0}, Final::kRounds, storage);
  const Storage f32{DType::kF32, storage.flush};
  const Estimate exp_node = elementary(e, declared, f32);
  double before;
  if (!finite(exp_node.value) || !finite(exp_node.radius)) {
    before = value;
  } else {
    const double d = 1 + e;
    const double d_error = exp_node.radius + kBinary32.half_ulp(d + exp_node.radius) + d * 0x1p-52;
    before = d - d_error > 0 ? d_error / (d * (d - d_error)) : kInfinity;
  }
  return store({value, before + own_error(value) * 2}, Final::kRounds, storage);
}

Estimate float_node(const Call& call, int64_t i) {
  const Storage storage = call.storage();
  const double a = operand(call, 0, i);
  auto once = [&](double value) { return rounded_once(value, storage); };
  auto declared = [&](double value) { return elementary(value, call.declared, storage); };
  switch (call.op.kind) {
    case OpKind::kAdd:
    case OpKind::kSubtract: {
      const double b = operand(call, 1, i), value = call.op.kind == OpKind::kAdd ? a + b : a - b;
      if (call.unrounded != 0) return contracted(value, a, b, call.unrounded, storage);
      return once(value);
    }
    case OpKind::kMultiply:
      return once(a * operand(call, 1, i));
    case OpKind::kDivide:
      return once(a / operand(call, 1, i));
    case OpKind::kMaximum:
      return {larger(a, operand(call, 1, i)), 0};
    case OpKind::kMinimum:
      return {-larger(-a, -operand(call, 1, i)), 0};
    case OpKind::kSqrt:
      return once(std::sqrt(a));
    case OpKind::kRsqrt:
      return rsqrt(a, storage);
    case OpKind::kExponential:
      return declared(exponential(a));
    case OpKind::kLog:
      return declared(logarithm(a));
    case OpKind::kTanh:
      return declared(hyperbolic_tangent(a));
    case OpKind::kErf:
      return declared(error_function(a));
    case OpKind::kLog1p:
      return declared(logarithm_of_1_plus(a));
    case OpKind::kSine:
      return declared(sine(a));
    case OpKind::kCosine:
      return declared(cosine(a));
    case OpKind::kLogistic:
      return logistic(a, call.declared, storage);
    default:
      return {0, kInfinity};
  }
}

double integer_node(const Call& call, int64_t i) {
  const auto a = static_cast<int64_t>(number_at(call.inputs[0], i));
  const auto b = call.inputs.size() > 1 ? static_cast<int64_t>(number_at(call.inputs[1], i)) : 0;
  return whole_number(call.op.kind, a, b);
}

// Broadcast and transpose as runs along the last dimension that make up [begin, end). Calls f(i,
// at, count, step): elements i, i + 1, .. i + count - 1 of the result come from elements at, at +
// step, .. of the operand.
template <typename F>
void for_each_run(const Op& op, const Dims& from, int64_t begin, int64_t end, F f) {
  const Dims& dims = op.type.dims;
  if (dims.empty()) return f(begin, int64_t{0}, end - begin, int64_t{0});
  std::vector<int64_t> stride(from.size(), 1), step(dims.size(), 0), index(dims.size(), 0);
  for (size_t d = from.size(); d-- > 1;) stride[d - 1] = stride[d] * from[d];
  if (op.kind == OpKind::kTranspose) {
    for (size_t d = 0; d < dims.size(); ++d)
      step[d] = stride[static_cast<size_t>(op.attrs.dims[d])];
  } else {
    for (size_t d = 0; d < from.size(); ++d) {
      if (from[d] != 1) step[static_cast<size_t>(op.attrs.dims[d])] = stride[d];
    }
  }
  int64_t at = 0, rest = begin;
  for (size_t d = dims.size(); d-- > 0;) {
    index[d] = rest % dims[d];
    at += index[d] * step[d];
    rest /= dims[d];
  }
  const size_t last = dims.size() - 1;
  for (int64_t i = begin; i < end;) {
    const int64_t count = std::min(end - i, dims[last] - index[last]);
    f(i, at, count, step[last]);
    i += count;
    at -= index[last] * step[last];
    index[last] = 0;
    for (size_t d = last; d-- > 0;) {  // advance the index of the outer dimensions
      at += step[d];
      if (++index[d] < dims[d]) break;
      at -= step[d] * dims[d];
      index[d] = 0;
    }
  }
}

double random_element(const Call& call, int64_t i) {
  const auto samples = static_cast<int64_t>(call.inputs[1].elements());
  const int64_t per_sample = call.op.type.elements() / samples;
  const RandomKey key{call.op.attrs.seed, kStreamOps + call.op.attrs.stream};
  const auto step = static_cast<uint32_t>(call.inputs[0].as<int32_t>()[0]);
  const auto sample =
      static_cast<uint32_t>(call.inputs[1].as<int32_t>()[static_cast<size_t>(i / per_sample)]);
  return uniform(draw(key, step, sample, static_cast<uint64_t>(i % per_sample)));
}

template <typename F>
void each(int64_t begin, int64_t end, F f) {
  for (int64_t i = begin; i < end; ++i) f(i);
}

void eval_source(const Call& call, int64_t begin, int64_t end) {
  const Op& op = call.op;
  if (op.kind == OpKind::kIota) {
    int64_t inner = 1;
    const auto axis = static_cast<size_t>(op.attrs.dims[0]);
    for (size_t d = axis + 1; d < op.type.dims.size(); ++d) inner *= op.type.dims[d];
    const int64_t size = op.type.dims[axis];
    each(begin, end, [&](int64_t i) {
      call.set(
          i,
          {converted(static_cast<double>(i / inner % size), DType::kI32, op.type.dtype, false), 0});
    });
    return;
  }
  const double constant = converted(op.attrs.value, DType::kF64, op.type.dtype, false);
  each(begin, end, [&](int64_t i) {
    call.set(i, {op.kind == OpKind::kConstant ? constant : random_element(call, i), 0});
  });
}

template <typename T>
void select_typed(const Call& call, int64_t begin, int64_t end) {
  const uint8_t* mask = call.inputs[0].as<uint8_t>().data() + begin;
  const T *yes = call.inputs[1].as<T>().data() + begin, *no = call.inputs[2].as<T>().data() + begin;
  double* const value = call.value(begin);
  for (int64_t i = 0; i < end - begin; ++i)
    value[i] = static_cast<double>(mask[i] != 0 ? yes[i] : no[i]);
  call.exact(begin, end);
}
// A fast path of select for its common types: both sides binary32, or both binary64.
bool select_run(const Call& call, int64_t begin, int64_t end) {
  const DType dtype = call.inputs[1].dtype();
  if (call.inputs[0].dtype() != DType::kPred || call.inputs[2].dtype() != dtype) return false;
  if (dtype != DType::kF32 && dtype != DType::kF64) return false;
  dtype == DType::kF32 ? select_typed<float>(call, begin, end)
                       : select_typed<double>(call, begin, end);
  return true;
}

void eval_move(const Call& call, int64_t begin, int64_t end) {
  const Op& op = call.op;
  const Tensor& x = call.inputs[0];
  switch (op.kind) {
    case OpKind::kBroadcastInDim:
    case OpKind::kTranspose:
      for_each_run(op, x.dims(), begin, end,
                   [&](int64_t i, int64_t at, int64_t count, int64_t step) {
                     elements(x, at, count, call.value(i), step);
                   });
      call.exact(begin, end);
      return;
    case OpKind::kConcatenate:
    case OpKind::kSlice:
    case OpKind::kPad:
    case OpKind::kGather:
      for_each_stretch(
          op, call.inputs, begin, end, [&](int64_t i, int which, int64_t at, int64_t count) {
            if (which < 0) return void(std::fill_n(call.value(i), count, 0.0));
            elements(call.inputs[static_cast<size_t>(which)], at, count, call.value(i));
          });
      call.exact(begin, end);
      return;
    case OpKind::kReshape:
      elements(x, begin, end - begin, call.value(begin));
      call.exact(begin, end);
      return;
    case OpKind::kSelect:
      if (select_run(call, begin, end)) return;
      each(begin, end, [&](int64_t i) {
        call.set(i, {number_at(call.inputs[number_at(x, i) != 0 ? 1 : 2], i), 0});
      });
      return;
    default:  // negate, abs
      each(begin, end, [&](int64_t i) {
        const double a = number_at(x, i);
        if (op.type.dtype == DType::kI32) return call.set(i, {integer_node(call, i), 0});
        call.set(i, {op.kind == OpKind::kAbs ? std::fabs(a) : -a, 0});
      });
  }
}

void eval_elementwise(const Call& call, int64_t begin, int64_t end) {
  const Op& op = call.op;
  if (op.kind == OpKind::kConvert) {
    const DType from = call.inputs[0].dtype();
    each(begin, end, [&](int64_t i) {
      call.set(
          i,
          {converted(number_at(call.inputs[0], i), from, op.type.dtype, call.declared.flush), 0});
    });
  } else if (op.kind == OpKind::kBitcastConvert) {
    each(begin, end, [&](int64_t i) {
      call.set(i, {recast(number_at(call.inputs[0], i), op.type.dtype), 0});
    });
  } else if (op.kind == OpKind::kCompare) {
    const bool floats = call.inputs[0].dtype() != DType::kI32;
    each(begin, end, [&](int64_t i) {
      const double a = floats ? operand(call, 0, i) : number_at(call.inputs[0], i);
      const double b = floats ? operand(call, 1, i) : number_at(call.inputs[1], i);
      call.set(i, {holds(op.attrs.compare, a, b) ? 1.0 : 0.0, 0});
    });
  } else if (op.type.dtype == DType::kI32) {
    each(begin, end, [&](int64_t i) { call.set(i, {integer_node(call, i), 0}); });
  } else {
    each(begin, end, [&](int64_t i) { call.set(i, float_node(call, i)); });
  }
}

}  // namespace

void eval_sort_order(const Call& call) {
  const int32_t* x = call.inputs[0].as<int32_t>().data();
  const int64_t width = call.op.type.dims.back();
  for (int64_t row = 0; row < call.op.type.elements(); row += width) {
    std::vector<std::pair<int32_t, int64_t>> keys;  // equal keys are ordered by their position
    for (int64_t i = 0; i < width; ++i) keys.emplace_back(x[row + i], i);
    std::ranges::sort(keys);
    for (int64_t i = 0; i < width; ++i)
      call.set(row + i, {static_cast<double>(keys[static_cast<size_t>(i)].second), 0});
  }
}

void eval_pointwise(const Call& call, int64_t begin, int64_t end) {
  switch (class_of(call.op.kind)) {
    case OpClass::kSource:
    case OpClass::kRandom:
      return eval_source(call, begin, end);
    case OpClass::kMove:
      return eval_move(call, begin, end);
    default:
      for (int64_t i = begin; i < end; i += kVectorStretch) {
        const int64_t stop = std::min(end, i + kVectorStretch);
        if (call.unrounded != 0 || !eval_vectors(call, i, stop)) eval_elementwise(call, i, stop);
      }
  }
}

}  // namespace twinrun::oracle
