// The screen of dots, after Freivalds (1979): a product C = A B is checked by comparing C r with A
// (B r) for one vector r of signs, row by row. docs/method/bounds.md, "Screening", has the radii.
#include "backends/oracle/screen_dot.h"

#include "backends/oracle/parts.h"
#include "program/base/philox.h"

namespace twinrun::screen {

namespace {

// Rounds to nearest even after flushing denormals; a NaN stays a NaN.
inline __m256 to_bf16(__m256 x) {
  const __m256i u = _mm256_castps_si256(x), exponents = _mm256_set1_epi32(0x7F800000);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i tiny = _mm256_cmpeq_epi32(_mm256_and_si256(u, exponents), _mm256_setzero_si256());
  const __m256i number =
      _mm256_blendv_epi8(rounded, _mm256_and_si256(u, _mm256_set1_epi32(INT32_MIN)), tiny);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i bits =
      _mm256_blendv_epi8(number, _mm256_or_si256(u, _mm256_set1_epi32(0x00400000)), nan);
  return _mm256_castsi256_ps(
      _mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int32_t>(0xFFFF0000u))));
}
// Truncates toward zero after flushing denormals. A NaN is returned unchanged.
inline __m256 cut_to_bf16(__m256 x) {
  const __m256i u = _mm256_castps_si256(x);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i tiny = _mm256_cmpeq_epi32(_mm256_and_si256(u, _mm256_set1_epi32(0x7F800000)),
                                          _mm256_setzero_si256());
  const __m256i kept = _mm256_set1_epi32(static_cast<int32_t>(0xFFFF0000u));
  const __m256i mask = _mm256_blendv_epi8(kept, _mm256_set1_epi32(INT32_MIN), tiny);
  return _mm256_castsi256_ps(_mm256_blendv_epi8(_mm256_and_si256(u, mask), u, nan));
}
inline __m256 parts_of_eight(__m256 x, int parts, bool cut) {
  const __m256 h = cut && parts > 1 ? cut_to_bf16(x) : to_bf16(x);
  if (parts == 1) return h;
  const __m256 after = _mm256_sub_ps(x, h);
  const __m256 m = cut && parts > 2 ? cut_to_bf16(after) : to_bf16(after);
  __m256 sum = _mm256_add_ps(h, m);  // exact, and so is the next one
  if (parts == 3) sum = _mm256_add_ps(sum, to_bf16(_mm256_sub_ps(after, m)));
  // For the largest numbers, h + l of cut parts may reach 2^128.
  const __m256 largest = _mm256_set1_ps(std::numeric_limits<float>::max());
  const __m256 least = _mm256_set1_ps(std::numeric_limits<float>::lowest());
  sum = _mm256_min_ps(_mm256_max_ps(sum, least), largest);
  // If the first part is a NaN or an infinity, it is the result.
  const __m256i exponents = _mm256_set1_epi32(0x7F800000);
  const __m256i special =
      _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_castps_si256(h), exponents), exponents);
  return _mm256_blendv_ps(sum, h, _mm256_castsi256_ps(special));
}

}  // namespace

void sum_of_parts(const float* x, float* out, int64_t n, int parts, DotSplit split) {
  const bool cut = split == DotSplit::kTruncated;
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(out + i, parts_of_eight(_mm256_loadu_ps(x + i), parts, cut));
  if (i == n) return;
  float rest[8] = {};
  std::copy(x + i, x + n, rest);
  _mm256_storeu_ps(rest, parts_of_eight(_mm256_loadu_ps(rest), parts, cut));
  std::copy(rest, rest + (n - i), out + i);
}

Vector signs(int64_t n) {
  Vector r(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    const Philox4 bits = philox4x32({static_cast<uint32_t>(i >> 7), 0x53637265u, 0x656E2121u, 0},
                                    {0x7477696Eu, 0x72756E00u});
    r[static_cast<size_t>(i)] =
        (bits[static_cast<size_t>(i >> 5 & 3)] >> (i & 31) & 1u) != 0 ? -1.0 : 1.0;
  }
  return r;
}

namespace {

constexpr int64_t kTile = 4096;  // elements of an operand in a buffer

}  // namespace

void contract_rows(const Call& call, const Reader& read, const Tensor& t, int64_t k, int64_t n,
                   const Vector& r, Contracted& out) {
  const int64_t rows = std::max<int64_t>(1, kRange / n);
  all_ranges(call.pool, k, rows, [&](int64_t begin, int64_t end) {
    std::vector<float> buffer(static_cast<size_t>(std::max(n, kTile)));
    const int64_t at_once = std::max<int64_t>(1, kTile / n);
    for (int64_t i = begin; i < end; i += at_once) {
      const int64_t count = std::min(at_once, end - i);
      const float* x = read(t, i * n, count * n, buffer.data());
      for (int64_t j = 0; j < count; ++j) {
        out.sum[static_cast<size_t>(i + j)] = weighted(x + j * n, r.data(), n);
        out.norm[static_cast<size_t>(i + j)] = std::sqrt(squares(x + j * n, n));
      }
    }
    return true;
  });
}

void contract_columns(const Call& call, const Reader& read, const Tensor& t, int64_t taps,
                      int64_t n, int64_t k, const Vector& r, Contracted& out) {
  constexpr int64_t kBlock = 512;
  const int64_t blocks = (k + kBlock - 1) / kBlock;
  all_pieces(call.pool, taps * blocks, [&](int64_t piece) {
    const int64_t tap = piece / blocks, begin = piece % blocks * kBlock,
                  width = std::min(kBlock, k - begin);
    float buffer[kBlock];
    double* sum = out.sum.data() + tap * k + begin;
    double* norm = out.norm.data() + tap * k + begin;
    for (int64_t j = 0; j < n; ++j) {
      const float* x = read(t, (tap * n + j) * k + begin, width, buffer);
      const double sign = r[static_cast<size_t>(j)];
      for (int64_t c = 0; c < width; ++c) {
        const auto v = static_cast<double>(x[c]);
        sum[c] = std::fma(v, sign, sum[c]);
        norm[c] = std::fma(v, v, norm[c]);
      }
    }
    for (int64_t c = 0; c < width; ++c) norm[c] = std::sqrt(norm[c]);
    return true;
  });
}

namespace {

double dot(const Call& call) {
  const Tensor &a = call.inputs[0], &b = call.inputs[1];
  const bool a_rows = call.op.attrs.lhs_contract == 1, b_rows = call.op.attrs.rhs_contract == 0;
  const int64_t m = call.output.dims()[0], n = call.output.dims()[1], k = a.dims()[a_rows ? 1 : 0];
  const Reader read(call.declared);
  const Rows rows(call, k, n);
  Contracted br(k);
  if (b_rows) {
    contract_rows(call, read, b, k, n, rows.r(), br);
  } else {
    contract_columns(call, read, b, 1, n, k, rows.r(), br);
  }
  const int64_t at_once = a_rows ? std::max<int64_t>(1, kRange / (k + n)) : 256;
  return largest(call.pool, (m + at_once - 1) / at_once, [&](int64_t piece) {
    const int64_t begin = piece * at_once, end = std::min(m, begin + at_once);
    std::vector<float> in(static_cast<size_t>(std::max(k, at_once))), out(static_cast<size_t>(n));
    Vector value(static_cast<size_t>(at_once)), size(value);
    if (a_rows) {
      for (int64_t i = begin; i < end; ++i) {
        const float* x = read(a, i * k, k, in.data());
        value[static_cast<size_t>(i - begin)] = weighted(x, br.sum.data(), k);
        size[static_cast<size_t>(i - begin)] = weighted_sizes(x, br.norm.data(), k);
      }
    } else {
      for (int64_t j = 0; j < k; ++j) {
        const float* x = read(a, j * m + begin, end - begin, in.data());
        const double sum = br.sum[static_cast<size_t>(j)], norm = br.norm[static_cast<size_t>(j)];
        for (int64_t i = 0; i < end - begin; ++i) {
          const auto v = static_cast<double>(x[i]);
          value[static_cast<size_t>(i)] = std::fma(v, sum, value[static_cast<size_t>(i)]);
          size[static_cast<size_t>(i)] = std::fma(std::fabs(v), norm, size[static_cast<size_t>(i)]);
        }
      }
    }
    double worst = 0;
    for (int64_t i = begin; i < end; ++i) {
      const auto u = static_cast<size_t>(i - begin);
      worst = std::max(worst, rows.ratio(i, value[u], size[u], out.data()));
    }
    return worst;
  });
}

}  // namespace

double worst_row(const Call& call) {
  if (oracle::has_parts(call.op)) {
    return largest(call.pool, oracle::part_count(call.op, call.inputs), [&](int64_t i) {
      const oracle::Part part = oracle::part_of(call.op, call.inputs, i);
      const Tensor output = oracle::part_of_result(call.op, call.output, i);
      return worst_row({call.declared, part.op, part.inputs, output, nullptr});
    });
  }
  return call.op.kind == OpKind::kDotGeneral ? dot(call) : convolution_worst_row(call);
}

}  // namespace twinrun::screen
