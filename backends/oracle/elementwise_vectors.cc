// eval_vectors: the estimates of elementwise.cc for + - * / sqrt max min and compare, four elements
// at a time.
#include <cstring>
#include <type_traits>

#include "backends/kernels/intrinsics.h"
#include "backends/oracle/internal.h"

namespace twinrun::oracle {
namespace {

// Inside this range neither operands nor results can be flushed, and no result can overflow.
constexpr double kSmallest = 0x1p-120, kLargest = 0x1p120;

__m256d size_of(__m256d x) { return _mm256_andnot_pd(_mm256_set1_pd(-0.0), x); }
// kBinary32.half_ulp of four absolute values in the normal range of binary32: the largest power of two
// not above the value, times 2^-24.
__m256d half_ulp(__m256d size) {
  const __m256i binade =
      _mm256_and_si256(_mm256_castpd_si256(size), _mm256_set1_epi64x(int64_t{0x7FF} << 52));
  return _mm256_castsi256_pd(_mm256_sub_epi64(binade, _mm256_set1_epi64x(int64_t{24} << 52)));
}

__m256d load4(const float* x, int64_t n) {
  alignas(16) float some[4] = {1, 1, 1, 1};
  std::memcpy(some, x, static_cast<size_t>(n) * sizeof(float));
  return _mm256_cvtps_pd(_mm_load_ps(some));
}
__m256d load4(const double* x, int64_t n) {
  alignas(32) double some[4] = {1, 1, 1, 1};
  std::memcpy(some, x, static_cast<size_t>(n) * sizeof(double));
  return _mm256_load_pd(some);
}
__m256d load(const float* x, int64_t n) {
  return n >= 4 ? _mm256_cvtps_pd(_mm_loadu_ps(x)) : load4(x, n);
}
__m256d load(const double* x, int64_t n) { return n >= 4 ? _mm256_loadu_pd(x) : load4(x, n); }
void store(double* to, __m256d x, int64_t n) {
  if (n >= 4) return _mm256_storeu_pd(to, x);
  alignas(32) double some[4];
  _mm256_store_pd(some, x);
  std::memcpy(to, some, static_cast<size_t>(n) * sizeof(double));
}
// Sets the sign bit of lanes that are neither zero nor inside [kSmallest, kLargest].
__m256d outside(__m256d x) {
  const __m256d size = size_of(x);
  const __m256d inside = _mm256_and_pd(_mm256_cmp_pd(size, _mm256_set1_pd(kSmallest), _CMP_GE_OQ),
                                       _mm256_cmp_pd(size, _mm256_set1_pd(kLargest), _CMP_LE_OQ));
  const __m256d zero = _mm256_cmp_pd(x, _mm256_setzero_pd(), _CMP_EQ_OQ);
  return _mm256_andnot_pd(_mm256_or_pd(inside, zero), _mm256_set1_pd(-0.0));
}

// Computes the estimates that rounded_once (elementwise.cc) gives for f(x, y). Returns false if an
// operand or a result is neither zero nor inside [kSmallest, kLargest]. Without `radius`, only
// values are computed.
template <typename T, typename F>
bool rounded(const T* a, const T* b, int64_t n, double* value, double* radius, F f) {
  __m256d bad = _mm256_setzero_pd();
  if (std::is_same_v<T, double> && radius == nullptr) {
    for (int64_t i = 0; i < n; i += 4) {
      const int64_t left = n - i;
      const __m256d x = load(a + i, left), y = load(b + i, left), v = f(x, y);
      bad = _mm256_or_pd(bad, _mm256_or_pd(outside(v), _mm256_or_pd(outside(x), outside(y))));
      store(value + i, v, left);
    }
    return _mm256_movemask_pd(bad) == 0;
  }
  for (int64_t i = 0; i < n; i += 4) {
    const int64_t left = n - i;
    const __m256d x = load(a + i, left), y = load(b + i, left), v = f(x, y);
    bad = _mm256_or_pd(bad, _mm256_or_pd(outside(v), _mm256_or_pd(outside(x), outside(y))));
    const __m256d size = size_of(v), own = _mm256_mul_pd(size, _mm256_set1_pd(0x1p-52));
    const __m256d r = _mm256_mul_pd(_mm256_add_pd(own, half_ulp(_mm256_add_pd(size, own))),
                                    _mm256_set1_pd(kOutward));
    if (std::is_same_v<T, double>) {  // cpu:f64: the binary64 number is the result
      store(value + i, v, left);
      store(radius + i, r, left);
      continue;
    }
    const __m256d nearest = _mm256_cvtps_pd(_mm256_cvtpd_ps(v));
    const __m256d gap = size_of(_mm256_sub_pd(v, nearest));
    const __m256d no_choice = _mm256_or_pd(_mm256_cmp_pd(v, nearest, _CMP_EQ_OQ),
                                           _mm256_cmp_pd(gap, half_ulp(size), _CMP_EQ_OQ));
    store(value + i, _mm256_blendv_pd(v, nearest, no_choice), left);
    if (radius != nullptr) store(radius + i, _mm256_andnot_pd(no_choice, r), left);
  }
  return _mm256_movemask_pd(bad) == 0;
}
// For ops that do not round. The sign of a zero does not matter: judge() treats -0 and +0 as equal.
template <typename T, typename F>
bool exact(const T* a, const T* b, int64_t n, double* value, double* radius, F f) {
  __m256d bad = _mm256_setzero_pd();
  for (int64_t i = 0; i < n; i += 4) {
    const int64_t left = n - i;
    const __m256d x = load(a + i, left), y = load(b + i, left);
    bad = _mm256_or_pd(bad, _mm256_or_pd(outside(x), outside(y)));
    store(value + i, f(x, y), left);
  }
  if (radius != nullptr) std::fill_n(radius, n, 0.0);
  return _mm256_movemask_pd(bad) == 0;
}

template <typename T>
bool stretch(OpKind kind, const T* a, const T* b, int64_t n, double* value, double* radius) {
  switch (kind) {
    case OpKind::kAdd:
      return rounded(a, b, n, value, radius, [](auto x, auto y) { return _mm256_add_pd(x, y); });
    case OpKind::kSubtract:
      return rounded(a, b, n, value, radius, [](auto x, auto y) { return _mm256_sub_pd(x, y); });
    case OpKind::kMultiply:
      return rounded(a, b, n, value, radius, [](auto x, auto y) { return _mm256_mul_pd(x, y); });
    case OpKind::kDivide:  // 0 / 0 and x / 0 count as outside the range
      return rounded(a, b, n, value, radius, [](auto x, auto y) { return _mm256_div_pd(x, y); });
    case OpKind::kSqrt:
      return rounded(a, a, n, value, radius, [](auto x, auto) { return _mm256_sqrt_pd(x); });
    case OpKind::kMaximum:
      return exact(a, b, n, value, radius, [](auto x, auto y) { return _mm256_max_pd(x, y); });
    case OpKind::kMinimum:
      return exact(a, b, n, value, radius, [](auto x, auto y) { return _mm256_min_pd(x, y); });
    default:
      return false;
  }
}

// compare, for numbers: a NaN counts as outside the range.
template <typename T, typename F>
bool compared(const T* a, const T* b, int64_t n, double* value, double* radius, F f) {
  const auto bits = [&](__m256d x, __m256d y) {
    return _mm256_and_pd(f(x, y), _mm256_set1_pd(1.0));
  };
  return exact(a, b, n, value, radius, bits);
}
template <typename T>
bool compare_stretch(CompareKind kind, const T* a, const T* b, int64_t n, double* value,
                     double* radius) {
  switch (kind) {
    case CompareKind::kEq:
      return compared(a, b, n, value, radius,
                      [](auto x, auto y) { return _mm256_cmp_pd(x, y, _CMP_EQ_OQ); });
    case CompareKind::kNe:
      return compared(a, b, n, value, radius,
                      [](auto x, auto y) { return _mm256_cmp_pd(x, y, _CMP_NEQ_UQ); });
    case CompareKind::kLt:
      return compared(a, b, n, value, radius,
                      [](auto x, auto y) { return _mm256_cmp_pd(x, y, _CMP_LT_OQ); });
    case CompareKind::kLe:
      return compared(a, b, n, value, radius,
                      [](auto x, auto y) { return _mm256_cmp_pd(x, y, _CMP_LE_OQ); });
    case CompareKind::kGt:
      return compared(a, b, n, value, radius,
                      [](auto x, auto y) { return _mm256_cmp_pd(x, y, _CMP_GT_OQ); });
    case CompareKind::kGe:
      return compared(a, b, n, value, radius,
                      [](auto x, auto y) { return _mm256_cmp_pd(x, y, _CMP_GE_OQ); });
  }
  return false;
}

template <typename T>
bool of_type(const Call& call, int64_t begin, int64_t end) {
  const T* a = call.inputs[0].as<T>().data() + begin;
  const T* b = call.inputs.size() > 1 ? call.inputs[1].as<T>().data() + begin : a;
  double* const value = call.value(begin);
  double* const radius = call.bounded ? call.radius(begin) : nullptr;
  return call.op.kind == OpKind::kCompare
             ? compare_stretch(call.op.attrs.compare, a, b, end - begin, value, radius)
             : stretch(call.op.kind, a, b, end - begin, value, radius);
}

}  // namespace

bool eval_vectors(const Call& call, int64_t begin, int64_t end) {
  const DType dtype = call.inputs[0].dtype();
  if (call.inputs.size() > 1 && call.inputs[1].dtype() != dtype) return false;
  if (call.op.kind != OpKind::kCompare && call.op.type.dtype != DType::kF32) return false;
  if (dtype == DType::kF64) return of_type<double>(call, begin, end);
  return dtype == DType::kF32 && of_type<float>(call, begin, end);
}

}  // namespace twinrun::oracle
