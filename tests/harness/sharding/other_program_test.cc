// Tests the engine that secretly runs another program: what it computes, and which program it
// reports.
#include "backends/faults/other_program.h"

#include <gtest/gtest.h>

#include "harness/sharding/causes.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

using Change = std::function<Sharding(Sharding)>;

// An experiment with all that a cause can act on; its sharded program means what the whole batch
// does.
Experiment asked() {
  return tiny::experiment(tiny::kNormalized, {{"tpu.cores", "2"},
                                              {"tpu.batchnorm", "synced"},
                                              {"optimizer.clip", "value"},
                                              {"optimizer.clip_at", "0.02"},
                                              {"optimizer.l2", "0.01"}});
}

RunResult run(const Experiment& e, const Program& program, Backend& backend) {
  RunOptions options;
  options.steps = 3;
  options.evaluate = false;
  return tiny::must(train(e, program, backend, options));
}

// The engine computes, bit for bit, what running the other program openly computes.
TEST(OtherProgram, IsTheOtherProgram) {
  const Experiment e = asked();
  const Program program = e.sharded(e.sharding);
  for (const std::string& cause : possible_causes(e)) {
    const Change change = [&](Sharding s) { return introduce(e, s, cause); };
    const auto secret = with_other_program(tiny::backend("cpu"), change);
    const RunResult hidden = run(e, program, *secret);
    const RunResult open = run(e, e.sharded(change(e.sharding)), *tiny::backend("cpu"));
    const RunResult conforming = run(e, program, *tiny::backend("cpu"));
    EXPECT_EQ(hidden.file.state_digests, open.file.state_digests) << cause;
    EXPECT_NE(hidden.file.state_digests, conforming.file.state_digests) << cause;
    for (size_t step = 0; step < 3; ++step)
      EXPECT_EQ(hidden.file.steps[step].gradient_norm, open.file.steps[step].gradient_norm);
  }
}

// The engine reports the program that it executes. What its cores are fed is not part of a program,
// so a changed feed does not show.
TEST(OtherProgram, AdmitsToItsProgramAndNotToItsFeed) {
  const Experiment e = asked();
  const Program program = e.sharded(e.sharding);
  const auto admitted = [&](const Change& change) {
    const auto secret = with_other_program(tiny::backend("tpu"), change);
    return to_text(tiny::must(secret->prepare(program))->program());
  };
  EXPECT_EQ(admitted([](Sharding s) { return s; }), to_text(program));
  EXPECT_EQ(admitted([&](Sharding s) { return introduce(e, s, "same_shard"); }), to_text(program));
  const Sharding local = introduce(e, e.sharding, "no_all_reduce");
  EXPECT_EQ(admitted([&](Sharding) { return local; }), to_text(e.sharded(local)));
}

TEST(OtherProgram, OneCoreIsAsAsked) {
  const Experiment e = asked();
  const Program whole = e.whole();
  const auto secret = with_other_program(tiny::backend("cpu"), [&](Sharding s) {
    s.reduction = Reduction::kSum;
    return s;
  });
  EXPECT_EQ(run(e, whole, *secret).file.state_digests,
            run(e, whole, *tiny::backend("cpu")).file.state_digests);
  EXPECT_EQ(secret->capabilities().name, "cpu");
}

TEST(OtherProgram, WhatCannotBeIsAnError) {
  const Experiment e = asked();
  Sharding fed = e.sharding;
  fed.feeding.shards = Feeding::Shards::kFirst;
  const auto secret = with_other_program(tiny::backend("cpu"), [](Sharding s) {
    s.feeding = {};
    return s;
  });
  const auto engine = secret->prepare(e.sharded(fed));
  ASSERT_FALSE(engine.ok());
  EXPECT_NE(engine.error().what.find("already misfed"), std::string::npos);
  const auto groups = with_other_program(tiny::backend("cpu"), [](Sharding s) {
    s.batchnorm_group = 3;
    return s;
  });
  EXPECT_FALSE(groups->prepare(e.sharded(e.sharding)).ok());
}

}  // namespace
}  // namespace twinrun
