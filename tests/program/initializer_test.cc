// Tests of initialisers: their names, the distributions that they draw from, and what they refuse.
#include "program/graph/initializer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <string>

#include "program/base/bits.h"
#include "program/base/digest.h"
#include "program/base/philox.h"
#include "program/graph/initial_state.h"
#include "program/graph/orthogonal.h"

namespace twinrun {
namespace {

constexpr uint64_t kDrawSeed = 7;

// The initial value of a variable with these dimensions.
Tensor drawn(const Initializer& init, Dims dims, uint64_t seed = kDrawSeed) {
  Program p;
  StateVar var;
  var.name = "w";
  var.type = {DType::kF32, std::move(dims)};
  var.init = init;
  p.state = {var};
  return initial_state(p, seed)[0];
}
Tensor drawn(std::string_view name, const Dims& dims) {
  const Result<Initializer> init = named_initializer(name, dims);
  EXPECT_TRUE(init.ok()) << name;
  return drawn(*init, dims);
}

struct Moments {
  double mean = 0, variance = 0, low = 0, high = 0, n = 0;
};
Moments moments(const Tensor& t) {
  Moments m;
  m.n = static_cast<double>(t.elements());
  for (float x : t.as<float>()) {
    m.mean += x;
    m.variance += double{x} * x;
    m.low = std::min(m.low, double{x});
    m.high = std::max(m.high, double{x});
  }
  m.mean /= m.n;
  m.variance /= m.n;  // about 0, the mean of every distribution here
  return m;
}
// Expects mean 0 and the given variance to within five standard deviations of the estimates, which
// are sigma / sqrt n and sigma^2 sqrt((kurtosis - 1) / n).
void expect_moments(const Moments& m, double variance, double kurtosis, const std::string& what) {
  EXPECT_NEAR(m.mean, 0, 5 * std::sqrt(variance / m.n)) << what;
  EXPECT_NEAR(m.variance, variance, 5 * variance * std::sqrt((kurtosis - 1) / m.n)) << what;
}

constexpr double kUniformKurtosis = 1.8, kNormalKurtosis = 3;
// Moments of the standard normal distribution truncated to [-2, 2]: with
// r = 2 phi(2) / (Phi(2) - Phi(-2)), E z^2 = 1 - 2 r and E z^4 = 3 E z^2 - 8 r.
const double kRatio =
    2 * std::exp(-2.0) / std::sqrt(2 * std::numbers::pi) / std::erf(std::numbers::sqrt2);
const double kTruncatedVariance = 1 - 2 * kRatio;
const double kTruncatedKurtosis =
    (3 * kTruncatedVariance - 8 * kRatio) / (kTruncatedVariance * kTruncatedVariance);

TEST(Initializer, EveryNameIsKnown) {
  std::string_view names = kInitializerNames;
  int count = 0;
  while (!names.empty()) {
    const size_t bar = names.find('|');
    EXPECT_TRUE(named_initializer(names.substr(0, bar), {4, 6}).ok()) << names.substr(0, bar);
    names = bar == std::string_view::npos ? "" : names.substr(bar + 1);
    ++count;
  }
  EXPECT_EQ(count, 18);
}

TEST(Initializer, Refuses) {
  const Result<Initializer> unknown = named_initializer("he_norml", {4, 6});
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().fix, "did you mean 'he_normal'?");
  EXPECT_NE(unknown.error().what.find("he_norml"), std::string::npos);
  EXPECT_FALSE(named_initializer("orthogonal", {4}).ok());
  EXPECT_TRUE(named_initializer("orthogonal", {3, 3, 4, 8}).ok());
  EXPECT_FALSE(named_initializer("identity", {4}).ok());
  EXPECT_FALSE(named_initializer("identity", {2, 2, 2}).ok());
  Initializer init;
  init.stddev = -1;
  EXPECT_FALSE(check_initializer(init, {4}).ok());
  init = {};
  init.scale = NAN;
  EXPECT_FALSE(check_initializer(init, {4}).ok());
  init = {};
  init.low = 1;
  EXPECT_FALSE(check_initializer(init, {4}).ok());
  EXPECT_TRUE(check_initializer({}, {4}).ok());
}

TEST(Initializer, Fans) {
  const auto expect = [](const Dims& dims, int64_t in, int64_t out) {
    EXPECT_EQ(fans_of(dims).in, in) << to_string(dims);
    EXPECT_EQ(fans_of(dims).out, out) << to_string(dims);
  };
  expect({}, 1, 1);
  expect({5}, 5, 5);
  expect({5, 7}, 5, 7);
  expect({3, 3, 16, 32}, 144, 288);
  expect({4, 8, 16}, 32, 64);
}

TEST(Initializer, ConstantsAndIdentity) {
  const Tensor zeros = drawn("zeros", {5}), ones = drawn("ones", {5});
  for (float x : zeros.as<float>()) EXPECT_EQ(to_bits(x), 0u);
  for (float x : ones.as<float>()) EXPECT_EQ(x, 1);
  Initializer init = *named_initializer("identity", {3, 5});
  init.gain = 2.5;
  const Tensor t = drawn(init, {3, 5});
  for (size_t i = 0; i < 15; ++i) EXPECT_EQ(t.as<float>()[i], i % 6 == 0 && i < 13 ? 2.5f : 0.0f);
}

// The bits of glorot_uniform, fixed since contract version 0, are those of variance scaling.
TEST(Initializer, GlorotUniformIsVarianceScaling) {
  Initializer init = *named_initializer("variance_scaling", {30, 50});
  init.fan = Initializer::Fan::kAverage;
  init.distribution = Initializer::Distribution::kUniform;
  EXPECT_TRUE(drawn("glorot_uniform", {30, 50}).same_bits(drawn(init, {30, 50})));
}

TEST(Initializer, UniformLaws) {
  struct Case {
    const char* name;
    double limit;
  };
  for (const auto& [name, limit] :
       {Case{"random_uniform", 0.05}, Case{"glorot_uniform", std::sqrt(6.0 / 500)},
        Case{"he_uniform", std::sqrt(6.0 / 200)}, Case{"lecun_uniform", std::sqrt(3.0 / 200)}}) {
    const Moments m = moments(drawn(name, {200, 300}));
    expect_moments(m, limit * limit / 3, kUniformKurtosis, name);
    // The probability that all 60,000 draws miss the outer thousandth of one side is exp(-30).
    EXPECT_GE(m.low, -limit * (1 + 0x1p-24)) << name;
    EXPECT_LE(m.high, limit * (1 + 0x1p-24)) << name;
    EXPECT_LT(m.low, -0.999 * limit) << name;
    EXPECT_GT(m.high, 0.999 * limit) << name;
  }
  Initializer init = *named_initializer("random_uniform", {1000});
  init.low = 2;
  init.high = 3;
  const Tensor moved = drawn(init, {1000});
  for (float x : moved.as<float>()) EXPECT_TRUE(x >= 2 && x <= 3) << x;
}

TEST(Initializer, NormalLaws) {
  expect_moments(moments(drawn("random_normal", {200, 300})), 0.05 * 0.05, kNormalKurtosis,
                 "random_normal");
  Initializer init = *named_initializer("variance_scaling", {200, 300});
  init.distribution = Initializer::Distribution::kUntruncatedNormal;
  init.fan = Initializer::Fan::kOut;
  expect_moments(moments(drawn(init, {200, 300})), 1.0 / 300, kNormalKurtosis, "untruncated");
}

// Keras's forms have the requested variance after truncation, TensorFlow 1's forms a smaller one.
TEST(Initializer, TruncatedLaws) {
  ASSERT_NEAR(std::sqrt(kTruncatedVariance), 0.87962566103423978, 1e-15);
  struct Case {
    const char* name;
    double variance;
    bool corrected;
  };
  for (const auto& [name, wanted, corrected] :
       {Case{"truncated_normal", 0.05 * 0.05, false}, Case{"glorot_normal", 2.0 / 500, true},
        Case{"he_normal", 2.0 / 200, true}, Case{"lecun_normal", 1.0 / 200, true},
        Case{"variance_scaling", 1.0 / 200, true},
        Case{"glorot_normal_uncorrected", 2.0 / 500, false},
        Case{"he_normal_uncorrected", 2.0 / 200, false},
        Case{"lecun_normal_uncorrected", 1.0 / 200, false}}) {
    const Moments m = moments(drawn(name, {200, 300}));
    expect_moments(m, corrected ? wanted : wanted * kTruncatedVariance, kTruncatedKurtosis, name);
    const double end = 2 * std::sqrt(corrected ? wanted / kTruncatedVariance : wanted);
    EXPECT_GE(m.low, -end * (1 + 0x1p-24)) << name;
    EXPECT_LE(m.high, end * (1 + 0x1p-24)) << name;
    // 0.297 % of the draws lie beyond 1.95 of 2 on each side. The probability that 60,000 draws
    // miss that is exp(-170).
    EXPECT_LT(m.low, -0.975 * end) << name;
    EXPECT_GT(m.high, 0.975 * end) << name;
  }
}

// erfc maps each number back to its draw: p = Phi(x / stddev). The rounding of x to binary32
// changes p by at most phi(z) |z| 2^-24 < 2^-25.
TEST(Initializer, NormalsAreQuantilesOfTheirDraws) {
  const auto phi = [](double z) { return std::erfc(-z / std::numbers::sqrt2) / 2; };
  const Tensor plain = drawn("random_normal", {4096}), cut = drawn("truncated_normal", {4096});
  for (size_t i = 0; i < 4096; ++i) {
    const double p = (draw({kDrawSeed, kStreamInit}, 0, 0, i) + 0.5) * 0x1p-32;
    ASSERT_NEAR(phi(double{plain.as<float>()[i]} / 0.05), p, 0x1p-25);
    const double inner = (phi(double{cut.as<float>()[i]} / 0.05) - phi(-2)) / (phi(2) - phi(-2));
    ASSERT_NEAR(inner, p, 0x1p-24);
  }
}

// The digests come from an independent program: Philox in Python, statistics.NormalDist().inv_cdf,
// struct.pack("<f").
TEST(Initializer, GoldenDigests) {
  EXPECT_EQ(digest(drawn("random_normal", {64, 48})).hex(), "cffc4596ac0ec459b82cb94c953a2a24");
  EXPECT_EQ(digest(drawn("he_normal", {64, 48})).hex(), "d3c9b5fa850718cd71f29da50f0ae0f6");
}

// Compares with Gram-Schmidt in long double on the same draws: the positive diagonal of R makes Q
// unique. The condition of the matrix is below 100, so that both Q agree to far less than one
// rounding to binary32.
void expect_orthogonal(const Dims& dims, int64_t rows, int64_t columns) {
  Initializer init = *named_initializer("orthogonal", dims);
  init.gain = 3;
  const Tensor w = drawn(init, dims);
  const int64_t most = std::max(rows, columns), least = std::min(rows, columns);
  Initializer normal = *named_initializer("random_normal", dims);
  normal.stddev = 1;
  std::vector<double> a(static_cast<size_t>(most * least));
  const Tensor z = drawn(normal, dims);
  for (size_t i = 0; i < a.size(); ++i) a[i] = z.as<float>()[i];
  // q[column][row]. A second pass removes what the first one leaves of the other columns.
  std::vector<std::vector<long double>> q(static_cast<size_t>(least));
  for (size_t c = 0; c < q.size(); ++c) {
    q[c].resize(static_cast<size_t>(most));
    for (size_t i = 0; i < q[c].size(); ++i) q[c][i] = a[i * q.size() + c];
    for (int pass = 0; pass < 2; ++pass) {
      for (size_t k = 0; k < c; ++k) {
        long double dot = 0;
        for (size_t i = 0; i < q[c].size(); ++i) dot += q[k][i] * q[c][i];
        for (size_t i = 0; i < q[c].size(); ++i) q[c][i] -= dot * q[k][i];
      }
    }
    long double squares = 0;
    for (long double x : q[c]) squares += x * x;
    for (long double& x : q[c]) x /= std::sqrt(squares);
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const auto column = static_cast<size_t>(rows >= columns ? j : i);
      const auto row = static_cast<size_t>(rows >= columns ? i : j);
      // The draws were rounded to binary32 here: an error of 2^-24 each, times the condition.
      ASSERT_NEAR(w.as<float>()[static_cast<size_t>(i * columns + j)],
                  static_cast<double>(3 * q[column][row]), 3 * 100 * 0x1p-24)
          << i << " " << j;
    }
  }
}
TEST(Initializer, Orthogonal) {
  expect_orthogonal({40, 10}, 40, 10);
  expect_orthogonal({10, 40}, 10, 40);
  expect_orthogonal({3, 3, 4, 8}, 36, 8);
  expect_orthogonal({1, 5}, 1, 5);
}

// Q^T Q = I and Q R = A, where R is upper triangular with a positive diagonal. The backward error
// of Householder's method is below c m n u with a small c (Higham, Accuracy and Stability, 19.3):
// 60 * 30 * 2^-53 * 10.
TEST(Initializer, QrFactorsTheMatrix) {
  constexpr int64_t kRows = 60, kColumns = 30;
  constexpr double kError = 60 * 30 * 10 * 0x1p-53;
  std::vector<double> a(kRows * kColumns);
  for (size_t i = 0; i < a.size(); ++i) a[i] = 2 * uniform(draw({3, 1}, 0, 0, i)) - 1;
  for (int64_t i = 0; i < kRows; ++i)
    a[static_cast<size_t>(i * kColumns)] = -std::fabs(a[static_cast<size_t>(i * kColumns)]);
  const std::vector<double> q = orthonormal_columns(a, kRows, kColumns);
  const auto dot = [&](const std::vector<double>& x, int64_t c, const std::vector<double>& y,
                       int64_t d) {
    double sum = 0;
    for (int64_t i = 0; i < kRows; ++i)
      sum += x[static_cast<size_t>(i * kColumns + c)] * y[static_cast<size_t>(i * kColumns + d)];
    return sum;
  };
  for (int64_t c = 0; c < kColumns; ++c) {
    for (int64_t d = 0; d < kColumns; ++d) {
      EXPECT_NEAR(dot(q, c, q, d), c == d ? 1 : 0, kError);
      // The norm of each column of a is below 8.
      if (c > d) {
        EXPECT_NEAR(dot(q, c, a, d), 0, kError * 8);
      }
    }
    EXPECT_GT(dot(q, c, a, c), 0.1);
  }
}

TEST(Initializer, QrOfAZeroColumn) {
  const std::vector<double> q = orthonormal_columns({0, 1, 0, 2, 0, 2}, 3, 2);
  for (double x : q) EXPECT_TRUE(std::isfinite(x));
}

}  // namespace
}  // namespace twinrun
