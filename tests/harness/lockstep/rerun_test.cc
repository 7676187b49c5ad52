// Tests that flagged steps are run again: persistent, transient and intermittent errors, and a
// conforming engine whose bits differ from run to run.
#include "harness/lockstep/rerun.h"

#include <gtest/gtest.h>

#include "harness/lockstep/lockstep.h"
#include "tests/harness/subjects.h"
#include "tests/harness/watched.h"

namespace twinrun {
namespace {

using tiny::Spoiled;

// Runs five steps under lockstep on eight cores, then the flagged ones again on the same subject.
// Without a flagged step, the last one is run again.
Reruns rerun(Backend& subject) {
  const Experiment e = tiny::experiment(tiny::kDense);
  const Program program = tiny::program(e, true);
  ThreadPool pool(1);
  Lockstep probe(program, subject.capabilities(), {}, &pool);
  RunOptions options;
  options.steps = 5;
  options.observer = &probe;
  options.evaluate = false;
  tiny::must(train(e, program, subject, options));
  const std::vector<KeptStep> last = {probe.last_step()};
  const bool flagged = !probe.flagged().empty();
  return tiny::must(
      rerun_flagged(subject, program, flagged ? probe.flagged() : last, probe.violations(), &pool));
}

Reruns of(std::function<bool(int64_t)> when) {
  Spoiled subject(tiny::backend("tpu"), tiny::doubles("dense2/kernel.grad", 2, std::move(when)));
  return rerun(subject);
}

TEST(Rerun, TheSameWrongBitsArePersistent) {
  const Reruns r = of([](int64_t) { return true; });
  ASSERT_EQ(r.violations.size(), 1u);
  EXPECT_EQ(r.violations[0].persistence, Violation::Persistence::kPersistent);
  EXPECT_EQ(r.violations[0].reruns, 2);
  EXPECT_EQ(r.violations[0].wrong_again, 2);
  EXPECT_EQ(r.violations[0].same_bits_again, 2);
  EXPECT_EQ(r.executions, 4);  // two runs, each with the step before
  EXPECT_FALSE(r.spread);
}

TEST(Rerun, RightWhenRunAgainIsTransient) {
  const Reruns r = of([](int64_t run) { return run == 0; });
  ASSERT_EQ(r.violations.size(), 1u);
  EXPECT_EQ(r.violations[0].persistence, Violation::Persistence::kTransient);
  EXPECT_EQ(r.violations[0].wrong_again, 0);
}

TEST(Rerun, WrongNowAndThenIsIntermittent) {
  const Reruns r = of([](int64_t run) { return run % 2 == 0; });
  ASSERT_EQ(r.violations.size(), 1u);
  EXPECT_EQ(r.violations[0].persistence, Violation::Persistence::kIntermittent);
  EXPECT_EQ(r.violations[0].wrong_again, 1);
}

// A stale buffer needs the step before, so the rerun runs that step first.
TEST(Rerun, WhatAnEngineCarriesOverIsThereAgain) {
  const auto log = std::make_shared<FaultLog>();
  const auto subject =
      tiny::faulty(tiny::backend("tpu"), "stale_weights@dense1/dot_general,step=3,core=2", log);
  const Reruns r = rerun(*subject);
  ASSERT_FALSE(r.violations.empty());
  EXPECT_EQ(r.violations[0].persistence, Violation::Persistence::kPersistent);
}

TEST(Rerun, AConformingNondeterministicSubjectIsANote) {
  Capabilities declared;
  declared.name = "free";
  declared.max_cores = 8;
  declared.ours = false;
  declared.deterministic = false;
  const auto subject = make_variant_backend(variant_within(4, declared), {});
  const Reruns r = rerun(*subject);
  EXPECT_TRUE(r.violations.empty());
  ASSERT_TRUE(r.spread);
  EXPECT_FALSE(r.spread->op.empty());
  EXPECT_GT(r.spread->relative, 0);
  EXPECT_LT(r.spread->relative, 1e-5);
  // becomes a sentence of a note
  EXPECT_TRUE(r.spread->text().starts_with("Step ")) << r.spread->text();
}

TEST(Rerun, ADeterministicSubjectHasNoSpread) {
  const auto subject = tiny::backend("tpu");
  const Reruns r = rerun(*subject);
  EXPECT_TRUE(r.violations.empty());
  EXPECT_FALSE(r.spread);
}

}  // namespace
}  // namespace twinrun
