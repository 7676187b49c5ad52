// Tests the table of docs/method/diagnosis.md for subjects that show tensors only (level C), on
// evidence made by hand.
#include <gtest/gtest.h>

#include "harness/diagnose/classify.h"
#include "tests/harness/evidence.h"

namespace twinrun {
namespace {

using namespace by_hand;

// With tensors alone and no explanation the engine is at fault, with a stated error rate instead of
// certainty. With ops, another program that nothing explains accuses no engine.
TEST(Classify, TensorsThatNothingExplains) {
  Evidence e = clean();
  e.level = 'C';
  e.match = matched(Identification::Outcome::kUnexplained);
  Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kEngineBug, 20);
  ASSERT_EQ(j.findings.size(), 1u);
  EXPECT_EQ(j.findings[0].level, 'C');
  EXPECT_EQ(j.findings[0].op, "dense1/kernel.grad");
  EXPECT_EQ(j.findings[0].core, 3);
  EXPECT_TRUE(contains(j.findings[0].sentence, "8 times what was expected"));
  EXPECT_FALSE(contains(j.confidence, "certain:")) << j.confidence;
  e.level = 'A';
  e.other_program = true;
  e.trajectories = {trajectory("T - R", PairedOutcome::kHarmful)};
  j = classify(e);
  expect_verdict(j, VerdictClass::kInconclusive, 125);
  EXPECT_TRUE(contains(j.headline, "another program")) << j.headline;
}

// A subject that differs from itself as much as from the expected values is named, not accused.
TEST(Classify, ASubjectThatDoesNotRepeatItself) {
  Evidence e = clean();
  e.level = 'C';
  e.match = matched(Identification::Outcome::kUnrepeatable);
  e.match->apart = 0.9;
  e.match->draws = true;
  const Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kInconclusive, 125);
  EXPECT_TRUE(contains(j.headline, "does not repeat itself")) << j.headline;
  ASSERT_EQ(j.findings.size(), 1u);
  EXPECT_EQ(j.findings[0].cause, "unrepeatable");
  EXPECT_TRUE(contains(j.findings[0].sentence, "random numbers of its own"))
      << j.findings[0].sentence;
}

// A precision other than the declared one is a single finding, however many tensors show it.
TEST(Classify, PrecisionThatIsNotDeclared) {
  Evidence e = clean();
  e.level = 'C';
  e.match = matched(Identification::Outcome::kUnexplained);
  e.match->undeclared = "results rounded to bfloat16";
  e.match->computes_as = "autocast";
  const Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kEngineBug, 20);
  ASSERT_EQ(j.findings.size(), 1u);
  EXPECT_EQ(j.findings[0].cause, "undeclared_precision");
  EXPECT_TRUE(contains(j.headline, "as much as \"autocast\", which it does not declare"))
      << j.headline;
}

// For an engine that shows the outputs of its layers, the layer and the pass are named.
TEST(Classify, ALayerIsNamedWithItsPass) {
  Evidence e = clean();
  e.level = 'C';
  e.match = matched(Identification::Outcome::kUnexplained);
  LayerFault fault;
  fault.ratio = 400;
  fault.threshold = 8;
  fault.relative = 0.5;
  fault.shown = 12;
  fault.step = 4;
  const auto said = [&](const std::string& value, const std::vector<std::string>& layers,
                        const std::vector<std::string>& from) {
    fault.value = value;
    fault.layers = layers;
    fault.from = from;
    fault.backward = value.ends_with(".grad");
    fault.of_layer = value != "loss" && value.find('/') == std::string::npos;
    e.layer_fault = fault;
    const Judgement j = classify(e);
    expect_verdict(j, VerdictClass::kEngineBug, 20);
    EXPECT_EQ(j.findings[0].op, value);
    EXPECT_EQ(j.findings[0].phase, fault.backward ? "gradient" : "forward");
    return j.headline;
  };
  EXPECT_EQ(said("dense2", {"dense2"}, {"relu1"}),
            "tpu (framework or script) computes the output of dense2 wrong (forward pass), seen at "
            "step 4 on core 0.");
  EXPECT_TRUE(contains(said("dense2", {"relu1", "dense2"}, {"dense1"}),
                       "the output of dense2 wrong (forward pass of relu1 or dense2), seen"));
  EXPECT_TRUE(
      contains(said("relu1.grad", {"dense2"}, {"dense2.grad"}),
               "the gradient at the output of relu1 wrong (backward pass of dense2), seen"));
  EXPECT_TRUE(contains(said("dense2.grad", {"loss"}, {}),
                       "the gradient at the output of dense2 wrong (backward pass of loss), seen"));
  EXPECT_TRUE(contains(said("loss", {"loss"}, {"dense2"}), "computes loss wrong (forward pass)"));
  // The tensor that is first already is not reported twice.
  EXPECT_TRUE(contains(said("dense1/kernel.grad", {"dense1"}, {"dense1.grad"}),
                       "computes dense1/kernel.grad wrong (backward pass), seen"));
  const Judgement j = classify(e);
  EXPECT_EQ(j.findings.size(), 1u);
  EXPECT_TRUE(contains(j.findings[0].evidence.back(), "dense1.grad, which it is computed from, is"))
      << j.findings[0].evidence.back();
  // If the engine failed to show its layers, its error is part of the evidence.
  e.layer_fault.reset();
  e.layers_error = "the program has no 'output/duoble'";
  EXPECT_TRUE(contains(classify(e).findings[0].evidence.back(), "the program has no"));
}

// Evidence of a subject that shows tensors only, all of them inside.
Evidence inside() {
  Evidence e = clean();
  e.level = 'C';
  e.match = matched(Identification::Outcome::kInside);
  e.match->outside.clear();
  e.step_coverage.screened = e.step_coverage.judged = 20;
  e.trajectories = {trajectory("T - R", PairedOutcome::kNoneDetected)};
  return e;
}

// What one core alone shows is another formula, whatever causes of sharding explain all cores.
TEST(Classify, WhatOneCoreShowsIsNotSharding) {
  Evidence e = inside();
  e.quick = true;
  e.all_cores = matched(Identification::Outcome::kExplained);
  e.match = matched(Identification::Outcome::kExplained);
  FormulaChange rate;
  rate.values = {{"optimizer.lr", "0.8"}};
  rate.meaning = "has 0.8 as the learning rate where the scenario has 0.1";
  e.match->explanations = {{{{"optimizer.lr = 0.8", true, rate}}, 1.5}};
  Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kProgram, 15);
  EXPECT_TRUE(contains(j.headline, "has 0.8 as the learning rate")) << j.headline;
  EXPECT_TRUE(contains(j.headline, "One core alone")) << j.headline;
  ASSERT_EQ(j.findings.size(), 1u);
  EXPECT_EQ(j.findings[0].cause, "optimizer.lr");
  EXPECT_TRUE(contains(j.notes.at(0), "a learning rate times the cores")) << j.notes[0];
  // One core shows something that has no name: the cause that explains all cores is not the answer.
  e = inside();
  e.match = matched(Identification::Outcome::kExplained);
  e.one_core = matched(Identification::Outcome::kUnexplained);
  e.trajectories = {trajectory("T - R", PairedOutcome::kHarmful, 0.4)};
  j = classify(e);
  expect_verdict(j, VerdictClass::kInconclusive, 125);
  EXPECT_TRUE(contains(j.findings.at(0).sentence, "on one core alone")) << j.findings[0].sentence;
  // A diagnosis of one core never says sharding.
  e = inside();
  e.cores = 1;
  e.match = matched(Identification::Outcome::kExplained);
  expect_verdict(classify(e), VerdictClass::kProgram, 15);
  EXPECT_EQ(classify(e).findings.at(0).verdict, VerdictClass::kProgram);
}

// A cause of the script is named as soon as it is identified; whether it matters is another
// question.
TEST(Classify, AnIdentifiedCauseNeedsNoSeeds) {
  Evidence e = inside();
  e.quick = true;
  e.match = matched(Identification::Outcome::kExplained);
  e.trajectories = {trajectory("T - R", PairedOutcome::kUndecided)};
  e.trajectories[0].differences.resize(1);
  const Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kSharding, 10);
  EXPECT_TRUE(contains(j.headline, "never scaled by 1/cores")) << j.headline;
  EXPECT_TRUE(contains(j.headline, "was not tested")) << j.headline;
}

// A state from which the run cannot be resumed is a fault of the script, and not noise.
TEST(Classify, AStateThatCannotBeResumedFromIsOfTheProgram) {
  Evidence e = inside();
  e.hidden_state = HiddenState{30, "dense1/kernel", 0, 2.78, false, 2};
  for (const bool quick : {false, true}) {
    for (const bool equal : {false, true}) {
      e.quick = quick;
      e.identical = equal;
      const Judgement j = classify(e);
      expect_verdict(j, VerdictClass::kProgram, 15);
      EXPECT_TRUE(contains(j.headline, "step 30, resumed from the state that it gave"))
          << j.headline;
      EXPECT_TRUE(contains(j.headline, "278%")) << j.headline;
      ASSERT_EQ(j.findings.size(), 1u);
      EXPECT_EQ(j.findings[0].cause, "hidden_state");
      EXPECT_EQ(j.findings[0].verdict, VerdictClass::kProgram);
      EXPECT_FALSE(j.next_steps.empty());
    }
  }
  // Beside a cause that is noise by its effect, it still decides.
  e.identical = e.quick = false;
  Evidence sharded = e;
  sharded.match = matched(Identification::Outcome::kExplained);
  expect_verdict(classify(sharded), VerdictClass::kProgram, 15);
  EXPECT_EQ(classify(sharded).findings.at(0).cause, "hidden_state");
  // Where only the promise of equal bits is broken, what differs is rounding.
  e.hidden_state->promised = true;
  expect_verdict(classify(e), VerdictClass::kNoise, 0);
  EXPECT_TRUE(contains(classify(e).notes.back(), "cannot be resumed"));
}

// Nothing is noise of which nothing was compared.
TEST(Classify, TensorsThatWereNotComparedAreNotNoise) {
  expect_verdict(classify(inside()), VerdictClass::kNoise, 0);
  Evidence e = inside();
  e.match->outcome = Identification::Outcome::kUntestable;
  e.match->why = "conforming engines end this step in NaN or Inf themselves";
  for (const bool held_out : {false, true}) {
    e.held_out = held_out;
    const Judgement j = classify(e);
    expect_verdict(j, VerdictClass::kInconclusive, 125);
    EXPECT_TRUE(contains(j.headline, "conforming engines end this step in NaN")) << j.headline;
  }
  e = inside();
  e.step_coverage.set_aside = e.step_coverage.judged;
  expect_verdict(classify(e), VerdictClass::kInconclusive, 125);
  add_meaning(e);  // ... nor is a change of meaning without an effect
  e.trajectories.push_back(trajectory("S - R", PairedOutcome::kNoneDetected));
  expect_verdict(classify(e), VerdictClass::kInconclusive, 125);
}

}  // namespace
}  // namespace twinrun
