// The table of docs/diagnosis.md where only tensors are seen (level C): evidence made by hand.
#include <gtest/gtest.h>

#include "harness/classify.h"
#include "tests/harness/evidence.h"

namespace twinrun {
namespace {

using namespace by_hand;

// Tensors alone, and nothing explains them: the engine, as a rate and not as a certainty. With ops seen, nobody is accused.
TEST(Classify, TensorsThatNothingExplains) {
  Evidence e = clean();
  e.level = 'C';
  e.match = matched(MatchResult::Outcome::kUnexplained);
  Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kEngineBug, 20);
  ASSERT_EQ(j.findings.size(), 1u);
  EXPECT_EQ(j.findings[0].level, 'C');
  EXPECT_EQ(j.findings[0].op, "dense1/kernel.grad");
  EXPECT_EQ(j.findings[0].core, 3);
  EXPECT_TRUE(contains(j.findings[0].sentence, "8 times what was due"));
  EXPECT_FALSE(contains(j.confidence, "certain:")) << j.confidence;
  e.level = 'A';
  e.other_program = true;
  e.trajectories = {trajectory("T - R", "outside")};
  j = classify(e);
  expect_verdict(j, VerdictClass::kInconclusive, 125);
  EXPECT_TRUE(contains(j.headline, "another program")) << j.headline;
}

// What differs from itself as far as from what is due is named, not accused.
TEST(Classify, ASubjectThatDoesNotRepeatItself) {
  Evidence e = clean();
  e.level = 'C';
  e.match = matched(MatchResult::Outcome::kUnrepeatable);
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

// Another precision than the declared one is one finding, however many tensors show it.
TEST(Classify, PrecisionThatIsNotDeclared) {
  Evidence e = clean();
  e.level = 'C';
  e.match = matched(MatchResult::Outcome::kUnexplained);
  e.match->undeclared = "results rounded to bfloat16";
  e.match->computes_as = "autocast";
  const Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kEngineBug, 20);
  ASSERT_EQ(j.findings.size(), 1u);
  EXPECT_EQ(j.findings[0].cause, "undeclared_precision");
  EXPECT_TRUE(contains(j.headline, "as \"autocast\" would, which it does not declare"))
      << j.headline;
}

}  // namespace
}  // namespace twinrun
