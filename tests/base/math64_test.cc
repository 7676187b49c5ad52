// Tests of the binary64 functions whose bits are defined: their bits, and their errors against
// MPFR.
#include "program/base/math64.h"

#include <gtest/gtest.h>
#include <mpfr.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <vector>

namespace twinrun {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Truth = std::function<void(mpfr_ptr out, mpfr_srcptr in)>;
Truth of(int (*f)(mpfr_ptr, mpfr_srcptr, mpfr_rnd_t)) {
  return [f](mpfr_ptr out, mpfr_srcptr in) { f(out, in, MPFR_RNDN); };
}
void true_cos_pi(mpfr_ptr out, mpfr_srcptr in) {
  mpfr_const_pi(out, MPFR_RNDN);
  mpfr_mul(out, out, in, MPFR_RNDN);
  mpfr_cos(out, out, MPFR_RNDN);
}
// Solves erfc(-z / sqrt 2) / 2 = p by Newton's method in 200 bits, far more than binary64 has,
// starting from our result: each step doubles the number of correct bits.
void true_quantile(mpfr_ptr z, mpfr_srcptr p) {
  mpfr_t value, slope;
  mpfr_inits2(200, value, slope, static_cast<mpfr_ptr>(nullptr));
  mpfr_set_d(z, math64::normal_quantile(mpfr_get_d(p, MPFR_RNDN)), MPFR_RNDN);
  for (int i = 0; i < 3; ++i) {
    mpfr_div_d(value, z, -1, MPFR_RNDN);
    mpfr_set_ui(slope, 2, MPFR_RNDN);
    mpfr_sqrt(slope, slope, MPFR_RNDN);
    mpfr_div(value, value, slope, MPFR_RNDN);
    mpfr_erfc(value, value, MPFR_RNDN);
    mpfr_div_ui(value, value, 2, MPFR_RNDN);
    mpfr_sub(value, value, p, MPFR_RNDN);
    mpfr_const_pi(slope, MPFR_RNDN);  // phi(z) = exp(-z^2 / 2) / sqrt(2 pi)
    mpfr_mul_ui(slope, slope, 2, MPFR_RNDN);
    mpfr_sqrt(slope, slope, MPFR_RNDN);
    mpfr_mul(value, value, slope, MPFR_RNDN);
    mpfr_sqr(slope, z, MPFR_RNDN);
    mpfr_div_ui(slope, slope, 2, MPFR_RNDN);
    mpfr_exp(slope, slope, MPFR_RNDN);
    mpfr_mul(value, value, slope, MPFR_RNDN);
    mpfr_sub(z, z, value, MPFR_RNDN);
  }
  mpfr_clears(value, slope, static_cast<mpfr_ptr>(nullptr));
}

// The largest relative error. Where the true value is 0, any other result is an infinite error.
double worst_error(double (*ours)(double), const Truth& truth, const std::vector<double>& xs) {
  mpfr_t in, out, gap;
  mpfr_inits2(200, in, out, gap, static_cast<mpfr_ptr>(nullptr));
  double worst = 0;
  for (double x : xs) {
    mpfr_set_d(in, x, MPFR_RNDN);
    truth(out, in);
    mpfr_d_sub(gap, ours(x), out, MPFR_RNDN);
    if (mpfr_zero_p(gap)) continue;
    mpfr_div(gap, gap, out, MPFR_RNDN);
    worst = std::max(worst, std::fabs(mpfr_get_d(gap, MPFR_RNDN)));
  }
  mpfr_clears(in, out, gap, static_cast<mpfr_ptr>(nullptr));
  return worst;
}

double unit(std::mt19937_64& g) { return static_cast<double>(g() >> 11) * 0x1p-53; }

// Positive numbers from all binades, and many around 1.
std::vector<double> positive() {
  std::mt19937_64 g(1);
  std::vector<double> xs = {1,
                            0.75,
                            1.5,
                            std::nextafter(1, 0),
                            std::nextafter(1, 2),
                            0x1p-1074,
                            std::numeric_limits<double>::max(),
                            0x1p-1022};
  for (int i = 0; i < 2000; ++i) {
    xs.push_back(std::ldexp(1 + unit(g), static_cast<int>(g() % 2046) - 1022));
    xs.push_back(0.5 + unit(g) * 1.5);
    xs.push_back(1 + (unit(g) - 0.5) * std::ldexp(1, -static_cast<int>(g() % 50)));
  }
  return xs;
}

TEST(Math64, Log) { EXPECT_LT(worst_error(math64::log, of(mpfr_log), positive()), 0x1p-50); }
TEST(Math64, Log2) { EXPECT_LT(worst_error(math64::log2, of(mpfr_log2), positive()), 0x1p-50); }

TEST(Math64, Exp2) {
  std::mt19937_64 g(2);
  std::vector<double> xs = {0, 1, -1, 1023, -1022, 0.5, -0.5};
  for (int i = 0; i < 2000; ++i) {
    xs.push_back((unit(g) - 0.5) * 2044);
    xs.push_back((unit(g) - 0.5) * 4);
    xs.push_back((unit(g) - 0.5) * std::ldexp(1, -static_cast<int>(g() % 60)));
  }
  EXPECT_LT(worst_error(math64::exp2, of(mpfr_exp2), xs), 0x1p-50);
}

TEST(Math64, CosPi) {
  std::mt19937_64 g(3);
  std::vector<double> xs = {0.25, 0.75, std::nextafter(0.25, 1), std::nextafter(0.75, 0)};
  for (int i = 0; i < 2000; ++i) {
    xs.push_back(unit(g));
    xs.push_back(0.5 + (unit(g) - 0.5) * std::ldexp(1, -static_cast<int>(g() % 40)));
    xs.push_back(std::ldexp(unit(g), -static_cast<int>(g() % 40)));
  }
  EXPECT_LT(worst_error(math64::cos_pi, true_cos_pi, xs), 0x1p-50);
}

TEST(Math64, NormalQuantile) {
  std::mt19937_64 g(4);
  // Start with the points where the three formulas meet: 0.075 and exp(-25).
  std::vector<double> xs = {0.075, std::nextafter(0.075, 0), 0.925, 1.3887943864964021e-11, 1e-300};
  for (int i = 0; i < 300; ++i) {
    xs.push_back(unit(g) + 0x1p-60);
    xs.push_back((static_cast<double>(g() >> 32) + 0.5) * 0x1p-32);
    xs.push_back(std::ldexp(1 + unit(g), -2 - static_cast<int>(g() % 1000)));
    xs.push_back(1 - std::ldexp(1 + unit(g), -2 - static_cast<int>(g() % 48)));
  }
  EXPECT_LT(worst_error(math64::normal_quantile, true_quantile, xs), 0x1p-49);
}

TEST(Math64, Edges) {
  using namespace math64;
  for (auto f : {math64::log, math64::log2}) {
    EXPECT_EQ(f(0), -kInfinity);
    EXPECT_EQ(f(-0.0), -kInfinity);
    EXPECT_EQ(f(kInfinity), kInfinity);
    EXPECT_TRUE(std::isnan(f(-1)));
    EXPECT_TRUE(std::isnan(f(NAN)));
    EXPECT_EQ(f(1), 0);
  }
  EXPECT_EQ(math64::log2(0x1p-1074), -1074);
  EXPECT_EQ(math64::exp2(kInfinity), kInfinity);
  EXPECT_EQ(math64::exp2(-kInfinity), 0);
  EXPECT_EQ(math64::exp2(-1074), 0x1p-1074);
  EXPECT_EQ(math64::exp2(1024), kInfinity);
  EXPECT_TRUE(std::isnan(math64::exp2(NAN)));
  EXPECT_EQ(math64::cos_pi(0), 1);
  EXPECT_EQ(math64::cos_pi(0.5), 0);
  EXPECT_EQ(math64::cos_pi(1), -1);
  for (double x : {-0x1p-1074, std::nextafter(1, 2), double{NAN}})
    EXPECT_TRUE(std::isnan(math64::cos_pi(x)));
  EXPECT_EQ(normal_quantile(0.5), 0);
  EXPECT_EQ(normal_quantile(0), -kInfinity);
  EXPECT_EQ(normal_quantile(1), kInfinity);
  for (double p : {-0x1p-1074, 1.5, double{NAN}}) EXPECT_TRUE(std::isnan(normal_quantile(p)));
  EXPECT_EQ(power(0, 2), 0);
  EXPECT_EQ(power(0, 0), 1);
  EXPECT_EQ(power(0.3, 1), 0.3);
  EXPECT_EQ(power(1, 7.5), 1);
  EXPECT_NEAR(power(0.3, 0.5), std::sqrt(0.3), 0x1p-50);
}

// The exponential schedule of contract version 1 depends on these bits. The digest was taken from
// the earlier implementation in scenarios/model.cc.
TEST(Math64, BitsOfTheExponentialSchedule) {
  uint64_t digest = 0xCBF29CE484222325u;  // FNV-1a over words
  const auto add = [&](double x) {
    digest = (digest ^ std::bit_cast<uint64_t>(x)) * 0x100000001B3u;
  };
  for (int i = 1; i < 3000; ++i) {
    const double rate = i / 3000.0;
    add(math64::log2(rate));
    add(math64::exp2(i / 7.0 * math64::log2(rate)));
    add(math64::exp2((i - 1500) / 13.0));
  }
  EXPECT_EQ(digest, 0x28EE196AD654B5D0u);
}

}  // namespace
}  // namespace twinrun
