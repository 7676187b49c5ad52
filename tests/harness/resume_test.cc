// A run that was interrupted and went on has the bits of one that was not: parameters, slots and
// per-replica statistics, order of samples, masks, schedule.
#include <gtest/gtest.h>

#include <ostream>

#include "program/base/bits.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

RunResult run(const Experiment& e, const Program& program, const std::string& engine,
              RunOptions options) {
  options.evaluate = false;
  return tiny::must(train(e, program, *tiny::backend(engine), options));
}

// Through a file, as users do.
States through_file(const Checkpoint& checkpoint, const Program& program) {
  const tiny::Folder folder;
  tiny::must(write_checkpoint(folder / "c.h5", checkpoint));
  return tiny::must(from_checkpoint(tiny::must(read_checkpoint(folder / "c.h5")), program));
}

void expect_same_states(const States& a, const States& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t r = 0; r < a.size(); ++r) {
    ASSERT_EQ(a[r].vars.size(), b[r].vars.size());
    for (size_t i = 0; i < a[r].vars.size(); ++i) {
      EXPECT_TRUE(a[r].vars[i].same_bits(b[r].vars[i])) << "replica " << r << ", variable " << i;
    }
  }
}

struct Case {
  const char* name;
  const char* optimizer;
  const char* engine;
  bool sharded;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

class Resume : public testing::TestWithParam<Case> {};

TEST_P(Resume, TenAndTenStepsAreTwenty) {
  const Case& c = GetParam();
  const Experiment e = tiny::experiment(tiny::kNormalized, {{"optimizer.kind", c.optimizer},
                                                            {"optimizer.schedule", "exponential"},
                                                            {"optimizer.decay_rate", "0.5"},
                                                            {"optimizer.decay_steps", "7"}});
  const Program program = tiny::program(e, c.sharded);
  const RunResult whole = run(e, program, c.engine, {});
  ASSERT_EQ(whole.file.state_digests.size(), 20u);

  RunOptions first;
  first.steps = 10;
  const RunResult half = run(e, program, c.engine, first);
  const Checkpoint& middle = half.file.checkpoints.back();
  EXPECT_EQ(middle.step, 10);
  EXPECT_EQ(middle.root_digest(), whole.file.state_digests[9]);
  // Cores keep statistics of their own within a loop: a checkpoint without them could not go on.
  EXPECT_EQ(middle.tensors.at("batch_norm1/moving_mean").replica_axis, c.sharded);
  EXPECT_FALSE(middle.tensors.at("dense1/kernel").replica_axis);

  RunOptions second;
  second.start = through_file(middle, program);
  second.first_step = 10;
  const RunResult rest = run(e, program, c.engine, second);
  ASSERT_EQ(rest.file.state_digests.size(), 10u);
  EXPECT_EQ(rest.file.first_step, 10);
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(rest.file.state_digests[i], whole.file.state_digests[10 + i]) << "step " << 10 + i;
    EXPECT_EQ(to_bits(rest.file.steps[i].loss), to_bits(whole.file.steps[10 + i].loss));
    EXPECT_EQ(rest.file.steps[i].learning_rate, whole.file.steps[10 + i].learning_rate);
    EXPECT_EQ(rest.file.steps[i].gradient_norm, whole.file.steps[10 + i].gradient_norm);
  }
  expect_same_states(rest.states, whole.states);
  EXPECT_EQ(rest.file.checkpoints.back().root_digest(),
            whole.file.checkpoints.back().root_digest());
}

INSTANTIATE_TEST_SUITE_P(All, Resume,
                         testing::Values(Case{"CpuMomentum", "momentum", "cpu", false},
                                         Case{"CpuAdam", "adam", "cpu", false},
                                         Case{"CpuShardedAdam", "adam", "cpu", true},
                                         Case{"TpuMomentum", "momentum", "tpu", true},
                                         Case{"TpuAdam", "adam", "tpu", true}),
                         [](const auto& info) { return std::string(info.param.name); });

// The control of the test above: what a checkpoint without the replica axis would have done.
TEST(ResumeFrom, Replica0AloneLosesTheOthersStatistics) {
  const Experiment e = tiny::experiment(tiny::kNormalized);
  const Program program = tiny::program(e, true);
  RunOptions options;
  options.steps = 11;
  const RunResult whole = run(e, program, "tpu", options);
  options.steps = 10;
  RunResult half = run(e, program, "tpu", options);
  for (auto& replica : half.states) replica = half.states[0];
  RunOptions rest;
  rest.steps = 11;
  rest.first_step = 10;
  rest.start = half.states;
  EXPECT_NE(run(e, program, "tpu", rest).file.state_digests.back(),
            whole.file.state_digests.back());
}

TEST(ResumeFrom, PeriodicCheckpoints) {
  const Experiment e = tiny::experiment(
      tiny::kNormalized, {{"optimizer.kind", "adam"}, {"train.checkpoint_every", "6"}});
  const Program program = tiny::program(e, true);
  std::vector<Checkpoint> kept;
  RunOptions options;
  options.on_checkpoint = [&](const Checkpoint& c) {
    kept.push_back(c);
    return Status(Ok{});
  };
  const RunResult whole = run(e, program, "tpu", options);
  ASSERT_EQ(kept.size(), 3u);  // after 6, 12 and 18 steps; the last one is the run's own
  ASSERT_EQ(whole.file.checkpoints.size(), 4u);
  for (const Checkpoint& c : kept) {
    RunOptions rest;
    rest.first_step = c.step;
    rest.start = through_file(c, program);
    EXPECT_EQ(run(e, program, "tpu", rest).file.state_digests.back(),
              whole.file.state_digests.back())
        << "from step " << c.step;
  }
}

TEST(ResumeFrom, AnotherNumberOfCoresIsRefused) {
  const Experiment e = tiny::experiment(tiny::kNormalized);
  RunOptions options;
  options.steps = 2;
  const Program eight = tiny::program(e, true);
  const RunResult r = run(e, eight, "cpu", options);
  Sharding four = e.sharding;
  four.cores = 4;
  const auto states = from_checkpoint(r.file.checkpoints.back(), e.sharded(four));
  ASSERT_FALSE(states.ok());
  EXPECT_NE(states.error().message().find("batch_norm1/moving_"), std::string::npos)
      << states.error().message();
  EXPECT_NE(states.error().fix.find("--cores 8"), std::string::npos);
}

TEST(ResumeFrom, AnotherModelIsRefusedByName) {
  const Experiment e = tiny::experiment(tiny::kDense);
  const Program program = e.whole();
  const Checkpoint good =
      to_checkpoint(program, initial_states(program, e.scenario.seed), e.scenario, 0);
  Checkpoint missing = good;
  missing.tensors.erase("dense2/bias");
  Checkpoint superfluous = good;
  superfluous.tensors["dense3/kernel"] = good.tensors.at("dense2/kernel");
  Checkpoint shaped = good;
  shaped.tensors["dense1/bias"].value = Tensor::zeros({DType::kF32, {13}});
  ASSERT_TRUE(from_checkpoint(good, program).ok());
  for (const auto& [checkpoint, name] :
       {std::pair(missing, "dense2/bias"), std::pair(superfluous, "dense3/kernel"),
        std::pair(shaped, "dense1/bias")}) {
    const auto states = from_checkpoint(checkpoint, program);
    ASSERT_FALSE(states.ok()) << name;
    EXPECT_NE(states.error().message().find(name), std::string::npos) << states.error().message();
  }
}

// tpu.iterations_per_loop: within a loop every core keeps its own statistics; at its end all cores
// restart from replica 0's.
TEST(IterationsPerLoop, CoresRestartFromReplica0) {
  const Experiment one = tiny::experiment(tiny::kNormalized);
  const Experiment loops = tiny::experiment(tiny::kNormalized, {{"tpu.iterations_per_loop", "5"}});
  const Program program = tiny::program(one, true);
  const auto after = [&](const Experiment& e, int64_t steps) {
    RunOptions options;
    options.steps = steps;
    return run(e, program, "tpu", options);
  };
  const RunResult four = after(one, 4), four_in_loop = after(loops, 4);
  expect_same_states(four_in_loop.states, four.states);

  const RunResult five = after(one, 5), loop_end = after(loops, 5);
  const auto mean = static_cast<size_t>(program.state_index("batch_norm1/moving_mean"));
  EXPECT_FALSE(five.states[3].vars[mean].same_bits(five.states[0].vars[mean]));
  expect_same_states(loop_end.states, States(8, five.states[0]));
  EXPECT_FALSE(loop_end.file.checkpoints.back().tensors.at("batch_norm1/moving_mean").replica_axis);

  const RunResult six = after(loops, 6);
  EXPECT_FALSE(six.states[3].vars[mean].same_bits(six.states[0].vars[mean]));
  // Training ends a loop, whatever its length.
  const RunResult end = after(one, 20);
  expect_same_states(end.states, States(8, end.states[0]));
}

TEST(IterationsPerLoop, ResumeInTheMiddleOfALoop) {
  const Experiment e = tiny::experiment(
      tiny::kNormalized, {{"tpu.iterations_per_loop", "5"}, {"optimizer.kind", "momentum"}});
  const Program program = tiny::program(e, true);
  const RunResult whole = run(e, program, "tpu", {});
  RunOptions first;
  first.steps = 7;
  const RunResult half = run(e, program, "tpu", first);
  EXPECT_TRUE(half.file.checkpoints.back().tensors.at("batch_norm1/moving_mean").replica_axis);
  RunOptions rest;
  rest.first_step = 7;
  rest.start = through_file(half.file.checkpoints.back(), program);
  EXPECT_EQ(run(e, program, "tpu", rest).file.state_digests.back(),
            whole.file.state_digests.back());
}

}  // namespace
}  // namespace twinrun
