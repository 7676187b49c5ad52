// Tests of misfeed(): the rows that cores receive if the sharding does not give each core its own
// rows. Also tests how such a sharding shows in the text of a program.
#include <gtest/gtest.h>

#include <numeric>

#include "program/graph/shard_plan.h"
#include "tests/program/models.h"

namespace twinrun {
namespace {

constexpr int kCores = 4, kRows = 4;

// Correct inputs. Labels are 100 * core + row + 1, images are filled with the same number, and
// sample_ids number the whole batch.
std::vector<std::vector<Tensor>> conforming(const Program& program) {
  std::vector<std::vector<Tensor>> inputs(kCores);
  for (int core = 0; core < kCores; ++core) {
    for (const Input& input : program.inputs) {
      const TensorType type = program.graph.type(input.id);
      Tensor t = Tensor::zeros(type);
      const auto per_row = static_cast<size_t>(t.elements()) / kRows;
      for (size_t i = 0; i < static_cast<size_t>(t.elements()); ++i) {
        const int value = input.name == "sample_ids"
                              ? core * kRows + static_cast<int>(i)
                              : 100 * core + 1 + static_cast<int>(per_row > 0 ? i / per_row : 0);
        if (type.dtype == DType::kF32) t.as<float>()[i] = static_cast<float>(value);
        if (type.dtype == DType::kI32) t.as<int32_t>()[i] = value;
      }
      if (input.name == "learning_rate") t = Tensor::scalar(0.5F);
      inputs[static_cast<size_t>(core)].push_back(std::move(t));
    }
  }
  return inputs;
}

std::vector<int> rows(const Program& program, const std::vector<std::vector<Tensor>>& inputs,
                      int core, const std::string& name) {
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    if (program.inputs[i].name != name) continue;
    const Tensor& t = inputs[static_cast<size_t>(core)][i];
    std::vector<int> out;
    const auto step = static_cast<size_t>(t.elements()) / kRows;
    for (size_t row = 0; row < kRows; ++row)
      out.push_back(t.dtype() == DType::kF32 ? static_cast<int>(t.as<float>()[row * step])
                                             : t.as<int32_t>()[row * step]);
    return out;
  }
  return {};
}

struct Fed {
  Program program;
  std::vector<std::vector<Tensor>> inputs;
  explicit Fed(const Feeding& how) {
    Sharding s{.cores = kCores};
    s.feeding = how;
    program = shard(models::cnn(kCores * kRows), s);
    inputs = conforming(program);
    misfeed(program, inputs);
  }
  std::vector<int> of(int core, const std::string& name) const {
    return rows(program, inputs, core, name);
  }
  float rate() const {
    for (size_t i = 0; i < program.inputs.size(); ++i) {
      if (program.inputs[i].name == "learning_rate") return inputs[1][i].as<float>()[0];
    }
    return -1;
  }
};

using Rows = std::vector<int32_t>;

TEST(Feeding, EachCoreItsOwnRows) {
  const Fed fed({});
  EXPECT_EQ(fed.of(0, "labels"), (Rows{1, 2, 3, 4}));
  EXPECT_EQ(fed.of(3, "images"), (Rows{301, 302, 303, 304}));
  EXPECT_EQ(fed.of(3, "sample_ids"), (Rows{12, 13, 14, 15}));
  EXPECT_EQ(fed.rate(), 0.5F);
}

TEST(Feeding, ShardsSeenTwice) {
  const Fed all({.shards = Feeding::Shards::kFirst});
  for (int core = 0; core < kCores; ++core) {
    EXPECT_EQ(all.of(core, "labels"), (Rows{1, 2, 3, 4})) << core;
    EXPECT_EQ(all.of(core, "images"), (Rows{1, 2, 3, 4})) << core;
  }
  EXPECT_EQ(all.of(3, "sample_ids"), (Rows{12, 13, 14, 15})) << "random ops stay with the core";
  const Fed twice({.shards = Feeding::Shards::kFirstTwice});
  EXPECT_EQ(twice.of(1, "labels"), (Rows{1, 2, 3, 4}));
  EXPECT_EQ(twice.of(2, "labels"), (Rows{201, 202, 203, 204}));
}

TEST(Feeding, TheRemainder) {
  const Fed padded({.remainder = Feeding::Remainder::kPadded});
  EXPECT_EQ(padded.of(3, "images"), (Rows{301, 302, 0, 0}));
  EXPECT_EQ(padded.of(2, "images"), (Rows{201, 202, 203, 204}));
  const Fed repeated({.remainder = Feeding::Remainder::kRepeated});
  EXPECT_EQ(repeated.of(3, "labels"), (Rows{301, 302, 1, 2}));
  const Fed dropped({.remainder = Feeding::Remainder::kDropped});
  EXPECT_EQ(dropped.of(3, "labels"), (Rows{301, 302, 301, 302})) << "its mean is over the two";
  EXPECT_EQ(real_rows(4), 2);
  EXPECT_EQ(real_rows(9), 3);
  EXPECT_EQ(real_rows(5), 1);
  EXPECT_EQ(real_rows(1), 0);
}

TEST(Feeding, StreamsAndRates) {
  const Fed one({.streams = Feeding::Streams::kOne});
  EXPECT_EQ(one.of(2, "sample_ids"), (Rows{0, 1, 2, 3}));
  const Fed own({.streams = Feeding::Streams::kPerCore});
  EXPECT_EQ(own.of(0, "sample_ids"), (Rows{0, 1, 2, 3})) << "the first is the whole batch's";
  EXPECT_EQ(own.of(1, "sample_ids"), (Rows{20, 21, 22, 23})) << "none of the whole batch's 16";
  EXPECT_EQ(Fed({.rate = Feeding::Rate::kTimesCores}).rate(), 2.0F);
  EXPECT_EQ(Fed({.rate = Feeding::Rate::kOverCores}).rate(), 0.125F);
}

// A deal gives any row to any place. Features, labels and draws have separate lists of rows.
TEST(Feeding, ADeal) {
  Rows strided;
  for (int place = 0; place < kCores * kRows; ++place)
    strided.push_back(place % kRows * kCores + place / kRows);
  const Fed fed({.deal = {.features = strided, .labels = {}, .draws = {}}});
  EXPECT_EQ(fed.of(1, "images"), (Rows{2, 102, 202, 302}));
  EXPECT_EQ(fed.of(1, "labels"), (Rows{101, 102, 103, 104}));
  EXPECT_EQ(fed.of(1, "sample_ids"), (Rows{4, 5, 6, 7}));
  const Fed along({.deal = {.features = strided, .labels = strided, .draws = strided}});
  EXPECT_EQ(along.of(2, "labels"), (Rows{3, 103, 203, 303}));
  EXPECT_EQ(along.of(1, "sample_ids"), (Rows{1, 5, 9, 13}));
  // A deal whose length is not that of the batch changes nothing.
  const Fed other({.deal = {.features = {1, 0}, .labels = {}, .draws = {}}});
  EXPECT_EQ(other.of(0, "images"), (Rows{1, 2, 3, 4}));
}

// Rare settings show in the text only where they are set. Which rows a core receives changes no op.
TEST(Feeding, TextsAndDigests) {
  const Program plain = training_step(shard(models::cnn(16), {.cores = kCores}));
  EXPECT_EQ(to_text(plain).find("fed:"), std::string::npos);
  EXPECT_EQ(to_text(reshard(plain, plain.sharding)), to_text(plain));
  Sharding s = plain.sharding;
  s.feeding.shards = Feeding::Shards::kFirst;
  const std::string fed = to_text(reshard(plain, s));
  EXPECT_NE(fed.find("fed: every core the first shard\n"), std::string::npos);
  const auto ops = [](const std::string& text) { return text.substr(text.find("\n%")); };
  EXPECT_EQ(ops(fed), ops(to_text(plain)));
  s = plain.sharding;
  s.feeding.deal.labels = {1, 0};
  EXPECT_NE(to_text(reshard(plain, s)).find("fed: labels of rows 1 0\n"), std::string::npos);
  s = plain.sharding;
  s.reduction_groups = {2, true};
  EXPECT_NE(to_text(reshard(plain, s)).find("reduced in strided groups of 2 cores\n"),
            std::string::npos);
  s = plain.sharding;
  s.scaling = Scaling::kOnceMore;
  EXPECT_NE(ops(to_text(reshard(plain, s))), ops(to_text(plain)));
}

}  // namespace
}  // namespace twinrun
