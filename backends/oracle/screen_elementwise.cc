// The screen of elementwise ops: recomputes chunks of 1024 elements in binary32 (ops with one
// rounding, whose results must be equal) or in binary64 (exp, log, tanh, erf, log1p, logistic, with
// polynomials whose error is below 2^-30).
#include "backends/kernels/intrinsics.h"
#include "backends/oracle/elementary.h"
#include "backends/oracle/screen_internal.h"

namespace twinrun::screen {
namespace {

double one(D4 x) { return _mm256_cvtsd_f64(x.v); }
double log_edge(double x) {
  return x > 0 && x < kInfinity ? one(log_of(x))
         : x == 0               ? -kInfinity
         : x > 0                ? x
                                : std::numeric_limits<double>::quiet_NaN();
}

double log1p_edge(double x) {
  return x > -1 && x < kInfinity ? one(log1p_of(x))
         : x == -1               ? -kInfinity
         : x > -1                ? x
                                 : std::numeric_limits<double>::quiet_NaN();
}

// ---- one rounding

// Whether the output elements [begin, begin + n) are `expected`, the results of one rounded
// operation.
bool holds(const Call& call, int64_t begin, float* expected, int64_t n) {
  if (call.output.dtype() == DType::kF32) {
    const float* x = call.output.as<float>().data() + begin;
    if (same_bytes(x, expected, static_cast<size_t>(n) * 4)) return true;
  }
  float buffer[kChunk];
  const float* x = floats(call.output, begin, n, buffer, false);
  const bool narrow = call.output.dtype() == DType::kBF16, flushes = call.declared.flush;
  if (narrow) {
    int64_t differ = 0;
    const uint16_t* bits = call.output.as<uint16_t>().data() + begin;
    for (int64_t i = 0; i < n; ++i) differ |= bits[i] != bf16_round(expected[i]) ? 1 : 0;
    if (differ == 0) return true;
  }
  for (int64_t i = 0; i < n; ++i) {
    const float e = expected[i];
    if (x[i] != x[i] || e != e) {
      if (x[i] == x[i] || e == e) return false;
      continue;
    }
    const float want = narrow    ? bf16_to_f32(bf16_round(flushes ? flush(e) : e))
                       : flushes ? flush(e)
                                 : e;
    // A result of 2^-126 may have been rounded up from a number that an engine flushes.
    if (x[i] != want && !(flushes && std::fabs(e) <= 0x1p-126f && x[i] == 0)) return false;
  }
  return true;
}

template <typename F>
bool rounded_once(const Call& call, F f) {
  const bool binary = call.inputs.size() > 1;
  return all_ranges(call.pool, call.output.elements(), kRange, [&](int64_t begin, int64_t end) {
    float buffer_a[kChunk], buffer_b[kChunk], e[kChunk];
    for (int64_t at = begin; at < end; at += kChunk) {
      const int64_t n = std::min(kChunk, end - at);
      const float* a = floats(call.inputs[0], at, n, buffer_a, call.declared.flush);
      const float* b = binary ? floats(call.inputs[1], at, n, buffer_b, call.declared.flush) : a;
      f(a, b, e, n);
      if (!holds(call, at, e, n)) return false;
    }
    return true;
  });
}

// a + b (sign = 1) or a - b (sign = -1), where an operand may be a product before its rounding:
// that widens the tolerance by half an ulp of it.
bool contracted(const Call& call, double sign) {
  const double of_a = (call.unrounded & 1u) != 0 ? kUnit : 0,
               of_b = (call.unrounded & 2u) != 0 ? kUnit : 0;
  const double absolute = call.declared.flush ? 2 * kMinNormal : 0x1p-148;
  return all_ranges(call.pool, call.output.elements(), kRange, [&](int64_t begin, int64_t end) {
    const float *x = call.output.as<float>().data(), *a = call.inputs[0].as<float>().data(),
                *b = call.inputs[1].as<float>().data();
    double value[kChunk], radius[kChunk];
    for (int64_t at = begin; at < end; at += kChunk) {
      const int64_t n = std::min(kChunk, end - at);
      for (int64_t i = 0; i < n; ++i) {
        const auto p = static_cast<double>(a[at + i]), q = static_cast<double>(b[at + i]);
        value[i] = p + sign * q;
        radius[i] = of_a * std::fabs(p) + of_b * std::fabs(q) +
                    1.001 * kUnit * std::fabs(value[i]) + absolute;
      }
      if (!within(x + at, value, radius, n)) return false;
    }
    return true;
  });
}

// Compares x, one chunk of the results on a, with f, which maps four numbers at once. edge(number)
// gives the right result where f may be wrong: at infinities, NaN, and outside the domain.
template <typename F, typename E>
bool recomputed(const Capabilities& declared, DType dtype, const float* a, const float* x,
                int64_t n, double ulps, double absolute, F f, E edge) {
  const bool narrow = dtype == DType::kBF16;
  // An ulp is at most 2^-23 of the number; the polynomials have errors below 2^-30.
  const double relative = ulps * 0x1p-23 + 0x1p-29 + (narrow ? 0x1.01p-8 : 0);
  absolute += narrow ? 0x1p-133 : 0x1p-147;
  if (declared.flush) absolute += kMinNormal;
  double value[kChunk];
  map(a, value, n, f);
  return close(x, value, n, relative, absolute,
               [&](int64_t i) { return edge(static_cast<double>(a[i])); });
}

// Two roundings of 2^-24 each; 1 / 0 and 1 / infinity are exact.
bool rsqrt_agrees(DType dtype, const float* a, const float* x, int64_t n) {
  float value[kChunk];
  const float relative = dtype == DType::kBF16 ? 0x1.02p-8f : 0x1p-22f;
  square_roots(a, value, n);
  for (int64_t i = 0; i < n; ++i) value[i] = 1.0f / value[i];
  int32_t far = 0;
  for (int64_t i = 0; i < n; ++i) {
    // Without branches: too far if the excess is negative (its sign bit) or NaN, unless the bits are
    // equal.
    const float excess = relative * value[i] - std::fabs(x[i] - value[i]);
    far |= static_cast<int32_t>(to_bits(excess)) &
           static_cast<int32_t>(to_bits(x[i]) == to_bits(value[i]) ? 0 : -1);
    far |= excess == excess ? 0 : to_bits(x[i]) == to_bits(value[i]) ? 0 : -1;
  }
  if (far >= 0) return true;
  for (int64_t i = 0; i < n; ++i) {
    const double v = value[i];
    if (!agrees(x[i], v, relative * std::fabs(v))) return false;
  }
  return true;
}

template <typename F>
bool integers(const Call& call, F f) {
  const int32_t* a = call.inputs[0].as<int32_t>().data();
  const int32_t* b = call.inputs.back().as<int32_t>().data();
  const int32_t* x = call.output.as<int32_t>().data();
  return all_ranges(call.pool, call.output.elements(), kRange, [&](int64_t begin, int64_t end) {
    uint32_t differ = 0;
    for (int64_t i = begin; i < end; ++i) {
      differ |=
          static_cast<uint32_t>(x[i]) ^ f(static_cast<uint32_t>(a[i]), static_cast<uint32_t>(b[i]));
    }
    return differ == 0;
  });
}

bool integer_op(const Call& call) {
  auto as_signed = [](uint32_t x) { return static_cast<int32_t>(x); };
  switch (call.op.kind) {
    case OpKind::kAdd:
      return integers(call, [](uint32_t a, uint32_t b) { return a + b; });
    case OpKind::kSubtract:
      return integers(call, [](uint32_t a, uint32_t b) { return a - b; });
    case OpKind::kMultiply:
      return integers(call, [](uint32_t a, uint32_t b) { return a * b; });
    case OpKind::kDivide:
      return integers(call, [=](uint32_t a, uint32_t b) {
        if (b == 0 || b == ~0u) return b == 0 ? ~0u : 0 - a;
        return static_cast<uint32_t>(as_signed(a) / as_signed(b));
      });
    case OpKind::kRemainder:
      return integers(call, [=](uint32_t a, uint32_t b) {
        if (b == 0 || b == ~0u) return b == 0 ? a : 0;
        return static_cast<uint32_t>(as_signed(a) % as_signed(b));
      });
    case OpKind::kAnd:
      return integers(call, [](uint32_t a, uint32_t b) { return a & b; });
    case OpKind::kOr:
      return integers(call, [](uint32_t a, uint32_t b) { return a | b; });
    case OpKind::kXor:
      return integers(call, [](uint32_t a, uint32_t b) { return a ^ b; });
    case OpKind::kShiftLeft:
      return integers(call, [](uint32_t a, uint32_t b) { return b < 32 ? a << b : 0; });
    case OpKind::kShiftRightLogical:
      return integers(call, [](uint32_t a, uint32_t b) { return b < 32 ? a >> b : 0; });
    case OpKind::kShiftRightArithmetic:
      return integers(call, [=](uint32_t a, uint32_t b) {
        return static_cast<uint32_t>(as_signed(a) >> std::min(b, 31u));
      });
    case OpKind::kMaximum:
      return integers(call,
                      [=](uint32_t a, uint32_t b) { return as_signed(a) > as_signed(b) ? a : b; });
    case OpKind::kMinimum:
      return integers(call,
                      [=](uint32_t a, uint32_t b) { return as_signed(a) < as_signed(b) ? a : b; });
    default:
      return true;
  }
}

// ---- compare

template <typename T, typename F>
bool predicates(const T* a, const T* b, const uint8_t* x, int64_t n, F f) {
  uint8_t differ = 0;
  for (int64_t i = 0; i < n; ++i) differ |= static_cast<uint8_t>(x[i] ^ (f(a[i], b[i]) ? 1 : 0));
  return differ == 0;
}
template <typename T>
bool compared(CompareKind kind, const T* a, const T* b, const uint8_t* x, int64_t n) {
  switch (kind) {
    case CompareKind::kEq:
      return predicates(a, b, x, n, [](T p, T q) { return p == q; });
    case CompareKind::kNe:
      return predicates(a, b, x, n, [](T p, T q) { return p != q; });
    case CompareKind::kLt:
      return predicates(a, b, x, n, [](T p, T q) { return p < q; });
    case CompareKind::kLe:
      return predicates(a, b, x, n, [](T p, T q) { return p <= q; });
    case CompareKind::kGt:
      return predicates(a, b, x, n, [](T p, T q) { return p > q; });
    case CompareKind::kGe:
      return predicates(a, b, x, n, [](T p, T q) { return p >= q; });
  }
  return true;
}
bool compare(const Call& call) {
  const uint8_t* x = call.output.as<uint8_t>().data();
  return all_ranges(call.pool, call.output.elements(), kRange, [&](int64_t begin, int64_t end) {
    float buffer_a[kChunk], buffer_b[kChunk];
    for (int64_t at = begin; at < end; at += kChunk) {
      const int64_t n = std::min(kChunk, end - at);
      const CompareKind kind = call.op.attrs.compare;
      if (call.inputs[0].dtype() == DType::kI32) {
        if (!compared(kind, call.inputs[0].as<int32_t>().data() + at,
                      call.inputs[1].as<int32_t>().data() + at, x + at, n))
          return false;
      } else if (is_floating(call.inputs[0].dtype())) {
        const float* a = floats(call.inputs[0], at, n, buffer_a, call.declared.flush);
        const float* b = floats(call.inputs[1], at, n, buffer_b, call.declared.flush);
        if (!compared(kind, a, b, x + at, n)) return false;
      }
    }
    return true;
  });
}

// ---- convert

const float* as_floats(const Tensor& t, int64_t begin, int64_t n, float* buffer, bool flushes) {
  if (is_floating(t.dtype())) return floats(t, begin, n, buffer, flushes);
  if (t.dtype() == DType::kI32) {
    const int32_t* x = t.as<int32_t>().data() + begin;
    for (int64_t i = 0; i < n; ++i) buffer[i] = static_cast<float>(x[i]);
  } else {
    const uint8_t* x = t.as<uint8_t>().data() + begin;
    for (int64_t i = 0; i < n; ++i) buffer[i] = static_cast<float>(x[i]);
  }
  return buffer;
}
int32_t to_integer(float x) {  // toward zero, saturating, NaN -> 0
  return x != x ? 0 : static_cast<int32_t>(std::clamp(static_cast<double>(x), -0x1p31, 0x1p31 - 1));
}
bool convert(const Call& call) {
  const Tensor &from = call.inputs[0], &to = call.output;
  if (from.dtype() == to.dtype() && !is_floating(to.dtype()))
    return same_bytes(from.raw(), to.raw(), to.bytes());
  return all_ranges(call.pool, to.elements(), kRange, [&](int64_t begin, int64_t end) {
    float buffer[kChunk], e[kChunk];
    for (int64_t at = begin; at < end; at += kChunk) {
      const int64_t n = std::min(kChunk, end - at);
      const float* x = as_floats(from, at, n, buffer, call.declared.flush);
      uint32_t differ = 0;
      if (to.dtype() == DType::kI32) {
        const int32_t* y = to.as<int32_t>().data() + at;
        for (int64_t i = 0; i < n; ++i) differ |= static_cast<uint32_t>(y[i] ^ to_integer(x[i]));
      } else if (to.dtype() == DType::kPred) {
        const uint8_t* y = to.as<uint8_t>().data() + at;
        for (int64_t i = 0; i < n; ++i) differ |= y[i] ^ (x[i] != 0 ? 1u : 0u);
      } else {
        std::copy(x, x + n, e);
        if (!holds(call, at, e, n)) return false;
      }
      if (differ != 0) return false;
    }
    return true;
  });
}

bool bitcast(const Call& call) {
  const auto from = call.inputs[0].as<const uint32_t>(), to = call.output.as<const uint32_t>();
  uint32_t differ = 0;
  for (size_t i = 0; i < to.size(); ++i) {
    const bool nan = (from[i] & 0x7FFFFFFFu) > 0x7F800000u;
    differ |= to[i] ^ (nan ? kCanonicalNaN : from[i]);
  }
  return differ == 0;
}

// One of the oracle's functions, for four numbers.
template <double (*kFunction)(double)>
D4 of_each(D4 x) {
  double v[4];
  _mm256_storeu_pd(v, x.v);
  for (double& one : v) one = kFunction(one);
  return D4::of(v);
}

}  // namespace

bool function_agrees(const Capabilities& declared, OpKind kind, DType dtype, const float* a,
                     const float* x, int64_t n) {
  const double ulps = declared.elementary_ulps;
  switch (kind) {
#define AGAIN(function, edge_value, ulps, absolute)                               \
  return recomputed(                                                              \
      declared, dtype, a, x, n, ulps, absolute, [](D4 y) { return function(y); }, \
      [](double y) { return edge_value; })
    case OpKind::kRsqrt:
      return rsqrt_agrees(dtype, a, x, n);
    case OpKind::kExponential:
      AGAIN(exp_of, y != y ? y : one(exp_of(y)), ulps + 1, 0);
    case OpKind::kLog:
      AGAIN(log_of, log_edge(y), ulps + 1, 0);
    case OpKind::kTanh:
      AGAIN(tanh_of, y != y ? y : one(tanh_of(y)), ulps + 1, 0);
    case OpKind::kErf:
      AGAIN(erf_of, y != y ? y : one(erf_of(y)), ulps + 1, 0);
    case OpKind::kLog1p:
      AGAIN(log1p_of, log1p_edge(y), ulps + 1, 0);
    case OpKind::kSine:
      AGAIN(of_each<oracle::sine>, oracle::sine(y), ulps + 1, 0);
    case OpKind::kCosine:
      AGAIN(of_each<oracle::cosine>, oracle::cosine(y), ulps + 1, 0);
    case OpKind::kLogistic:  // 2^-125, because the result is 0 if exp(-x) overflows binary32
      AGAIN(logistic_of, y != y ? y : one(logistic_of(y)), ulps + 2, 0x1p-125);
#undef AGAIN
    default:
      return true;
  }
}

bool elementwise(const Call& call) {
  const OpKind kind = call.op.kind;
  if (kind == OpKind::kConvert) return convert(call);
  if (kind == OpKind::kCompare) return compare(call);
  if (kind == OpKind::kBitcastConvert) return bitcast(call);
  if (call.output.dtype() == DType::kI32) return integer_op(call);
  if (!is_floating(call.output.dtype())) return true;
  if (call.unrounded != 0) return contracted(call, kind == OpKind::kAdd ? 1 : -1);
  switch (kind) {
#define ONCE(expression)                                                              \
  return rounded_once(call, [](const float* a, const float* b, float* e, int64_t n) { \
    for (int64_t i = 0; i < n; ++i) e[i] = (expression);                              \
  })
    case OpKind::kAdd:
      ONCE(a[i] + b[i]);
    case OpKind::kSubtract:
      ONCE(a[i] - b[i]);
    case OpKind::kMultiply:
      ONCE(a[i] * b[i]);
    case OpKind::kDivide:
      ONCE(a[i] / b[i]);
    case OpKind::kMaximum:  // a NaN of either operand propagates
      ONCE(largest(a[i], b[i]));
    case OpKind::kMinimum:
      ONCE(-largest(-a[i], -b[i]));
#undef ONCE
    case OpKind::kSqrt:
      return rounded_once(
          call, [](const float* a, const float*, float* e, int64_t n) { square_roots(a, e, n); });
    default:
      break;
  }
  if (!has_ulps(kind)) return true;
  return all_ranges(call.pool, call.output.elements(), kRange, [&](int64_t begin, int64_t end) {
    float buffer_a[kChunk], buffer_x[kChunk];
    for (int64_t at = begin; at < end; at += kChunk) {
      const int64_t n = std::min(kChunk, end - at);
      const float* a = floats(call.inputs[0], at, n, buffer_a, call.declared.flush);
      const float* x = floats(call.output, at, n, buffer_x, false);
      if (!function_agrees(call.declared, kind, call.output.dtype(), a, x, n)) return false;
    }
    return true;
  });
}

}  // namespace twinrun::screen
