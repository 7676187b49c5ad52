// The prime field of p = 2^61 - 1 elements. Fractions are represented as exactly as integers, so
// sums, products and quotients do not depend on the order of evaluation: two formulas that give
// different elements are different functions.
//
//   const Field61 third = Field61::of(1) / Field61::of(3);
//   third + third + third == Field61::of(1)
//   Field61::constant(0.1) == Field61::of(1) / Field61::of(10)   // the fraction that is meant
//   third.fraction()                                             // {1, 3}
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace twinrun {

struct Field61 {
  static constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;
  uint64_t word = 0;  // below kPrime

  __extension__ using Wide = unsigned __int128;
  // Any number below 2^122 + 2^61 modulo p, in which 2^61 is congruent to 1.
  static constexpr Field61 reduced(Wide x) {
    const uint64_t once = (static_cast<uint64_t>(x) & kPrime) +
                          (static_cast<uint64_t>(x >> 61) & kPrime) +
                          static_cast<uint64_t>(x >> 122);
    const uint64_t twice = (once & kPrime) + (once >> 61);
    return {twice >= kPrime ? twice - kPrime : twice};
  }
  static constexpr Field61 of(int64_t n) {
    const uint64_t size =
        (n < 0 ? ~static_cast<uint64_t>(n) + 1 : static_cast<uint64_t>(n)) % kPrime;
    return {n < 0 && size != 0 ? kPrime - size : size};
  }

  constexpr bool operator==(const Field61&) const = default;
  constexpr Field61 operator+(Field61 o) const {
    const uint64_t s = word + o.word;
    return {s >= kPrime ? s - kPrime : s};
  }
  constexpr Field61 operator-(Field61 o) const {
    return {word >= o.word ? word - o.word : word + kPrime - o.word};
  }
  constexpr Field61 operator-() const { return Field61{} - *this; }
  constexpr Field61 operator*(Field61 o) const {
    const Wide x = static_cast<Wide>(word) * o.word;
    const uint64_t s = (static_cast<uint64_t>(x) & kPrime) + static_cast<uint64_t>(x >> 61);
    return {s >= kPrime ? s - kPrime : s};
  }
  constexpr Field61 power(uint64_t n) const {
    Field61 result{1}, square = *this;
    for (; n != 0; n >>= 1, square = square * square) {
      if ((n & 1) != 0) result = result * square;
    }
    return result;
  }
  // x^(p - 2), by Fermat's little theorem. The inverse of zero is taken to be zero.
  constexpr Field61 inverse() const { return power(kPrime - 2); }
  constexpr Field61 operator/(Field61 o) const { return *this * o.inverse(); }

  // The element as an integer, if that has at most 31 bits and a sign.
  constexpr std::optional<int64_t> small_integer() const {
    constexpr uint64_t kMax = uint64_t{1} << 31;
    if (word < kMax) return static_cast<int64_t>(word);
    if (word > kPrime - kMax) return -static_cast<int64_t>(kPrime - word);
    return std::nullopt;
  }
  // The element as a fraction {n, d} with |n| and d below 2^20, by rational reconstruction
  // (Euclid's algorithm, stopped early). There is at most one such fraction, and for a random
  // element almost never any.
  std::optional<std::pair<int64_t, int64_t>> fraction() const {
    constexpr int64_t kMax = int64_t{1} << 20;
    int64_t r0 = static_cast<int64_t>(kPrime), r1 = static_cast<int64_t>(word), t0 = 0, t1 = 1;
    while (r1 >= kMax) {
      const int64_t q = r0 / r1;
      r0 = std::exchange(r1, r0 - q * r1);
      t0 = std::exchange(t1, t0 - q * t1);
      if (std::abs(t1) >= kMax) return std::nullopt;
    }
    return t1 < 0 ? std::pair{-r1, -t1} : std::pair{r1, t1};
  }

  // The element of a constant of a program: the fraction n / d, with d at most 2^20, to which it is
  // equal up to rounding of binary64 (1/3, 0.9); else its exact value m 2^e. Infinities and NaN are
  // elements of their own.
  static Field61 constant(double x) {
    if (!std::isfinite(x)) return {std::bit_cast<uint64_t>(x) % kPrime};
    double rest = std::fabs(x);
    int64_t n0 = 0, n1 = 1, d0 = 1, d1 = 0;  // the last two convergents of the continued fraction
    while (rest < 0x1p31) {
      const auto q = static_cast<int64_t>(rest);
      const int64_t n = q * n1 + n0, d = q * d1 + d0;
      if (d > (1 << 20) || n >= (int64_t{1} << 31)) break;
      n0 = std::exchange(n1, n);
      d0 = std::exchange(d1, d);
      const double found = static_cast<double>(n) / static_cast<double>(d);
      if (std::fabs(found - std::fabs(x)) <= std::fabs(x) * 0x1p-51)
        return of(x < 0 ? -n : n) / of(d);
      rest = 1 / (rest - static_cast<double>(q));
    }
    int exponent = 0;
    const auto mantissa = static_cast<int64_t>(std::ldexp(std::frexp(x, &exponent), 53));
    const int shift = ((exponent - 53) % 61 + 61) % 61;
    return of(mantissa) * Field61{uint64_t{1} << shift};
  }
};

// Inverts all elements in place by one division (Montgomery's trick). Zeros stay zero.
inline void invert_all(std::span<Field61> x) {
  std::vector<Field61> before(x.size());
  Field61 product{1};
  for (size_t i = 0; i < x.size(); ++i) {
    before[i] = product;
    if (x[i].word != 0) product = product * x[i];
  }
  Field61 rest = product.inverse();
  for (size_t i = x.size(); i-- > 0;) {
    if (x[i].word == 0) continue;
    const Field61 own = x[i];
    x[i] = rest * before[i];
    rest = rest * own;
  }
}

}  // namespace twinrun
