// Tests the feed: the order of samples, batches, prefetching and its end.
#include "scenarios/data/feed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

namespace twinrun {
namespace {

// Sample i is one pixel of value i with label i, so that a batch shows which samples it holds.
Samples counted(int64_t n) {
  Samples s{Tensor::empty({DType::kF32, {n, 1, 1, 1}}), Tensor::empty({DType::kI32, {n}}), {}};
  for (int64_t i = 0; i < n; ++i) {
    s.features.as<float>()[static_cast<size_t>(i)] = static_cast<float>(i);
    s.labels.as<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(i);
  }
  return s;
}

std::vector<int32_t> ids(Feed& feed, int64_t step) {
  auto batch = feed.batch(step);
  EXPECT_TRUE(batch.ok()) << batch.error().message();
  if (!batch.ok()) return {};
  const auto labels = batch->labels.as<int32_t>();
  const auto pixels = batch->features.as<float>();
  const auto places = batch->sample_ids.as<int32_t>();
  for (size_t i = 0; i < labels.size(); ++i) {
    EXPECT_EQ(pixels[i], static_cast<float>(labels[i]));
    EXPECT_EQ(places[i], static_cast<int32_t>(i));
  }
  return {labels.begin(), labels.end()};
}

std::vector<int32_t> stream(Feed& feed, int64_t steps) {
  std::vector<int32_t> out;
  for (int64_t step = 0; step < steps; ++step) {
    const auto batch = ids(feed, step);
    out.insert(out.end(), batch.begin(), batch.end());
  }
  return out;
}

TEST(Feed, EpochsArePermutationsAndDiffer) {
  Feed feed(counted(60), {.batch = 20, .seed = 3});
  const auto all = stream(feed, 6);
  const std::set<int32_t> first(all.begin(), all.begin() + 60), second(all.begin() + 60, all.end());
  EXPECT_EQ(first.size(), 60u);
  EXPECT_EQ(second.size(), 60u);
  EXPECT_FALSE(std::equal(all.begin(), all.begin() + 60, all.begin() + 60));
}

TEST(Feed, DropsTheRemainder) {
  Feed feed(counted(50), {.batch = 20, .seed = 3});
  const auto all = stream(feed, 4);
  EXPECT_EQ(std::set<int32_t>(all.begin(), all.begin() + 40).size(), 40u);
  EXPECT_EQ(std::set<int32_t>(all.begin() + 40, all.end()).size(), 40u);
}

TEST(Feed, InOrderWithoutShuffle) {
  Feed feed(counted(10), {.batch = 5, .shuffle = false});
  std::vector<int32_t> expected(10);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(stream(feed, 2), expected);
}

TEST(Feed, SeedDecides) {
  Feed a(counted(60), {.batch = 20, .seed = 3}), b(counted(60), {.batch = 20, .seed = 3}),
      c(counted(60), {.batch = 20, .seed = 4});
  const auto order = stream(a, 3);
  EXPECT_EQ(order, stream(b, 3));
  EXPECT_NE(order, stream(c, 3));
}

// The order by the formula in feed.cc, computed independently in Python. A change here changes
// every run.
TEST(Feed, GoldenOrder) {
  Feed feed(counted(10), {.batch = 10, .seed = 7, .prefetch = 0});
  EXPECT_EQ(ids(feed, 0), (std::vector<int32_t>{2, 7, 8, 6, 0, 9, 3, 4, 1, 5}));
  EXPECT_EQ(ids(feed, 1), (std::vector<int32_t>{0, 7, 9, 2, 5, 6, 8, 4, 3, 1}));
}

TEST(Feed, PrefetchChangesNothing) {
  Feed none(counted(53), {.batch = 8, .seed = 1, .prefetch = 0});
  const auto expected = stream(none, 40);
  for (const int64_t prefetch : {1, 2, 5}) {
    Feed feed(counted(53), {.batch = 8, .seed = 1, .prefetch = prefetch});
    EXPECT_EQ(stream(feed, 40), expected) << prefetch;
  }
}

TEST(Feed, AnyStepInAnyOrder) {
  Feed sequential(counted(53), {.batch = 8, .seed = 1, .prefetch = 0});
  std::vector<std::vector<int32_t>> expected;
  for (int64_t step = 0; step < 30; ++step) expected.push_back(ids(sequential, step));
  for (const int64_t prefetch : {0, 2, 5}) {
    Feed feed(counted(53), {.batch = 8, .seed = 1, .prefetch = prefetch});
    for (const int64_t step :
         {0, 1, 2, 5, 5, 4, 6, 7, 9, 29, 28, 0, 0, 1, 3, 8, 9, 10, 2, 12, 14}) {
      EXPECT_EQ(ids(feed, step), expected[static_cast<size_t>(step)]) << step;
    }
  }
  // A far step must be found without walking through all epochs before it.
  EXPECT_EQ(ids(sequential, int64_t{1} << 40).size(), 8u);
}

TEST(Feed, EndsWithoutRepeat) {
  Feed feed(counted(50), {.batch = 20, .repeat = false});
  EXPECT_EQ(feed.steps_available(), 2);
  EXPECT_TRUE(feed.batch(1).ok());
  const auto beyond = feed.batch(2);
  ASSERT_FALSE(beyond.ok());
  EXPECT_EQ(
      beyond.error().message(),
      "data, step 2: the data ended after step 1: 50 samples are 2 batches of 20 and 10 left over; "
      "allowed: train.steps up to 2\n  fix: set data.repeat = true or lower train.steps");
  EXPECT_TRUE(feed.batch(0).ok());
  EXPECT_FALSE(feed.batch(-1).ok());
}

TEST(Feed, NeverFullOrEmpty) {
  Feed small(counted(5), {.batch = 20});
  EXPECT_EQ(small.steps_available(), 0);
  EXPECT_FALSE(small.batch(0).ok());
  Feed none(Samples{}, {.batch = 20});
  EXPECT_FALSE(none.batch(0).ok());
  Feed zero(counted(5), {.batch = 0});
  EXPECT_FALSE(zero.batch(0).ok());
  Feed endless(counted(5), {.batch = 5});
  EXPECT_EQ(endless.steps_available(), std::numeric_limits<int64_t>::max());
}

// Tokens, the labels per token and the weights stay with their sample.
TEST(Feed, TokensLabelsAndWeightsStayTogether) {
  constexpr int64_t kCount = 30, kLength = 4;
  Samples s{Tensor::empty({DType::kI32, {kCount, kLength}}),
            Tensor::empty({DType::kI32, {kCount, kLength}}),
            Tensor::empty({DType::kF32, {kCount, kLength}})};
  for (size_t i = 0; i < kCount * kLength; ++i) {
    s.features.as<int32_t>()[i] = static_cast<int32_t>(i);
    s.labels.as<int32_t>()[i] = static_cast<int32_t>(i + 1);
    s.weights.as<float>()[i] = i % kLength < 3 ? 1.0f : 0.0f;
  }
  EXPECT_EQ(s.count(), kCount);
  Feed feed(s, {.batch = 10, .seed = 3});
  std::set<int32_t> seen;
  for (int64_t step = 0; step < 3; ++step) {
    const auto batch = feed.batch(step);
    ASSERT_TRUE(batch.ok()) << batch.error().message();
    EXPECT_EQ(batch->features.type(), (TensorType{DType::kI32, {10, kLength}}));
    EXPECT_EQ(batch->labels.type(), (TensorType{DType::kI32, {10, kLength}}));
    EXPECT_EQ(batch->weights.type(), (TensorType{DType::kF32, {10, kLength}}));
    for (size_t i = 0; i < 10 * kLength; ++i) {
      const int32_t token = batch->features.as<int32_t>()[i];
      seen.insert(token);
      EXPECT_EQ(batch->labels.as<int32_t>()[i], token + 1);
      EXPECT_EQ(batch->weights.as<float>()[i], token % kLength < 3 ? 1.0f : 0.0f);
    }
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(kCount * kLength)) << "an epoch holds every sample";
  EXPECT_FALSE(Feed(counted(5), {.batch = 5}).batch(0)->weights.valid());
}

TEST(Feed, StopsWhileReadingAhead) {
  for (int i = 0; i < 50; ++i) {
    Feed feed(counted(1000), {.batch = 100, .prefetch = 5});
    if (i % 2 == 0) {
      EXPECT_TRUE(feed.batch(i).ok());
    }
  }
}

}  // namespace
}  // namespace twinrun
