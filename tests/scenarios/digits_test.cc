// Tests the procedural data source digits.
#include <gtest/gtest.h>

#include <array>

#include "scenarios/data/feed.h"

namespace twinrun {
namespace {

Dataset open(DataRequest request) {
  auto data = open_dataset(request);
  EXPECT_TRUE(data.ok()) << data.error().message();
  return data.ok() ? *data : Dataset{};
}

// The same pixels on every machine and compiler. A change here changes every run on digits.
TEST(Digits, GoldenDigest) {
  const Dataset data = open({});
  EXPECT_EQ(data.description, "digits: 4096 + 1024 of f32[28,28,1], 10 classes");
  EXPECT_EQ(data.digest.hex(), "c5d3d0e56819bbc901c8ea2d9449696b");
  EXPECT_EQ(open({.seed = 1}).digest.hex(), "0d06e79fdb03b2861d9eb811cb2986e5");
}

TEST(Digits, ClassesAreBalanced) {
  const Dataset data = open({});
  for (const Samples* part : {&data.train, &data.eval}) {
    std::array<int64_t, 10> counts{};
    for (const int32_t label : part->labels.as<int32_t>()) counts.at(static_cast<size_t>(label))++;
    for (const int64_t count : counts) {
      EXPECT_GE(count, part->labels.elements() / 10);
      EXPECT_LE(count, part->labels.elements() / 10 + 1);
    }
  }
}

TEST(Digits, PixelsAreBytesOver255WithInkInEveryImage) {
  const Dataset data = open({.train = 500, .eval = 10});
  const auto pixels = data.train.features.as<float>();
  for (size_t i = 0; i < 500; ++i) {
    float brightest = 0;
    for (size_t k = 0; k < 784; ++k) {
      const float pixel = pixels[i * 784 + k];
      ASSERT_GE(pixel, 0.0f);
      ASSERT_LE(pixel, 1.0f);
      ASSERT_EQ(static_cast<float>(static_cast<int>(pixel * 255.0f + 0.5f)) / 255.0f, pixel);
      brightest = std::max(brightest, pixel);
    }
    EXPECT_GT(brightest, 0.5f) << i;
  }
}

// A sample depends only on its own number, not on how many samples are requested.
TEST(Digits, CountsDoNotChangeSamples) {
  const Dataset large = open({.train = 200, .eval = 100}), small = open({.train = 50, .eval = 20});
  EXPECT_TRUE(small.train.features.same_bits(large.train.features.rows(0, 50).clone()));
  EXPECT_TRUE(small.eval.features.same_bits(large.eval.features.rows(0, 20).clone()));
  EXPECT_FALSE(small.eval.features.same_bits(large.train.features.rows(0, 20).clone()));
}

TEST(Digits, RefusesWhatItHasNot) {
  EXPECT_FALSE(open_dataset({.classes = 11}).ok());
  EXPECT_FALSE(open_dataset({.shape = {32, 32, 1}}).ok());
  EXPECT_FALSE(open_dataset({.train = -1}).ok());
  const auto many = open_dataset({.train = 1'000'001, .where = "a.toml: [data]"});
  ASSERT_FALSE(many.ok());
  EXPECT_EQ(many.error().message(),
            "a.toml: [data]: data.train is 1000001; allowed: 1 to 1000000\n"
            "  fix: set data.train = 1000000");
  EXPECT_FALSE(open_dataset({.source = "cifar"}).ok());
}

}  // namespace
}  // namespace twinrun
