// Two traces made by hand: which results are taken for the same, and what a difference is called.
#include "harness/trace/compare_traces.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "harness/trace/align.h"
#include "harness/trace/known_step.h"
#include "tests/harness/trace/made_trace.h"
#include "tests/support/folder.h"

namespace twinrun {
namespace {

using aten::TensorView;

TwoSides compared(const Made& a, const Made& b) {
  ThreadPool pool(1);
  return compare_traces(a.trace, b.trace, &pool);
}

// exp(x) * 3 with the exponentials given.
Made exponentials(const std::vector<float>& e, double factor = 3, float x = 1) {
  Made m;
  const auto input = m.tensor({x, 2});
  const auto y = m.call("aten.exp.default", {input}, e, "first");
  m.call("aten.mul.Scalar", {y},
         {static_cast<float>(e[0] * factor), static_cast<float>(e[1] * factor)}, "second", factor);
  return m;
}
const float kE = std::exp(1.0F), kE2 = std::exp(2.0F);
const float kNext = std::nextafter(kE, 9.0F);

TEST(CompareTraces, TheSameBitsAreIdentical) {
  const TwoSides s = compared(exponentials({kE, kE2}), exponentials({kE, kE2}));
  EXPECT_EQ(s.verdict, VerdictClass::kIdentical) << s.headline;
  EXPECT_EQ(s.by_bits, 2);
  EXPECT_FALSE(s.first);
}

TEST(CompareTraces, AUnitInTheLastPlaceIsNoise) {
  const TwoSides s = compared(exponentials({kE, kE2}), exponentials({kNext, kE2}));
  EXPECT_EQ(s.verdict, VerdictClass::kNoise) << s.headline;
  ASSERT_TRUE(s.first);
  EXPECT_EQ(s.first->a.op, "aten.exp.default");
  EXPECT_TRUE(s.first->same_inputs);
  EXPECT_EQ(s.first->differing, 1);
  // 2^-22 apart, and each may be off by at least the rounding to its type.
  EXPECT_GT(s.first->ratio, 0);
  EXPECT_LE(s.first->ratio, 1);
  EXPECT_EQ(s.by_values, 2);
}

TEST(CompareTraces, TheSideOutsideItsBoundsIsNamed) {
  for (const bool is_a : {true, false}) {
    const Made wrong = exponentials({kE * 1.01F, kE2}), right = exponentials({kE, kE2});
    const TwoSides s = is_a ? compared(wrong, right) : compared(right, wrong);
    EXPECT_EQ(s.verdict, VerdictClass::kEngineBug) << s.headline;
    EXPECT_EQ(s.side, is_a ? "A" : "B");
    const auto& of = is_a ? s.of_a : s.of_b;
    ASSERT_TRUE(of);
    EXPECT_EQ((is_a ? of->a : of->b).outside, 1);
    EXPECT_EQ((is_a ? of->b : of->a).outside, 0);
    EXPECT_TRUE(s.inputs.empty());
  }
}

TEST(CompareTraces, AnotherInputIsToldWithItsElements) {
  const float x = std::nextafter(1.0F, 2.0F);
  const TwoSides s = compared(exponentials({kE, kE2}), exponentials({std::exp(x), kE2}, 3, x));
  EXPECT_EQ(s.verdict, VerdictClass::kProgram) << s.headline;
  ASSERT_EQ(s.inputs.size(), 1U);
  EXPECT_EQ(s.inputs[0].kind, OtherInput::Kind::kTensor);
  EXPECT_EQ(s.inputs[0].differing, 1);
  EXPECT_EQ(s.inputs[0].elements, 2);
}

TEST(CompareTraces, AnotherNumberIsTold) {
  const TwoSides s = compared(exponentials({kE, kE2}), exponentials({kE, kE2}, 3.001));
  EXPECT_EQ(s.verdict, VerdictClass::kProgram) << s.headline;
  ASSERT_FALSE(s.inputs.empty());
  EXPECT_EQ(s.inputs[0].kind, OtherInput::Kind::kNumber);
}

TEST(CompareTraces, ADifferenceThatNobodyJudgesIsNotCalledNoise) {
  const auto made = [](float y) {
    Made m;
    m.call("aten.nobody_knows.default", {m.tensor({1})}, {y});
    m.call("aten.neg.default", {m.tensor({1})}, {-1});
    return m;
  };
  const TwoSides s = compared(made(1), made(1.00001F));
  EXPECT_EQ(s.verdict, VerdictClass::kInconclusive) << s.headline;
  EXPECT_EQ(s.unexplained.size(), 1U);
}

TEST(CompareTraces, ACallWithoutAPartnerIsListedAndNotAccused) {
  Made a = exponentials({kE, kE2}), b = exponentials({kE, kE2});
  b.call("aten.neg.default", {b.tensor({7, 8, 9})}, {-7, -8, -9});
  const TwoSides s = compared(a, b);
  EXPECT_EQ(s.verdict, VerdictClass::kIdentical) << s.headline;
  EXPECT_EQ(s.unaligned_b.at("aten.neg.default"), 1);
}

// One step from the batch x to the weight; `gradient` and `update` are what the sides give.
struct Sgd {
  std::vector<float> gradient = {2, 4, 6}, after = {0.8F, 1.6F, 2.4F};
  std::string op = "aten.mul.Tensor";
};
Made step_of(const Sgd& s) {
  Made m;
  const auto w = m.parameter({1, 2, 3}), x = m.tensor({2, 2, 2});
  const auto y = m.call("aten.mul.Tensor", {w, x}, {2, 4, 6}, "layer");
  const auto g =
      m.backward(s.op, {y, m.call("aten.ones_like.default", {y}, {1, 1, 1})}, s.gradient);
  m.update(w, g, 0.1F);
  m.trace.calls.back().written = {m.now(w, s.after)};
  m.trace.calls.back().result = Made::value(m.trace.calls.back().written[0]);
  return m;
}

TEST(CompareTraces, GradientsFurtherApartThanRoundingAreAnotherProgram) {
  // Nobody judges the call whose results differ.
  const TwoSides s = compared(
      step_of({.op = "mine.gradient.default"}),
      step_of({.gradient = {3, 6, 9}, .after = {0.7F, 1.4F, 2.1F}, .op = "mine.gradient.default"}));
  EXPECT_EQ(s.verdict, VerdictClass::kProgram) << s.headline;
  ASSERT_FALSE(s.inputs.empty());
  EXPECT_EQ(s.inputs.back().kind, OtherInput::Kind::kGradient);
  EXPECT_NEAR(s.inputs.back().relative, 1.0 / 3, 1e-6);
}

TEST(CompareTraces, GradientsThatRoundingExplainsAreNoiseThoughNobodyJudgesACall) {
  const float next = std::nextafter(2.0F, 3.0F);
  const TwoSides s =
      compared(step_of({}), step_of({.gradient = {next, 4, 6},
                                     .after = {std::nextafter(0.8F, 0.0F), 1.6F, 2.4F},
                                     .op = "mine.gradient.default"}));
  EXPECT_EQ(s.verdict, VerdictClass::kNoise) << s.headline;
}

TEST(CompareTraces, AnOptimizerThatMovesALittleLessIsAnotherProgram) {
  // 0.5 % of each update, from the same gradient: far below half of its norm.
  Made b = step_of({.after = {1 - 0.199F, 2 - 0.398F, 3 - 0.597F}});
  b.trace.calls.back().op = "mine.optimizer.default";
  const TwoSides s = compared(step_of({}), b);
  EXPECT_EQ(s.verdict, VerdictClass::kProgram) << s.headline;
  ASSERT_FALSE(s.inputs.empty());
  EXPECT_EQ(s.inputs.back().kind, OtherInput::Kind::kUpdate);
}

TEST(Align, EqualValuesAreToldApartByTheirModules) {
  const auto made = [](bool swapped) {
    Made m;
    for (const bool first : {!swapped, swapped})
      m.call("aten.neg.default", {m.tensor({1})}, {-1}, first ? "one" : "two");
    return m;
  };
  const Made x = made(false), y = made(true);
  const TraceValues a = values_of(x.trace), b = values_of(y.trace);
  const Alignment m = align(a, b);
  ASSERT_EQ(m.pairs.size(), 2U);
  for (const AlignedPair& p : m.pairs)
    EXPECT_EQ(a.results[p.a].call->module, b.results[p.b].call->module);
}

TEST(Align, NearValuesOfOtherOperationsAreOneResult) {
  Made a, b;
  a.call("aten.addmm.default", {a.tensor({1})}, {10, 20, 30});
  b.call("aten.add.Tensor", {b.tensor({1})}, {10.00001F, 20, 30});
  b.call("aten.add.Tensor", {b.tensor({1})}, {10.2F, 20, 30});  // 0.7 % of the largest value
  const Alignment m = align(values_of(a.trace), values_of(b.trace));
  ASSERT_EQ(m.pairs.size(), 1U);
  EXPECT_EQ(m.pairs[0].b, 0U);
  EXPECT_EQ(m.pairs[0].by, AlignedBy::kValues);
}

TEST(Values, AStridedViewHasTheDigestOfItsElements) {
  Made m;
  TensorView wide = m.tensor({1, 2, 3, 4, 5, 6});
  wide.dims = {3, 2};
  wide.strides = {1, 3};
  TensorView dense = m.tensor({1, 4, 2, 5, 3, 6});
  dense.dims = {3, 2};
  dense.strides = {2, 1};
  EXPECT_EQ(digest_of(wide), digest_of(dense));
  dense.strides = {1, 3};
  EXPECT_NE(digest_of(wide), digest_of(dense));
}

TEST(Values, NamesAndModules) {
  EXPECT_EQ(base_name("aten.add_.Tensor"), "aten.add");
  EXPECT_EQ(base_name("torch.nn.functional.dropout"), "torch.nn.functional.dropout");
  EXPECT_TRUE(draws_at_random("aten.normal_.default"));
  EXPECT_FALSE(draws_at_random("aten.norm.Scalar"));
  EXPECT_TRUE(modules_agree("layer", "layer.conv"));
  EXPECT_FALSE(modules_agree("layer1", "layer10"));
}

class KnownSteps : public testing::Test {
 protected:
  KnownVerdict verified(const Made& then, const Made& now) {
    const auto known = know(then.trace, &then.trace, &pool_);
    EXPECT_TRUE(known) << known.error().message();
    const std::string path = folder_ / "known";
    std::ofstream(path) << to_json(*known);
    const auto read = read_known(path);
    EXPECT_TRUE(read) << read.error().message();
    return verify_known(*read, now.trace, &pool_);
  }
  ThreadPool pool_{1};
  const Folder folder_;
};

TEST_F(KnownSteps, Outcomes) {
  const Made healthy = exponentials({kE, kE2});
  EXPECT_EQ(verified(healthy, healthy).verdict, VerdictClass::kIdentical);
  const KnownVerdict other = verified(healthy, exponentials({kNext, kE2}));
  EXPECT_EQ(other.verdict, VerdictClass::kNoise) << other.headline;
  EXPECT_EQ(other.differing, 2);
  const KnownVerdict wrong = verified(healthy, exponentials({kE, kE2 * 2}));
  EXPECT_EQ(wrong.verdict, VerdictClass::kEngineBug) << wrong.headline;
  ASSERT_TRUE(wrong.wrong);
  EXPECT_EQ(wrong.wrong->outside, 1);
  EXPECT_EQ(wrong.wrong->elements, 2);
  EXPECT_EQ(wrong.wrong->module, "first");
  EXPECT_EQ(verified(healthy, exponentials({std::exp(1.5F), kE2}, 3, 1.5F)).verdict,
            VerdictClass::kProgram);
}

TEST_F(KnownSteps, AChangedRecordIsRefused) {
  const Made healthy = exponentials({kE, kE2});
  std::string text = to_json(*know(healthy.trace, &healthy.trace, &pool_));
  const std::string path = folder_ / "known";
  text.replace(text.find("\"steps\": "), 10, "\"steps\":1");
  std::ofstream(path) << text;
  const auto read = read_known(path);
  ASSERT_FALSE(read);
  EXPECT_NE(read.error().what.find("changed after it was written"), std::string::npos);
}

TEST_F(KnownSteps, AWrongMachineIsNotRecorded) {
  const Made wrong = exponentials({kE, kE2 * 2});
  EXPECT_FALSE(know(wrong.trace, nullptr, &pool_));
}

TEST_F(KnownSteps, WhatDoesNotRepeatIsNotCompared) {
  const Made one = exponentials({kE, kE2}), other = exponentials({kNext, kE2});
  const auto known = know(one.trace, &other.trace, &pool_);
  ASSERT_TRUE(known);
  EXPECT_FALSE(known->calls[0].steady);
  EXPECT_EQ(verify_known(*known, other.trace, &pool_).verdict, VerdictClass::kIdentical);
}

}  // namespace
}  // namespace twinrun
