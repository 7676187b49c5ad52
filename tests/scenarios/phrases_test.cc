// Tests the procedural data source phrases: token sequences of different lengths.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "scenarios/data/feed.h"

namespace twinrun {
namespace {

DataRequest phrases(int64_t train = 4096, int64_t eval = 1024) {
  return {.source = "phrases", .window = 16, .vocabulary = 64, .train = train, .eval = eval};
}

Dataset open(const DataRequest& request) {
  auto data = open_dataset(request);
  EXPECT_TRUE(data.ok()) << data.error().message();
  return data.ok() ? *data : Dataset{};
}

// fixtures/procedural.py computes the digest independently.
TEST(Phrases, GoldenDigest) {
  const Dataset data = open(phrases());
  EXPECT_EQ(data.description, "phrases: 4096 + 1024 of i32[16], 10 classes, vocabulary 64");
  EXPECT_EQ(data.digest.hex(), "671db0feeb2bebdcfb68fa356b7a2135");
  DataRequest other = phrases();
  other.seed = 1;
  EXPECT_NE(open(other).digest, data.digest);
}

TEST(Phrases, TokensThenPadding) {
  const Dataset data = open(phrases());
  EXPECT_EQ(data.vocabulary, 64);
  for (const Samples* part : {&data.train, &data.eval}) {
    std::array<int64_t, 17> lengths{};
    for (int64_t i = 0; i < part->count(); ++i) {
      size_t length = 0;
      for (size_t t = 0; t < 16; ++t) {
        const auto at = static_cast<size_t>(i) * 16 + t;
        const int32_t token = part->features.as<int32_t>()[at];
        const float weight = part->weights.as<float>()[at];
        ASSERT_EQ(weight, token == 0 ? 0.0f : 1.0f);
        ASSERT_GE(token, 0);
        ASSERT_LT(token, 64);
        if (weight == 1.0f) {
          ASSERT_EQ(length, t) << "padding comes last";
          ++length;
        }
      }
      ASSERT_GE(length, 4u);
      ++lengths[length];
      ASSERT_EQ(part->labels.as<int32_t>()[static_cast<size_t>(i)], i % 10);
    }
    for (size_t length = 4; length <= 16; ++length) EXPECT_GT(lengths[length], 0) << length;
    EXPECT_GT(lengths[4] + lengths[5], lengths[15] + lengths[16]) << "short ones are more frequent";
  }
}

// If eight cores share a batch, their numbers of tokens differ in nearly every batch.
TEST(Phrases, CoresGetUnequalTokens) {
  const Dataset data = open(phrases());
  Feed feed(data.train, {.batch = 64, .seed = 3});
  int unequal = 0;
  for (int64_t step = 0; step < 50; ++step) {
    const auto batch = feed.batch(step);
    ASSERT_TRUE(batch.ok());
    std::array<float, 8> tokens{};
    for (size_t i = 0; i < 64 * 16; ++i) tokens[i / 128] += batch->weights.as<float>()[i];
    unequal += *std::ranges::max_element(tokens) > *std::ranges::min_element(tokens) + 10;
  }
  EXPECT_GT(unequal, 40);
}

// Naive Bayes on token counts, estimated on the training part, classifies about nine of ten
// held-out samples (chance: one in ten); the same rule on the first token alone does not.
TEST(Phrases, ClassesCanBeLearned) {
  const Dataset data = open(phrases());
  std::vector<double> score(10 * 64, 1.0);  // add-one counts
  for (int64_t i = 0; i < data.train.count(); ++i) {
    for (size_t t = 0; t < 16; ++t) {
      const int32_t token = data.train.features.as<int32_t>()[static_cast<size_t>(i) * 16 + t];
      if (token != 0) score[static_cast<size_t>(i % 10 * 64 + token)] += 1;
    }
  }
  for (size_t c = 0; c < 10; ++c) {
    double all = 0;
    for (size_t v = 1; v < 64; ++v) all += score[c * 64 + v];
    for (size_t v = 1; v < 64; ++v) score[c * 64 + v] = std::log(score[c * 64 + v] / all);
  }
  const auto accuracy = [&](size_t looked_at) {
    int64_t right = 0;
    for (int64_t i = 0; i < data.eval.count(); ++i) {
      size_t best = 0;
      std::array<double, 10> sum{};
      for (size_t c = 0; c < 10; ++c) {
        for (size_t t = 0; t < looked_at; ++t) {
          const auto token = static_cast<size_t>(
              data.eval.features.as<int32_t>()[static_cast<size_t>(i) * 16 + t]);
          if (token != 0) sum[c] += score[c * 64 + token];
        }
        if (sum[c] > sum[best]) best = c;
      }
      right += static_cast<int64_t>(best) == i % 10;
    }
    return static_cast<double>(right) / static_cast<double>(data.eval.count());
  };
  EXPECT_GT(accuracy(16), 0.85);
  EXPECT_LT(accuracy(1), 0.6);
}

TEST(Phrases, CountsDoNotChangeSamples) {
  const Dataset large = open(phrases(200, 100)), small = open(phrases(50, 20));
  EXPECT_TRUE(small.train.features.same_bits(large.train.features.rows(0, 50).clone()));
  EXPECT_TRUE(small.eval.features.same_bits(large.eval.features.rows(0, 20).clone()));
}

TEST(Phrases, Refused) {
  const auto what = [](const DataRequest& request) {
    const auto data = open_dataset(request);
    return data.ok() ? "accepted" : data.error().what;
  };
  DataRequest request = phrases();
  request.window = 3;
  EXPECT_EQ(what(request),
            "data.window is 3; allowed for phrases with so many samples: 4 to 65536");
  request = phrases();
  request.vocabulary = 20;
  EXPECT_EQ(what(request),
            "data.vocabulary is 20; allowed for phrases of 10 classes: 21 to 16777216");
  request.vocabulary = 21;
  EXPECT_EQ(what(request), "accepted");
  request.classes = 65;
  EXPECT_EQ(what(request), "data.classes is 65; source phrases has 2 to 64");
}

}  // namespace
}  // namespace twinrun
