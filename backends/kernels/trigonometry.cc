// sin and cos over arrays, correctly rounded for every finite argument, however large: the argument
// modulo 2 pi by a product with 192 bits of 2 / pi (Payne and Hanek, 1983), series in binary64,
// Ziv's test, and the series again in binary128 where binary64 does not decide the rounding.
#include <bit>
#include <cmath>

#include "backends/kernels/arithmetic.h"
#include "backends/kernels/elementary.h"

namespace twinrun {
namespace {

__extension__ typedef unsigned __int128 U128;
__extension__ typedef __int128 I128;

// 32 zero bits, then the bits of 2 / pi behind its binary point.
constexpr uint64_t kTwoOverPi[] = {0x00000000a2f9836eu, 0x4e441529fc2757d1u, 0xf534ddc0db629599u,
                                   0x3c439041fe5163abu, 0xdebbc561b7246e3au, 0x424dd2e006492eeau};
constexpr double kHalfPi = 0x1.921fb54442d18p+0, kHalfPib = 0x1.1a62633145c07p-54,
                 kHalfPic = -0x1.f1976b7ed8fbcp-110;
constexpr uint32_t kQuarterPi = 0x3f490fdb;  // pi / 4 as binary32

// |x| = (quadrant + turn / 2^128) pi / 2 modulo 2 pi, with turn / 2^128 in [-1/2, 1/2]. The
// fraction is exact to 2^-126, and no binary32 number is closer than 2^-31 to a multiple of pi / 2.
struct Angle {
  unsigned quadrant = 0;
  I128 turn = 0;
};

uint64_t bits_at(unsigned start) {
  const unsigned word = start / 64, shift = start % 64;
  const uint64_t high = kTwoOverPi[word] << shift;
  return shift == 0 ? high : high | kTwoOverPi[word + 1] >> (64 - shift);
}

Angle angle_of(uint32_t magnitude) {  // above pi / 4
  const U128 m = (magnitude & 0x7FFFFFu) | 0x800000u;
  // |x| = m 2^e. Bits of 2 / pi whose product with it is a multiple of 4 are left out: the window
  // of 192 bits begins where 2^e times the bit is 2.
  const auto e = static_cast<int>(magnitude >> 23) - 150;
  const auto start = static_cast<unsigned>(e + 30);
  const U128 low = m * bits_at(start + 128), middle = m * bits_at(start + 64) + (low >> 64),
             high = m * bits_at(start) + (middle >> 64);
  const U128 product = (high << 64) | static_cast<uint64_t>(middle);
  Angle a;
  a.quadrant = static_cast<unsigned>(product >> 126);
  a.turn = static_cast<I128>(product << 2);
  if (a.turn < 0) ++a.quadrant;  // the fraction is at least 1/2, and turn is the fraction - 1
  return a;
}

// Taylor series for |r| <= 0.7854; the first omitted terms are below 2^-62. The argument's relative
// error is at most 3 * 2^-53, and so is what it costs the results; the last operations add 2^-52.
double sin_series(double r) {
  const double z = r * r;
  double q = 1.0 / 355687428096000.0;
  q = std::fma(q, z, -1.0 / 1307674368000.0);
  q = std::fma(q, z, 1.0 / 6227020800.0);
  q = std::fma(q, z, -1.0 / 39916800.0);
  q = std::fma(q, z, 1.0 / 362880.0);
  q = std::fma(q, z, -1.0 / 5040.0);
  q = std::fma(q, z, 1.0 / 120.0);
  q = std::fma(q, z, -1.0 / 6.0);
  return std::fma(r * z, q, r);
}
double cos_series(double r) {
  const double z = r * r;
  double q = -1.0 / 6402373705728000.0;
  q = std::fma(q, z, 1.0 / 20922789888000.0);
  q = std::fma(q, z, -1.0 / 87178291200.0);
  q = std::fma(q, z, 1.0 / 479001600.0);
  q = std::fma(q, z, -1.0 / 3628800.0);
  q = std::fma(q, z, 1.0 / 40320.0);
  q = std::fma(q, z, -1.0 / 720.0);
  q = std::fma(q, z, 1.0 / 24.0);
  q = std::fma(q, z, -0.5);
  return std::fma(z, q, 1.0);
}
// The same in binary128, to 2^-110.
Quad sin_series(Quad r) {
  Quad sum = 1;
  for (int k = 30; k >= 2; k -= 2) sum = 1 - sum * r * r / (k * (k + 1));
  return r * sum;
}
Quad cos_series(Quad r) {
  Quad sum = 1;
  for (int k = 29; k >= 1; k -= 2) sum = 1 - sum * r * r / (k * (k + 1));
  return sum;
}

template <typename T>
T radians(const Angle& a);
template <>
double radians<double>(const Angle& a) {
  return static_cast<double>(a.turn) * 0x1p-128 * kHalfPi;
}
template <>
Quad radians<Quad>(const Angle& a) {
  return Quad(a.turn) * Quad(0x1p-128) * (Quad(kHalfPi) + Quad(kHalfPib) + Quad(kHalfPic));
}

// sin(x + quarters pi / 2): sin x for 0, cos x for 1.
template <typename T>
T shifted_sine(float x, unsigned quarters) {
  const uint32_t bits = to_bits(x), magnitude = bits & 0x7FFFFFFFu;
  unsigned quadrant = quarters;
  T r = x;
  if (magnitude > kQuarterPi) {
    const Angle a = angle_of(magnitude);
    const bool negative = bits >> 31 != 0;
    quadrant = negative ? quarters - a.quadrant : quarters + a.quadrant;
    r = negative ? -radians<T>(a) : radians<T>(a);
  }
  const T y = (quadrant & 1u) != 0 ? cos_series(r) : sin_series(r);
  return (quadrant & 2u) != 0 ? -y : y;
}

float rounded(float x, unsigned quarters) {
  if ((to_bits(x) & 0x7F800000u) == 0x7F800000u) return from_bits(kCanonicalNaN);
  if (x == 0 && quarters == 0) return std::copysign(0.0f, x);  // denormals too, under DAZ
  constexpr double kError = 0x1p-48;
  const auto v = shifted_sine<double>(x, quarters);
  const auto low = narrowed(std::fma(v, -kError, v)), high = narrowed(std::fma(v, kError, v));
  return to_bits(low) == to_bits(high) ? low : static_cast<float>(shifted_sine<Quad>(x, quarters));
}

}  // namespace

void sin_array(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = rounded(x[i], 0);
}
void cos_array(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = rounded(x[i], 1);
}
float sin_f32(float x) { return rounded(x, 0); }
float cos_f32(float x) { return rounded(x, 1); }
double sin_unrounded(float x) { return shifted_sine<double>(x, 0); }
double cos_unrounded(float x) { return shifted_sine<double>(x, 1); }

}  // namespace twinrun
