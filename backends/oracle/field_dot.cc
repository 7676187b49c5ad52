// Dots and convolutions over the field by binary64 matrix products. An element is split into three
// signed limbs of 21, 21 and 19 bits: the coefficients of a polynomial whose value at 2^21 is the
// element. The product of two polynomials is interpolated from its values at 0, 1, -1, 2 and
// infinity (Toom-3). That takes five matrix products in binary64, whose sums of at most 256 terms
// stay below 2^53 and are exact. The coefficients are then combined modulo p, where 2^61 = 1. If
// there are few columns, the words are multiplied directly instead.
#include <Eigen/Core>
#include <array>

#include "backends/oracle/field_internal.h"
#include "backends/oracle/gemm.h"
#include "backends/oracle/parts.h"

namespace twinrun::oracle {
namespace {

using Doubles = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Block = Eigen::Map<Doubles>;
using StridedBlock = Eigen::Map<const Doubles, 0, Eigen::OuterStride<>>;

constexpr int64_t kTerms = 256;            // number of terms of one exact sum
constexpr int64_t kGathered = 576 * 1024;  // gathered elements at a time
constexpr int64_t kFewColumns = 6;
constexpr size_t kProducts = 5;  // values at 0, 1, -1, 2 and infinity
using Planes = std::array<Plane, kProducts>;

// The values of each element's polynomial at the five points, at most 2^22 in size. `words` holds
// the bits of the elements' words in doubles.
void split(const double* __restrict words, int64_t n, Planes& to) {
  constexpr uint64_t kMask = (1u << 21) - 1, kExponent = 0x4330000000000000u;
  constexpr uint64_t kHalves = uint64_t{1} << 20 | uint64_t{1} << 41 | uint64_t{1} << 60;
  for (Plane& plane : to) plane.resize(static_cast<size_t>(n));
  double* __restrict const at_0 = to[0].data();
  double* __restrict const at_1 = to[1].data();
  double* __restrict const at_minus_1 = to[2].data();
  double* __restrict const at_2 = to[3].data();
  double* __restrict const at_infinity = to[4].data();
  for (int64_t i = 0; i < n; ++i) {
    const auto word = std::bit_cast<uint64_t>(words[i]);
    // The element as an integer between -2^60 and 2^60, plus half of each limb's range, so that
    // limbs become unsigned.
    const uint64_t w = word + kHalves - (Field61::kPrime & -(word >> 60));
    const double a = std::bit_cast<double>((w & kMask) | kExponent) - (0x1p52 + 0x1p20);
    const double b = std::bit_cast<double>((w >> 21 & kMask) | kExponent) - (0x1p52 + 0x1p20);
    const double c = std::bit_cast<double>(w >> 42 | kExponent) - (0x1p52 + 0x1p18);
    at_0[i] = a, at_infinity[i] = c;
    at_1[i] = a + c + b, at_minus_1[i] = a + c - b;
    at_2[i] = a + 2 * b + 4 * c;
  }
}

// Interpolates: adds to to[i] the sum of products whose polynomial has the values `d` at the five
// points.
void fold(const Planes& d, int64_t n, Field61* __restrict to) {
  static constexpr double kMiddle = 0x1.8p52;  // in this binade the last bit of a binary64 is 1
  static constexpr auto kPrime = static_cast<int64_t>(Field61::kPrime);
  // Rounds to the nearest integer, which must have at most 51 bits.
  const auto integer = [](double x) {
    return std::bit_cast<int64_t>(x + kMiddle) - std::bit_cast<int64_t>(kMiddle);
  };
  // x 2^by modulo 2^61 - 1: a rotation of 61 bits.
  const auto turned = [](int64_t x, int by) {
    const auto bits = static_cast<uint64_t>(x < 0 ? x + kPrime : x);
    return (bits << by & Field61::kPrime) | bits >> (61 - by);
  };
  const double *at_0 = d[0].data(), *at_1 = d[1].data(), *at_minus_1 = d[2].data();
  const double *at_2 = d[3].data(), *at_infinity = d[4].data();
  for (int64_t i = 0; i < n; ++i) {
    // For 256 terms: |c0|, |c1|, |c2| < 2^50, |c3| < 2^48, |c4| <= 2^44, and all intermediate sums
    // are below 2^53.
    const double c0 = at_0[i], c4 = at_infinity[i];
    const double c2 = (at_1[i] + at_minus_1[i]) * 0.5 - c0 - c4;
    const double odd = (at_1[i] - at_minus_1[i]) * 0.5;                     // c1 + c3
    const double odd_at_2 = (at_2[i] - c0 - 4 * c2 - 16 * c4) * 0.5 - odd;  // 3 c3
    const int64_t c3 = integer(odd_at_2 * (1.0 / 3)), c1 = integer(odd) - c3;
    // The polynomial at 2^21; the powers are 1, 2^21, 2^42, 2^63 = 2^2 and 2^84 = 2^23.
    const uint64_t sum = to[i].word + turned(integer(c0), 0) + turned(c1, 21) +
                         turned(integer(c2), 42) + turned(c3, 2) + turned(integer(c4), 23);
    const uint64_t once = (sum & Field61::kPrime) + (sum >> 61);
    to[i].word = once >= Field61::kPrime ? once - Field61::kPrime : once;
  }
}

// The right operand as a [k, n] matrix of words.
Plane oriented(const Product& p, const Tensor& right) {
  const auto words = right.as<const double>();
  Plane out(words.size());
  if (!p.right_transposed) {
    std::copy(words.begin(), words.end(), out.begin());
    return out;
  }
  const int64_t inner = p.k / p.taps;
  for (int64_t tap = 0; tap < p.taps; ++tap) {
    const double* const from = words.data() + tap * inner * p.n;
    double* const to = out.data() + tap * inner * p.n;
    for (int64_t j = 0; j < p.n; ++j) {
      for (int64_t i = 0; i < inner; ++i) to[i * p.n + j] = from[j * inner + i];
    }
  }
  return out;
}

// Computes the result by chunks of its rows.
void by_rows(const Product& p, const Tensor& left, const Plane& right, ThreadPool* pool,
             Field61* to) {
  const int64_t chunk = std::max<int64_t>(kGathered / std::max<int64_t>({p.k, 8 * p.n, 1}), 64);
  const bool few = p.n < kFewColumns;
  Planes right_limbs;
  if (!few) split(right.data(), static_cast<int64_t>(right.size()), right_limbs);
  in_pieces(pool, (p.m + chunk - 1) / chunk, [&](int64_t piece) {
    const int64_t begin = piece * chunk, rows = std::min(p.m, begin + chunk) - begin;
    static thread_local Plane buffer;
    static thread_local Planes limbs, sums;
    buffer.resize(static_cast<size_t>(rows * p.k));
    gather_rows(p, p.k, left.as<const double>().data(), begin, begin + rows, buffer.data());
    Field61* const mine = to + begin * p.n;
    std::fill_n(mine, rows * p.n, Field61{});
    if (few) {
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t j = 0; j < p.n; ++j) {
          Field61::Wide sum = 0;
          for (int64_t k = 0; k < p.k; ++k) {
            const auto i = static_cast<size_t>(k * p.n + j);
            sum += static_cast<Field61::Wide>(
                       std::bit_cast<uint64_t>(buffer[static_cast<size_t>(r * p.k + k)])) *
                   std::bit_cast<uint64_t>(right[i]);
            if (k % 32 == 31) sum = Field61::reduced(sum).word;
          }
          mine[r * p.n + j] = Field61::reduced(sum);
        }
      }
      return;
    }
    split(buffer.data(), rows * p.k, limbs);
    for (Plane& plane : sums) plane.resize(static_cast<size_t>(rows * p.n));
    for (int64_t from = 0; from < p.k; from += kTerms) {
      const int64_t terms = std::min(kTerms, p.k - from);
      for (size_t i = 0; i < kProducts; ++i) {
        Block(sums[i].data(), rows, p.n).noalias() =
            StridedBlock(limbs[i].data() + from, rows, terms, Eigen::OuterStride<>(p.k)) *
            StridedBlock(right_limbs[i].data() + from * p.n, terms, p.n, Eigen::OuterStride<>(p.n));
      }
      fold(sums, rows * p.n, mine);
    }
  });
}

// Kernel gradients: sums over the rows of both operands.
void over_rows(const Product& p, const Tensor& left, const Plane& right, ThreadPool* pool,
               Field61* to) {
  const int64_t chunk = std::clamp<int64_t>(kGathered / std::max<int64_t>(p.m, 1), 64, kTerms);
  const int64_t tile = std::max<int64_t>(kGathered / 4 / std::max<int64_t>(p.n, 1), 8);
  const auto size = static_cast<size_t>(p.m * p.n);
  const int64_t groups = std::clamp<int64_t>(
      std::min((int64_t{1} << 20) / std::max<int64_t>(p.m * p.n, 1), p.k / chunk), 1, 8);
  std::vector<std::vector<Field61>> parts(static_cast<size_t>(groups - 1),
                                          std::vector<Field61>(size));
  std::fill_n(to, size, Field61{});
  in_pieces(pool, groups, [&](int64_t g) {
    Field61* const mine = g == 0 ? to : parts[static_cast<size_t>(g - 1)].data();
    static thread_local Plane buffer;
    static thread_local Planes limbs, right_limbs, sums;
    const int64_t last = p.k * (g + 1) / groups;
    for (int64_t begin = p.k * g / groups; begin < last; begin += chunk) {
      const int64_t rows = std::min(last, begin + chunk) - begin;
      buffer.resize(static_cast<size_t>(rows * p.m));
      gather_rows(p, p.m, left.as<const double>().data(), begin, begin + rows, buffer.data());
      split(buffer.data(), rows * p.m, limbs);
      split(right.data() + begin * p.n, rows * p.n, right_limbs);
      for (int64_t first = 0; first < p.m; first += tile) {
        const int64_t height = std::min(tile, p.m - first);
        for (size_t i = 0; i < kProducts; ++i) {
          sums[i].resize(static_cast<size_t>(height * p.n));
          Block(sums[i].data(), height, p.n).noalias() =
              StridedBlock(limbs[i].data() + first, rows, height, Eigen::OuterStride<>(p.m))
                  .transpose() *
              StridedBlock(right_limbs[i].data(), rows, p.n, Eigen::OuterStride<>(p.n));
        }
        fold(sums, height * p.n, mine + first * p.n);
      }
    }
  });
  for (const auto& part : parts) {
    for (size_t i = 0; i < size; ++i) to[i] = to[i] + part[i];
  }
}

}  // namespace

Tensor field_dot(const Op& op, std::span<const Tensor> operands, ThreadPool* pool) {
  Tensor out = Tensor::empty(field_type(op.type.dims));
  if (has_parts(op)) {
    in_pieces(pool, part_count(op, operands), [&](int64_t i) {
      const Part part = part_of(op, operands, i);
      const Tensor own = field_dot(part.op, part.inputs, nullptr);
      const Placement place = placement_of(op, i);
      for (int64_t e = 0; e < own.elements(); ++e)
        out.as<Field61>()[static_cast<size_t>(place(e))] =
            own.as<const Field61>()[static_cast<size_t>(e)];
    });
    return out;
  }
  pin_blocking();
  const Product p = product_of(op, operands);
  const Plane right = oriented(p, operands[1]);
  Field61* const to = out.as<Field61>().data();
  p.reduce_rows ? over_rows(p, operands[0], right, pool, to)
                : by_rows(p, operands[0], right, pool, to);
  return out;
}

}  // namespace twinrun::oracle
