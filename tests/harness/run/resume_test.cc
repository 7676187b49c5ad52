// Tests that a run which was interrupted and resumed has the bits of one that was not: parameters,
// slots, per-replica statistics, order of samples, masks and schedule.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>

#include "harness/run/loop.h"
#include "program/base/bits.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

RunResult run(const Experiment& e, const Program& program, const std::string& engine,
              RunOptions options) {
  options.evaluate = false;
  return tiny::must(train(e, program, *tiny::backend(engine), options));
}

// Writes a checkpoint to a file and reads it back, as users do.
States through_file(const Checkpoint& checkpoint, const Program& program) {
  const Folder folder;
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
  // Within a loop, cores keep statistics of their own; a checkpoint without them could not be
  // resumed.
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

// The control of the test above: what would happen if a checkpoint had no replica axis.
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
  options.on_checkpoint = [&](const RunFile& so_far, const Checkpoint& c) {
    EXPECT_EQ(so_far.steps.size(), static_cast<size_t>(c.step));
    kept.push_back(c);
  };
  const RunResult whole = run(e, program, "tpu", options);
  ASSERT_EQ(kept.size(), 3u);  // after 6, 12 and 18 steps; the last checkpoint is the run's own
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
// restart from those of replica 0.
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
  // The end of training ends a loop, whatever its length.
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

// The host runs only between loops. An action that was due inside a loop happens once, at its end.
TEST(IterationsPerLoop, WhatIsAskedForWaitsForTheEndOfTheLoop) {
  const auto at = [](int64_t iterations, int cores, const char* engine, int64_t every) {
    Scenario s;
    s.tpu.iterations_per_loop = iterations;
    const HostLoop loop(s, cores, engine);
    std::vector<int64_t> out;
    for (int64_t done = 1; done <= 20; ++done) {
      if (loop.expected(every, done)) out.push_back(done);
    }
    return out;
  };
  using Steps = std::vector<int64_t>;
  EXPECT_EQ(at(0, 8, "tpu", 6), (Steps{6, 12, 18}));
  EXPECT_EQ(at(5, 8, "tpu", 6), (Steps{10, 15, 20}));
  EXPECT_EQ(at(5, 8, "cpu", 6), (Steps{10, 15, 20})) << "several cores are the TPU stack";
  EXPECT_EQ(at(5, 1, "tpu", 6), (Steps{10, 15, 20}));
  EXPECT_EQ(at(5, 1, "cpu", 6), (Steps{6, 12, 18})) << "the CPU stack has no loops";
  EXPECT_EQ(at(5, 8, "tpu", 10), (Steps{10, 20}));
  EXPECT_EQ(at(5, 8, "tpu", 2), (Steps{5, 10, 15, 20}))
      << "once at the end, however often it was due";
  EXPECT_EQ(at(5, 8, "tpu", 0), Steps{});
  EXPECT_EQ(at(30, 8, "tpu", 1), Steps{});
}

TEST(IterationsPerLoop, NothingIsSilent) {
  Scenario s;
  s.tpu.iterations_per_loop = 5;
  s.train.log_every = 10, s.train.eval_every = 4, s.train.checkpoint_every = 6;
  EXPECT_EQ(HostLoop(s, 8, "tpu").note(s.train),
            "loops of 5 steps (tpu.iterations_per_loop); actions inside a loop wait for its end: "
            "train.eval_every = 4, train.checkpoint_every = 6");
  EXPECT_EQ(HostLoop(s, 1, "cpu").note(s.train), "");
  s.train.eval_every = 5, s.train.checkpoint_every = 0;
  EXPECT_EQ(HostLoop(s, 8, "tpu").note(s.train), "");
}

class Lines : public Progress {
 public:
  void log(const std::string& line) override { lines.push_back(line); }
  void note(const std::string& line) override { notes.push_back(line); }
  std::vector<std::string> lines, notes;
};

// When a run in loops evaluates, keeps checkpoints and logs; none of this changes its bits.
TEST(IterationsPerLoop, EvaluationsCheckpointsAndLogs) {
  const Overrides keys = {{"tpu.iterations_per_loop", "5"},
                          {"train.eval_every", "6"},
                          {"train.checkpoint_every", "4"},
                          {"train.log_every", "2"}};
  const Experiment e = tiny::experiment(tiny::kNormalized, keys);
  const Program program = tiny::program(e, true);
  Lines lines;
  RunOptions options;
  options.progress = &lines;
  const RunResult r = tiny::must(train(e, program, *tiny::backend("tpu"), options));
  std::vector<int64_t> evaluated, kept;
  for (const Evaluation& one : r.file.evaluations) evaluated.push_back(one.step);
  for (const Checkpoint& one : r.file.checkpoints) kept.push_back(one.step);
  EXPECT_EQ(evaluated, (std::vector<int64_t>{10, 15, 20}));
  EXPECT_EQ(kept, (std::vector<int64_t>{5, 10, 15, 20}));
  for (const Checkpoint& one : r.file.checkpoints) {
    EXPECT_FALSE(one.tensors.at("batch_norm1/moving_mean").replica_axis) << one.step;
  }
  ASSERT_EQ(lines.notes.size(), 1u);
  EXPECT_TRUE(lines.notes[0].starts_with("loops of 5 steps")) << lines.notes[0];
  ASSERT_EQ(lines.lines.size(), 4u);
  // TPUEstimator's loss: that of replica 0 at the last step of the loop.
  const StepScalars& fifth = r.file.steps[4];
  EXPECT_NE(fifth.loss, fifth.loss_replica0);
  EXPECT_TRUE(lines.lines[0].starts_with(
      fmt::format("after step 4: loss {:.9g} (replica 0),", fifth.loss_replica0)))
      << lines.lines[0];
  // Without these keys the weights have the same bits.
  const Experiment plain = tiny::experiment(tiny::kNormalized, {{"tpu.iterations_per_loop", "5"}});
  EXPECT_EQ(run(plain, program, "tpu", {}).file.state_digests, r.file.state_digests);
  EXPECT_EQ(r.file.steps.size(), 20u) << "every step's losses stay in the run file";
}

// The host of the reference sees every step.
TEST(IterationsPerLoop, OneCoreOfTheCpuHasNoLoops) {
  const Experiment e = tiny::experiment(
      tiny::kNormalized, {{"tpu.iterations_per_loop", "5"}, {"train.checkpoint_every", "6"}});
  const RunResult r = run(e, e.whole(), "cpu", {});
  std::vector<int64_t> kept;
  for (const Checkpoint& one : r.file.checkpoints) kept.push_back(one.step);
  EXPECT_EQ(kept, (std::vector<int64_t>{6, 12, 18, 20}));
  EXPECT_EQ(r.file.state_digests,
            run(tiny::experiment(tiny::kNormalized), e.whole(), "cpu", {}).file.state_digests);
}

// Wherever a run in loops is stopped, the resumed run continues as if it had not been, including
// evaluations and checkpoints.
TEST(IterationsPerLoop, ResumedAnywhereItGoesOnTheSame) {
  const Experiment e = tiny::experiment(tiny::kNormalized, {{"tpu.iterations_per_loop", "5"},
                                                            {"optimizer.kind", "adam"},
                                                            {"train.checkpoint_every", "6"}});
  const Program program = tiny::program(e, true);
  const RunResult whole = run(e, program, "tpu", {});
  for (const int64_t stop : {1, 4, 5, 6, 9, 10, 14, 19}) {
    RunOptions first;
    first.steps = stop;
    const RunResult half = run(e, program, "tpu", first);
    EXPECT_EQ(half.file.checkpoints.back().step, stop);
    RunOptions rest;
    rest.first_step = stop;
    rest.start = through_file(half.file.checkpoints.back(), program);
    const RunResult r = run(e, program, "tpu", rest);
    EXPECT_EQ(r.file.state_digests.back(), whole.file.state_digests.back()) << stop;
    for (const Checkpoint& one : whole.file.checkpoints) {
      if (one.step <= stop) continue;
      EXPECT_EQ(std::ranges::count(r.file.checkpoints, one.step, &Checkpoint::step), 1)
          << stop << ": " << one.step;
    }
  }
}

// The counters of the input pipeline are reported with the run.
TEST(RunPipeline, CountersOfEveryStage) {
  const Experiment e = tiny::experiment(tiny::kDense, {{"data.parallel_calls", "2"}});
  const RunResult r = run(e, tiny::program(e, true), "tpu", {});
  const auto steps = static_cast<int64_t>(r.file.steps.size());
  EXPECT_EQ(static_cast<int64_t>(r.pipeline.asked.size()), steps);
  EXPECT_EQ(r.pipeline.enqueue.elements, steps);
  EXPECT_GT(r.pipeline.enqueue.bytes, 0);
  EXPECT_GE(r.pipeline.map.elements, steps * e.scenario.train.batch);
  EXPECT_EQ(r.pipeline.read.elements, e.data->train.count() + e.data->eval.count());
  EXPECT_LT(r.pipeline.waited, r.seconds);
}

// Requests a stop after `at` steps, as Ctrl-C does, and keeps the messages.
class Interrupter : public Progress {
 public:
  explicit Interrupter(int64_t at) : at_(at) {}
  void step(int64_t done, const std::string& /*detail*/) override { stop = stop || done == at_; }
  void note(const std::string& line) override { notes.push_back(line); }
  void end(const std::string& result) override { ended = result; }
  StopFlag stop = false;
  std::vector<std::string> notes;
  std::string ended;

 private:
  int64_t at_;
};

RunResult interrupted(const Experiment& e, bool sharded, const char* engine, Interrupter& by) {
  RunOptions options;
  options.progress = &by;
  options.stop = &by.stop;
  return tiny::must(train(e, tiny::program(e, sharded), *tiny::backend(engine), options));
}

// The device does not return in the middle of a loop.
TEST(Interrupts, WaitForTheEndOfTheLoop) {
  const Experiment e = tiny::experiment(tiny::kNormalized, {{"tpu.iterations_per_loop", "8"}});
  Interrupter at3(3);
  const RunResult r = interrupted(e, true, "tpu", at3);
  EXPECT_EQ(r.file.steps.size(), 8u);
  EXPECT_TRUE(r.file.ended.interrupted());
  ASSERT_FALSE(at3.notes.empty());
  EXPECT_NE(at3.notes.back().find("stops at its end, after 8 steps"), std::string::npos)
      << at3.notes.back();
  // The last loop is shorter. At its end the run is complete.
  Interrupter at17(17);
  const RunResult whole = interrupted(e, true, "tpu", at17);
  EXPECT_EQ(whole.file.steps.size(), 20u);
  EXPECT_TRUE(whole.file.ended.completed());
  EXPECT_NE(at17.notes.back().find("after 20 steps"), std::string::npos) << at17.notes.back();
  // The CPU stack has no loops.
  Interrupter of_cpu(3);
  EXPECT_EQ(interrupted(e, false, "cpu", of_cpu).file.steps.size(), 3u);
}

// A part of a run is not reported as the whole run.
TEST(Interrupts, AreToldAsPartial) {
  Interrupter at3(3);
  interrupted(tiny::experiment(tiny::kDense), false, "cpu", at3);
  EXPECT_EQ(at3.ended, "partial: interrupted at step 3 of 20");
}

}  // namespace
}  // namespace twinrun
