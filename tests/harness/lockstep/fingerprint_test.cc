// Tests the fingerprint of a wrong tensor: what it looks like, in the words of an engine engineer.
#include "harness/lockstep/fingerprint.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

Tensor values(const std::vector<float>& v) {
  Tensor t = Tensor::empty({DType::kF32, {static_cast<int64_t>(v.size())}});
  std::copy(v.begin(), v.end(), t.as<float>().begin());
  return t;
}

Op op_of(OpKind kind, Phase phase, int64_t elements) {
  Op op;
  op.name = "x";
  op.kind = kind;
  op.phase = phase;
  op.type = {DType::kF32, {elements}};
  return op;
}

OracleResult oracle_of(const std::vector<double>& v, double radius) {
  return {v, std::vector<double>(v.size(), radius)};
}

const std::vector<double> kExpected = {1, -2, 3, 4.5};

std::string look(const std::vector<float>& subject, OpKind kind = OpKind::kMultiply,
                 Phase phase = Phase::kForward, const std::vector<Tensor>& inputs = {},
                 const Tensor* previous = nullptr) {
  const auto n = static_cast<int64_t>(subject.size());
  ThreadPool pool(1);
  return fingerprint({}, op_of(kind, phase, n), values(subject), oracle_of(kExpected, 1e-6), inputs,
                     &pool, previous);
}

TEST(Fingerprint, BestFitFactor) {
  EXPECT_EQ(look({8, -16, 24, 36}), "8 times what was expected");
  EXPECT_EQ(look({0.125, -0.25, 0.375, 0.5625}), "0.125 times what was expected");
}

TEST(Fingerprint, OppositeSign) {
  EXPECT_EQ(look({-1, 2, -3, -4.5}), "what was expected with its sign turned");
}

TEST(Fingerprint, OneElement) { EXPECT_EQ(look({1, -2, 7, 4.5}), "7 where 3 was expected"); }

TEST(Fingerprint, NaNWhereANumberWasExpected) {
  EXPECT_EQ(look({NAN, -2, INFINITY, 4.5}), "NaN or Inf (2 of 4 elements)");
  EXPECT_EQ(look({NAN, -2, 3, 4.5}), "NaN or Inf (1 of 4 elements)");
}

TEST(Fingerprint, StaleByOneStep) {
  const Tensor before = values({0.5, 0.25, 1, 2});
  EXPECT_EQ(look({0.5, 0.25, 1, 2}, OpKind::kMultiply, Phase::kForward, {}, &before),
            "the value of the step before (stale)");
}

TEST(Fingerprint, SkippedUpdate) {
  const Tensor weights = values({0.5, 0.25, 1, 2}), step = values({1, 1, 1, 1});
  EXPECT_NE(look({0.5, 0.25, 1, 2}, OpKind::kSubtract, Phase::kUpdate, {weights, step})
                .find("the old value was kept"),
            std::string::npos);
}

TEST(Fingerprint, MissingAndDoubledCore) {
  // kExpected is the sum of the parts of two cores.
  const Tensor a = values({0.25, -3, 1, 1}), b = values({0.75, 1, 2, 3.5});
  EXPECT_EQ(look({0.25, -3, 1, 1}, OpKind::kAllReduce, Phase::kCollective, {a, b}),
            "the sum without core 1");
  EXPECT_EQ(look({1.25, -5, 4, 5.5}, OpKind::kAllReduce, Phase::kCollective, {a, b}),
            "the sum with core 0 counted twice");
}

TEST(Fingerprint, OtherwiseTheRegion) {
  const std::string text = look({1, -9, 3, 9});
  EXPECT_TRUE(text.starts_with("2 elements between [1] and [3]")) << text;
}

}  // namespace
}  // namespace twinrun
