// Shared by the screens of dots and convolutions: operands as the declared precision reads them,
// contraction with a vector of signs, and the radii of rows.
#pragma once

#include <vector>

#include "backends/kernels/intrinsics.h"
#include "backends/oracle/screen_internal.h"

namespace twinrun::screen {

using Vector = std::vector<double>;

// Four binary64 numbers.
struct D4 {
  __m256d v;
  D4(__m256d x) : v(x) {}                 // NOLINT: as wide as what it wraps
  D4(double x) : v(_mm256_set1_pd(x)) {}  // NOLINT: 2 * x
  static D4 of(const float* x) { return _mm256_cvtps_pd(_mm_loadu_ps(x)); }
  static D4 of(const double* x) { return _mm256_loadu_pd(x); }
  void store(double* x) const { _mm256_storeu_pd(x, v); }
};
inline D4 operator+(D4 a, D4 b) { return _mm256_add_pd(a.v, b.v); }
inline D4 operator-(D4 a, D4 b) { return _mm256_sub_pd(a.v, b.v); }
inline D4 operator*(D4 a, D4 b) { return _mm256_mul_pd(a.v, b.v); }
inline D4 fma(D4 a, D4 b, D4 c) { return _mm256_fmadd_pd(a.v, b.v, c.v); }
inline D4 abs(D4 x) { return _mm256_andnot_pd(_mm256_set1_pd(-0.0), x.v); }
inline double sum(D4 x) {
  const __m128d half = _mm_add_pd(_mm256_castpd256_pd128(x.v), _mm256_extractf128_pd(x.v, 1));
  return _mm_cvtsd_f64(_mm_add_sd(half, _mm_unpackhi_pd(half, half)));
}

// ---- operands as the declared precision reads them

// The sum of the 1, 2 or 3 bf16 parts of each element, without denormal parts.
void sum_of_parts(const float* x, float* out, int64_t n, int parts, DotSplit split);

class Reader {
 public:
  explicit Reader(const Capabilities& declared) : split_(declared.split) {
    switch (declared.precision) {
      case DotPrecision::kF32:
        flush_ = declared.flush;
        break;
      case DotPrecision::kBf16:
        parts_ = 1;
        break;
      case DotPrecision::kBf16x3:
        parts_ = 2;
        break;
      case DotPrecision::kBf16x6:
        parts_ = 3;
        break;
    }
  }
  // Elements [begin, begin + n): written to `buffer`, or in place if nothing has to change.
  const float* operator()(const Tensor& t, int64_t begin, int64_t n, float* buffer) const {
    const float* x = floats(t, begin, n, buffer, flush_);
    if (parts_ == 0) return x;
    sum_of_parts(x, buffer, n, parts_, split_);
    return buffer;
  }

 private:
  bool flush_ = false;  // bf16 operands are always flushed
  int parts_ = 0;
  DotSplit split_;
};

// ---- contraction with signs

// A fixed pseudo-random vector of +1 and -1.
Vector signs(int64_t n);

// sum x w
inline double weighted(const float* x, const double* w, int64_t n) {
  D4 a = 0.0, b = 0.0;
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    a = fma(D4::of(x + i), D4::of(w + i), a);
    b = fma(D4::of(x + i + 4), D4::of(w + i + 4), b);
  }
  double rest = 0;
  for (; i < n; ++i) rest = std::fma(static_cast<double>(x[i]), w[i], rest);
  return sum(a + b) + rest;
}
// sum x^2
inline double squares(const float* x, int64_t n) {
  D4 a = 0.0, b = 0.0;
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const D4 u = D4::of(x + i), v = D4::of(x + i + 4);
    a = fma(u, u, a);
    b = fma(v, v, b);
  }
  double rest = 0;
  for (; i < n; ++i) rest = std::fma(static_cast<double>(x[i]), static_cast<double>(x[i]), rest);
  return sum(a + b) + rest;
}
// sum |x| w
inline double weighted_sizes(const float* x, const double* w, int64_t n) {
  D4 a = 0.0, b = 0.0;
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    a = fma(abs(D4::of(x + i)), D4::of(w + i), a);
    b = fma(abs(D4::of(x + i + 4)), D4::of(w + i + 4), b);
  }
  double rest = 0;
  for (; i < n; ++i) rest = std::fma(std::fabs(static_cast<double>(x[i])), w[i], rest);
  return sum(a + b) + rest;
}

// A matrix [k, n] contracted with a vector r over n: for each k, the sum of the row times r, and
// the Euclidean norm of the row.
struct Contracted {
  Vector sum, norm;
  explicit Contracted(int64_t k) : sum(static_cast<size_t>(k)), norm(static_cast<size_t>(k)) {}
  bool all_finite() const {
    return std::all_of(sum.begin(), sum.end(), finite) &&
           std::all_of(norm.begin(), norm.end(), finite);
  }
};

// Contracts the rows of t, a matrix [k, n].
void contract_rows(const Call& call, const Reader& read, const Tensor& t, int64_t k, int64_t n,
                   const Vector& r, Contracted& out);
// Contracts t, of shape [taps, n, k], over n.
void contract_columns(const Call& call, const Reader& read, const Tensor& t, int64_t taps,
                      int64_t n, int64_t k, const Vector& r, Contracted& out);

// ---- rows of the result

class Rows {
 public:
  Rows(const Call& call, int64_t k, int64_t n) : call_(call), n_(n), r_(signs(n)) {
    const Capabilities& d = call.declared;
    const auto terms = static_cast<double>(k), columns = static_cast<double>(n);
    // Errors e_j of the columns change the checksum by at most this factor times the norm of e.
    // sqrt(columns) always holds; 6 holds except in 3 of 10^8 cases (Hoeffding).
    spread_ = std::min(std::sqrt(columns), 6.0);
    const double depth = depth_of(call, k);
    relative_ = kUnit * std::min(depth * spread_, 8 * std::sqrt(depth)) +
                (terms + columns + 64) * 0x1p-50 * std::sqrt(columns);
    int passes = 1;
    // bf16x3 drops the product l l': |l| <= 2^-8 |x|, or 2^-7 |x| where parts are cut.
    if (d.precision == DotPrecision::kBf16x3) {
      const double dropped = d.split == DotSplit::kTruncated ? 0x1p-14 : 0x1p-16;
      relative_ += dropped * std::min(spread_, 8 / std::sqrt(terms));
      passes = 3;
    } else if (d.precision == DotPrecision::kBf16x6) {
      relative_ += (d.split == DotSplit::kTruncated ? 4 : 2) * kUnit * spread_;
      passes = 6;
    }
    const bool flush = d.flush || d.precision != DotPrecision::kF32;
    absolute_ = 3 * passes * (terms + 8) * columns * (flush ? kMinNormal : 0x1p-149);
    narrow_ = call.output.dtype() == DType::kBF16;
    if (narrow_) absolute_ += columns * kMinNormal;
  }
  const Vector& r() const { return r_; }

  // |checksum of the row - value| / radius, where size >= sum |a_k| ||b_k|| for the rows b_k of B.
  double ratio(int64_t row, double value, double size, float* buffer) const {
    const float* x = floats(call_.output, row * n_, n_, buffer, false);
    const double sum = weighted(x, r_.data(), n_);
    if (!finite(value)) return finite(sum) ? kInfinity : 0;
    if (!(size < kMayOverflow)) return 0;
    double radius = relative_ * size + absolute_;
    if (narrow_) radius += 0x1p-8 * spread_ * std::sqrt(squares(x, n_));
    const double difference = std::fabs(sum - value);
    return difference <= radius            ? difference / radius
           : finite(radius) && finite(sum) ? difference / radius
                                           : kInfinity;
  }
  // Infinity if one of these rows holds neither NaN nor infinity, otherwise 0.
  double not_finite(int64_t begin, int64_t end, float* buffer) const {
    for (int64_t row = begin; row < end; ++row) {
      if (ratio(row, kInfinity, 0, buffer) > 0) return kInfinity;
    }
    return 0;
  }

 private:
  static double depth_of(const Call& call, int64_t k) {
    const Op& op = call.op;
    const auto terms = static_cast<double>(k);
    if (!call.declared.ours && !call.declared.block32_order) return terms;
    const bool segmented = op.kind == OpKind::kConvolutionKernelGrad ||
                           (op.kind == OpKind::kDotGeneral && op.attrs.batch_dims == 0 &&
                            op.attrs.lhs_contract == 0 && op.attrs.rhs_contract == 0);
    const double segment = segmented ? std::min(terms, 4096.0) : terms;
    const double segments = segmented ? std::ceil(terms / 4096) : 1;
    const bool blocks =
        call.declared.block32_order && call.declared.precision != DotPrecision::kF32;
    return (blocks ? std::min(16.0, segment) + std::ceil(segment / 32) : segment) + segments + 1;
  }

  const Call& call_;
  int64_t n_;
  Vector r_;
  double spread_, relative_, absolute_;
  bool narrow_;
};

// The largest of worst(piece) over all pieces.
template <typename F>
double largest(ThreadPool* pool, int64_t pieces, F worst) {
  Vector of_piece(static_cast<size_t>(pieces));
  all_pieces(pool, pieces,
             [&](int64_t i) { return (of_piece[static_cast<size_t>(i)] = worst(i)) <= 1; });
  return pieces > 0 ? *std::max_element(of_piece.begin(), of_piece.end()) : 0;
}

double convolution_worst_row(const Call& call);

}  // namespace twinrun::screen
