// Tests the procedural data source images32.
#include <gtest/gtest.h>

#include <array>

#include "scenarios/data/feed.h"

namespace twinrun {
namespace {

Dataset open(int64_t train, int64_t eval, uint64_t seed = 0) {
  auto data = open_dataset({.source = "images32", .train = train, .eval = eval, .seed = seed});
  EXPECT_TRUE(data.ok()) << data.error().message();
  return data.ok() ? *data : Dataset{};
}

// The pixels must be the same on every machine and compiler. A change here changes every run on
// them. fixtures/procedural.py computes the digest independently.
TEST(Images32, GoldenDigest) {
  const Dataset data = open(500, 100);
  EXPECT_EQ(data.description, "images32: 500 + 100 of f32[32,32,3], 10 classes");
  EXPECT_EQ(data.digest.hex(), "1ed2568d7b48cc5326b5b81362771bae");
  EXPECT_EQ(open(500, 100, 1).digest.hex(), "72e4a0ef2586820d2f666665edb3c173");
}

TEST(Images32, PixelsAreBytesOver255AndNoImageIsFlat) {
  const Dataset data = open(300, 10);
  const auto pixels = data.train.features.as<float>();
  for (size_t i = 0; i < 300; ++i) {
    for (size_t c = 0; c < 3; ++c) {
      float least = 1, most = 0;
      for (size_t at = c; at < 3072; at += 3) {
        const float pixel = pixels[i * 3072 + at];
        ASSERT_EQ(static_cast<float>(static_cast<int>(pixel * 255.0f + 0.5f)) / 255.0f, pixel);
        least = std::min(least, pixel);
        most = std::max(most, pixel);
      }
      // Background and ink differ by at least 0.25; shading and clipping can take away some of it.
      ASSERT_GT(most - least, 0.2f) << i << ", channel " << c;
    }
    ASSERT_EQ(data.train.labels.as<int32_t>()[i], static_cast<int32_t>(i % 10));
  }
}

// The mean image of every class is grey, so that a linear model cannot tell classes apart by their
// means. The mean of 100 images has a standard error of at most 0.5 / sqrt(100) = 0.05 in every
// value, and the largest of 10 x 3072 deviations stays below five standard errors.
TEST(Images32, MeansSayNothing) {
  const Dataset data = open(1000, 10);
  const auto pixels = data.train.features.as<float>();
  std::vector<double> mean(size_t{10} * 3072);
  for (size_t i = 0; i < 1000; ++i) {
    for (size_t at = 0; at < 3072; ++at) mean[i % 10 * 3072 + at] += pixels[i * 3072 + at] / 100.0;
  }
  for (const double value : mean) EXPECT_NEAR(value, 0.5, 0.25);
}

TEST(Images32, CountsDoNotChangeSamples) {
  const Dataset large = open(200, 100), small = open(50, 20);
  EXPECT_TRUE(small.train.features.same_bits(large.train.features.rows(0, 50).clone()));
  EXPECT_TRUE(small.eval.features.same_bits(large.eval.features.rows(0, 20).clone()));
  EXPECT_FALSE(small.eval.features.same_bits(large.train.features.rows(0, 20).clone()));
}

TEST(Images32, Refused) {
  EXPECT_EQ(open_dataset({.source = "images32", .classes = 11}).error().what,
            "data.classes is 11; source images32 has 2 to 10");
  EXPECT_EQ(open_dataset({.source = "images32", .shape = {28, 28, 1}}).error().what,
            "data.shape is [28,28,1]; source images32 has [32,32,3]");
  EXPECT_FALSE(open_dataset({.source = "images32", .train = 1'000'001}).ok());
}

}  // namespace
}  // namespace twinrun
