// Tests of the seeded initial state: its bits, its range, and what it must not depend on.
#include "program/graph/initial_state.h"

#include <gtest/gtest.h>

#include <cmath>

#include "program/base/bits.h"
#include "program/base/philox.h"
#include "tests/program/models.h"

namespace twinrun {
namespace {

constexpr uint64_t kSeed = 0x123456789ABCDEFu;

// The digests come from an independent program: Philox and the formula in Python, rounded by
// struct.pack("<f").
TEST(InitialState, GoldenDigests) {
  const std::vector<Tensor> s = initial_state(models::mlp(), kSeed);
  EXPECT_EQ(digest(s[0]).hex(), "808263c5573eb8f8182e223c8040bcf2") << "dense1/kernel";
  EXPECT_EQ(digest(s[2]).hex(), "cfb473c6e6b954b56e7b3ec58b614d40") << "dense2/kernel: parameter 2";
  EXPECT_EQ(s[0].as<float>()[0], 0.040650900453329086f);
}

TEST(InitialState, GlorotBoundsAndMoments) {
  Layers net(Mode::kTraining, 2, {{300}}, 1);
  net.dense("dense1", 200);
  net.softmax_cross_entropy(200, {Reducer::kMean});
  const std::vector<Tensor> s = initial_state(net.finish({}), 3);
  const double limit = std::sqrt(6.0 / 500), n = 60000;
  double sum = 0, squares = 0, largest = 0;
  for (float w : s[0].as<float>()) {
    sum += w;
    squares += double{w} * w;
    largest = std::max(largest, std::fabs(double{w}));
  }
  EXPECT_LE(largest, static_cast<float>(limit));
  EXPECT_GT(largest, 0.999 * limit);
  // Uniform on [-l, l]: the variance is l^2/3, that of the square 4 l^4/45. Allow five standard
  // deviations.
  EXPECT_NEAR(sum / n, 0, 5 * limit / std::sqrt(3 * n));
  EXPECT_NEAR(squares / n, limit * limit / 3, 5 * limit * limit * std::sqrt(4.0 / 45 / n));
  for (float b : s[1].as<float>()) EXPECT_EQ(to_bits(b), 0u);
}

TEST(InitialState, ConvolutionFans) {
  const Program p = models::cnn();
  const Initializer& init = p.find_state("conv1/kernel")->init;
  EXPECT_EQ(init.fan_in, 3 * 3 * 2);
  EXPECT_EQ(init.fan_out, 3 * 3 * 4);
  double largest = 0;
  const Tensor kernel = initial_state(p, 1)[0];
  for (float w : kernel.as<float>()) largest = std::max(largest, std::fabs(double{w}));
  EXPECT_LE(largest, std::sqrt(6.0 / (18 + 36)));
  EXPECT_GT(largest, 0.8 * std::sqrt(6.0 / (18 + 36)));
}

TEST(InitialState, Constants) {
  const Program p = training_step(models::cnn(16, models::adam()));
  const std::vector<Tensor> s = initial_state(p, kSeed);
  ASSERT_EQ(s.size(), p.state.size());
  const auto all = [&](const char* name, float value) {
    for (float v : s[static_cast<size_t>(p.state_index(name))].as<float>())
      EXPECT_EQ(v, value) << name;
  };
  all("bn1/gamma", 1);
  all("bn1/beta", 0);
  all("bn1/moving_mean", 0);
  all("bn1/moving_variance", 1);
  all("conv1/kernel.adam_m", 0);
  all("conv1/kernel.adam_v", 0);
  all("adam/beta1_power", 0.9f);
  all("adam/beta2_power", 0.999f);
  for (size_t i = 0; i < s.size(); ++i) EXPECT_EQ(s[i].type(), p.state[i].type);
}

// Parameters and statistics start with the same bits under any optimizer, sharding and batch.
TEST(InitialState, DependsOnSeedAndVariableAlone) {
  const Program forward = models::cnn();
  const std::vector<Tensor> base = initial_state(forward, kSeed);
  for (const Program& p :
       {training_step(models::cnn(16, models::momentum())),
        training_step(models::cnn(16, models::adam())), training_step(shard(forward, {.cores = 8})),
        models::cnn(4, {}, Mode::kInference)}) {
    const std::vector<Tensor> other = initial_state(p, kSeed);
    ASSERT_GE(other.size(), base.size());
    for (size_t i = 0; i < base.size(); ++i)
      EXPECT_TRUE(base[i].same_bits(other[i])) << p.state[i].name;
  }
  const std::vector<Tensor> reseeded = initial_state(forward, kSeed + 1);
  EXPECT_FALSE(base[0].same_bits(reseeded[0]));
  EXPECT_FALSE(base[0].same_bits(initial_state(forward, kSeed + (uint64_t{1} << 32))[0]));
}

// The random stream of a parameter is its index among the parameters; statistics are not counted.
// dense1/kernel is parameter 3, after conv1/kernel, bn1/gamma and bn1/beta.
TEST(InitialState, StreamIsTheIndexAmongParameters) {
  const Program p = models::cnn();
  const Tensor kernel =
      initial_state(p, kSeed)[static_cast<size_t>(p.state_index("dense1/kernel"))];
  const auto limit = static_cast<float>(std::sqrt(6.0 / (36 + 8)));
  for (uint64_t i = 0; i < 36 * 8; ++i) {
    const float u = uniform(draw({kSeed, kStreamInit + 3}, 0, 0, i));
    ASSERT_EQ(kernel.as<float>()[i], (2 * u - 1) * limit);
  }
}

TEST(InitialState, VariablesHaveTheirOwnStreams) {
  Layers net(Mode::kTraining, 2, {{8}}, 1);
  net.dense("a", 8, {.bias = false});
  net.dense("b", 8, {.bias = false});
  net.softmax_cross_entropy(8, {Reducer::kMean});
  const std::vector<Tensor> s = initial_state(net.finish({}), 5);
  EXPECT_FALSE(s[0].same_bits(s[1]));
}

}  // namespace
}  // namespace twinrun
