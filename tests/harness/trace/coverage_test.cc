// NOISE is a claim about everything that the new weights depend on: what was not examined on their
// path makes the verdict INCONCLUSIVE, and what lies off the path changes nothing.
#include "harness/trace/coverage.h"

#include <gtest/gtest.h>

#include <cmath>

#include "harness/trace/judge_trace.h"
#include "tests/harness/trace/made_trace.h"

namespace twinrun {
namespace {

using aten::Call;
using aten::TensorView;

// loss = w * x, its gradient by x, and the update. `use` may add calls between them.
struct Step {
  Made made;
  TensorView w = made.parameter({1, 2, 3}), x = made.tensor({2, 2, 2}), y, g;

  template <typename Use>
  TraceVerdict judged(Use use) {
    y = made.call("aten.mul.Tensor", {w, x}, {2, 4, 6});
    use(*this);
    const auto ones = made.call("aten.ones_like.default", {y}, {1, 1, 1});
    g = made.backward("aten.mul.Tensor", {ones, x}, {2, 2, 2});
    made.update(w, g, 0.5F);
    return judge_trace(made.trace, nullptr);
  }
};
TraceVerdict plain() {
  return Step().judged([](Step&) {});
}

void expect_open(const TraceVerdict& v, const std::string& what) {
  EXPECT_EQ(to_string(v.verdict()), "INCONCLUSIVE") << v.headline();
  EXPECT_EQ(exit_code(v.verdict()), 125);
  ASSERT_FALSE(v.open.empty());
  EXPECT_NE(v.open[0].what.find(what), std::string::npos) << v.open[0].what;
  EXPECT_FALSE(v.open[0].how.empty());
}

TEST(Coverage, AStepOfRightCallsIsNoise) {
  const TraceVerdict v = plain();
  EXPECT_EQ(to_string(v.verdict()), "NOISE") << v.headline();
  EXPECT_FALSE(v.without_update);
  EXPECT_EQ(v.on_path, 4);
}

TEST(Coverage, ACallWithoutADefinitionOnThePathIsAnOpenQuestion) {
  expect_open(Step().judged([](Step& s) {
    s.y = s.made.call("mine.square.default", {s.y}, {4, 16, 36});
  }),
              "mine.square.default was not judged");
}

TEST(Coverage, AMetricWithoutADefinitionChangesNothing) {
  const TraceVerdict v =
      Step().judged([](Step& s) { s.made.call("mine.metric.default", {s.y}, {1}); });
  EXPECT_EQ(to_string(v.verdict()), "NOISE") << v.headline();
  ASSERT_EQ(v.unjudged.size(), 1U);
  EXPECT_EQ(v.unjudged.begin()->second.calls, 1);
  EXPECT_EQ(v.unjudged.begin()->second.on_path, 0);
}

TEST(Coverage, ANumberThatTheScriptReadAndGaveBackIsOnThePath) {
  expect_open(Step().judged([](Step& s) {
    const TensorView scale = s.made.call("mine.scale.default", {s.y}, {0.375F});
    s.made.call_of("aten._local_scalar_dense.default", {scale}).result = [] {
      aten::Value v;
      v.kind = aten::Value::Kind::kNumber;
      v.number = 0.375;
      return v;
    }();
    s.y = s.made.call("aten.mul.Scalar", {s.y}, {0.75F, 1.5F, 2.25F}, "", 0.375);
  }),
              "mine.scale.default was not judged");
}

TEST(Coverage, MemoryThatNoCallFilledWasFilledByAKernel) {
  expect_open(Step().judged([](Step& s) {
    const TensorView out = s.made.empty(3);
    s.y = s.made.call("aten.neg.default", {s.made.now(out, {1, 2, 3})}, {-1, -2, -3});
  }),
              "wrote the memory of float32[3] before aten.neg.default read it");
}

TEST(Coverage, MemoryThatACallFilledIsKnown) {
  const TraceVerdict v = Step().judged([](Step& s) {
    const TensorView out = s.made.empty(3);
    Call& fill = s.made.call_of("aten.zero_.default", {out});
    fill.written = {s.made.now(out, {0, 0, 0})};
    fill.result = Made::value(fill.written[0]);
    s.y = s.made.call("aten.add.Tensor", {fill.written[0], s.y}, {2, 4, 6});
  });
  EXPECT_EQ(to_string(v.verdict()), "NOISE") << v.headline();
}

TEST(Coverage, ValuesThatChangeWithoutACallWereChangedByAKernel) {
  expect_open(Step().judged([](Step& s) {
    TensorView doubled = s.made.now(s.y, {4, 8, 12});
    doubled.changed_unseen = true;
    s.y = s.made.call("aten.neg.default", {doubled}, {-4, -8, -12});
  }),
              "changed between the calls");
}

TEST(Coverage, TheNextBatchInTheSameMemoryIsNoKernel) {
  Step s;
  static_cast<void>(s.judged([](Step&) {}));
  s.made.trace.steps = 2;
  s.x = s.made.now(s.x, {3, 3, 3});
  s.x.changed_unseen = true;
  const auto w = s.made.trace.calls.back().written[0];
  s.y = s.made.call("aten.mul.Tensor", {w, s.x}, {0, 3, 6});
  const auto ones = s.made.call("aten.ones_like.default", {s.y}, {1, 1, 1});
  s.x.changed_unseen = false;
  s.made.update(w, s.made.backward("aten.mul.Tensor", {ones, s.x}, {3, 3, 3}), 0.5F);
  const TraceVerdict v = judge_trace(s.made.trace, nullptr);
  EXPECT_EQ(to_string(v.verdict()), "NOISE") << v.headline();
}

TEST(Coverage, AFunctionWhoseCallsWereJudgedNeedsNoDefinition) {
  const TraceVerdict v = Step().judged([](Step& s) {
    s.y = s.made.call("aten.neg.default", {s.y}, {-2, -4, -6});
    Call& whole = s.made.call_of("torch.nn.functional.nobody_knows", {s.x});
    whole.composed = true;
    whole.result = Made::value(s.y);
  });
  EXPECT_EQ(to_string(v.verdict()), "NOISE") << v.headline();
  EXPECT_EQ(v.by_parts, 1);
  EXPECT_TRUE(v.unjudged.empty());
}

TEST(Coverage, AnUpdateFromGradientsThatNobodyRecordedIsNotAStep) {
  Made m;
  m.update(m.parameter({1}), m.tensor({2}), 0.5F);
  expect_open(judge_trace(m.trace, nullptr), "the forward and the backward pass of step 0");
}

TEST(Coverage, AnOptimizerThatCallsItsClosureMakesTheWholeStep) {
  Step s;
  static_cast<void>(s.judged([](Step&) {}));
  for (Call& call : s.made.trace.calls) call.optimizer = true;
  EXPECT_EQ(to_string(judge_trace(s.made.trace, nullptr).verdict()), "NOISE");
}

TEST(Coverage, AFormulaOfTheScriptIsAnOpenQuestion) {
  Step s;
  s.made.trace.functions = {{"torch.utils.checkpoint.CheckpointFunction", "", 1}};
  EXPECT_EQ(to_string(s.judged([](Step&) {}).verdict()), "NOISE");
  Step t;
  t.made.trace.functions = {{"__main__.Swish", "train.py:3 in forward: y", 2}};
  expect_open(t.judged([](Step&) {}), "the backward pass of __main__.Swish");
}

TEST(Coverage, ARankThatWasNotGivenIsAnOpenQuestion) {
  Step s;
  s.made.trace.ranks = 2;
  expect_open(s.judged([](Step&) {}), "1 of 2 ranks");
  Step t;
  t.made.trace.ranks = t.made.trace.given_ranks = 2;
  EXPECT_EQ(to_string(t.judged([](Step&) {}).verdict()), "NOISE");
}

TEST(Coverage, WhatAnEvaluationComputedAndTheStepReadsIsAnOpenQuestion) {
  const TraceVerdict v = Step().judged([](Step& s) { s.y.of_evaluation = true; });
  expect_open(v, "what the trained model computed in eval mode");
  EXPECT_EQ(v.open[0].times, 1);
  const TraceVerdict metric = Step().judged([](Step& s) {
    TensorView seen = s.x;
    seen.of_evaluation = true;
    s.made.call("aten.mul.Tensor", {seen, s.w}, {2, 4, 6});
  });
  EXPECT_EQ(to_string(metric.verdict()), "NOISE") << metric.headline();
}

TEST(Coverage, WhatWasNotRecordedIsAnOpenQuestion) {
  expect_open(Step().judged([](Step& s) {
    s.made.trace.errors = 3;
    s.made.trace.first_error = "KeyError: 'x'";
  }),
              "3 calls could not be recorded, the first because of KeyError: 'x'");
  expect_open(
      Step().judged([](Step& s) { s.made.trace.steps = 0, s.made.trace.steps_elsewhere = 6; }),
      "6 optimizer steps ran in other threads");
  expect_open(Step().judged([](Step& s) { s.made.trace.steps = 0, s.made.trace.steps_made = 16; }),
              "the script ended after 16 training steps");
  expect_open(Step().judged([](Step& s) { s.made.trace.steps = 0, s.made.trace.steps_asked = 4; }),
              "no training step of the script was seen");
}

TEST(Coverage, RightCallsThatMakeWeightsNaNAreAnotherProgram) {
  Made m;
  const auto w = m.parameter({1, 2}), x = m.tensor({-1, 1});
  const auto y = m.call("aten.log.default", {x}, {NAN, 0});
  const auto z = m.call("aten.mul.Tensor", {w, y}, {NAN, 0});
  const auto g =
      m.backward("aten.mul.Tensor", {m.call("aten.ones_like.default", {z}, {1, 1}), y}, {NAN, 0});
  m.update(w, g, 0.5F);
  const TraceVerdict v = judge_trace(m.trace, nullptr);
  EXPECT_EQ(to_string(v.verdict()), "PROGRAM") << v.headline();
  EXPECT_EQ(exit_code(v.verdict()), 15);
  EXPECT_EQ(v.not_finite.op, "aten.log.default");
  EXPECT_FALSE(v.not_finite.from_input);
}

TEST(Coverage, AnUpdateWithoutACorrectDigitIsAnOpenQuestion) {
  // The gradient is a sum that cancels: 0 within a bound of some units of 1e8.
  Made m;
  const auto w = m.parameter({1});
  const auto y = m.call("aten.mul.Tensor", {w, m.tensor({2})}, {2});
  TensorView terms = m.tensor({1e8F, 3, -1e8F, -3});
  terms.dims = {4};
  Call& sum = m.call_of("aten.sum.dim_IntList", {terms});
  aten::Value dims, one;
  dims.kind = aten::Value::Kind::kList;
  one.kind = aten::Value::Kind::kInteger;
  dims.items = {one};
  sum.args.push_back(dims);
  one.kind = aten::Value::Kind::kBool;
  one.integer = 1;
  sum.args.push_back(one);
  sum.node = "SumBackward0";
  sum.result = Made::value(m.tensor({1}));
  m.update(w, sum.result.tensor, 0.5F);
  static_cast<void>(y);
  const TraceVerdict v = judge_trace(m.trace, nullptr);
  EXPECT_EQ(v.uncertain_update, 1);
  EXPECT_EQ(to_string(v.verdict()), "INCONCLUSIVE") << v.headline();
}

// A frozen model's weights are written once; the tensor beside it is what is trained.
TEST(Coverage, ATensorThatIsUpdatedByHandIsAWeight) {
  Made m;
  TensorView frozen = m.tensor({0, 0}), w = m.tensor({1, 2});
  frozen.parameter = true;
  w.requires_gradient = true;
  frozen = m.update(frozen, m.tensor({2, 2}), -0.5F);
  const TensorView y = m.call("aten.mul.Tensor", {w, frozen}, {1, 2});
  m.call("mine.metric.default", {y}, {3});
  const TensorView g = m.backward("aten.mul.Tensor", {y, frozen}, {1, 2});
  m.update(w, g, 0.5F);
  for (Call& call : m.trace.calls) {
    if (call.optimizer) call.without_gradient = true;
    call.optimizer = false;
  }
  const TraceVerdict v = judge_trace(m.trace, nullptr);
  EXPECT_FALSE(v.without_update);
  EXPECT_EQ(v.on_path, 4);
  EXPECT_EQ(to_string(v.verdict()), "NOISE") << v.headline();
}

TEST(Coverage, WithoutAnUpdateEveryCallCounts) {
  Made m;
  m.call("mine.square.default", {m.tensor({1})}, {1});
  m.call("aten.neg.default", {m.tensor({1})}, {-1});
  const TraceVerdict v = judge_trace(m.trace, nullptr);
  EXPECT_TRUE(v.without_update);
  EXPECT_EQ(to_string(v.verdict()), "INCONCLUSIVE");
}

}  // namespace
}  // namespace twinrun
