// Tests the checks between ops: values that must be equal according to the program, ops that were
// not executed, another program than the requested one, and an engine that declares nothing.
#include "harness/lockstep/links.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "backends/core/wrapped.h"
#include "harness/tensors/pattern.h"
#include "tests/harness/subjects.h"
#include "tests/harness/watched.h"

namespace twinrun {
namespace {

using tiny::Spoiled;
using tiny::watch;
using tiny::Watched;

// Stands between an engine and its observer: leaves out an op, reports it twice, or changes the
// reported state or batch.
class Mistold : public StepObserver, public TraceSink {
 public:
  explicit Mistold(Lockstep& probe) : probe_(probe) {}
  std::string left_out, twice;
  bool other_state = false, other_batch = false;

  TraceSink* begin_step(int64_t step, const States& before, const StepInputs& inputs) override {
    States reported = before;
    StepInputs fed = inputs;
    if (other_state && step == 2) change(reported[1].vars[0]);
    if (other_batch && step == 2) change(fed[3][0]);
    return probe_.begin_step(step, reported, fed) == nullptr ? nullptr : this;
  }
  void on_op(const OpEvent& event) override {
    if (event.op().name == left_out && event.step == 1) return;
    probe_.on_op(event);
    if (event.op().name == twice && event.step == 1) probe_.on_op(event);
  }
  void end_step(int64_t step, const States& after, const StepOutputs& outputs) override {
    probe_.end_step(step, after, outputs);
  }

 private:
  static void change(Tensor& t) {
    t = t.clone();
    t.as<uint32_t>()[0] ^= 1;
  }
  Lockstep& probe_;
};

std::vector<Violation> reported(const std::function<void(Mistold&)>& how) {
  const Experiment e = tiny::experiment(tiny::kDense);
  const Program program = tiny::program(e, true);
  const auto backend = tiny::backend("cpu");
  ThreadPool pool(1);
  Lockstep probe(program, backend->capabilities(), {}, &pool);
  Mistold mistold(probe);
  how(mistold);
  RunOptions options;
  options.steps = 4;
  options.observer = &mistold;
  options.evaluate = false;
  tiny::must(train(e, program, *backend, options));
  return probe.violations();
}

TEST(Links, AnOpThatWasNotExecuted) {
  const auto v = reported([](Mistold& m) { m.left_out = "dense2/dot_general"; });
  ASSERT_EQ(v.size(), 1u);
  EXPECT_EQ(v[0].op, "dense2/dot_general");
  EXPECT_EQ(v[0].step, 1);
  EXPECT_EQ(v[0].what, Violation::What::kLink);
  EXPECT_EQ(v[0].link, "this op of the program was not executed");
}

TEST(Links, AnOpThatRanTwice) {
  const auto v = reported([](Mistold& m) { m.twice = "dense2/dot_general"; });
  ASSERT_FALSE(v.empty());
  EXPECT_EQ(v[0].op, "dense2/dot_general");
  EXPECT_NE(v[0].link.find("ran again"), std::string::npos);
}

TEST(Links, AStateThatTheStepBeforeDidNotLeave) {
  const auto v = reported([](Mistold& m) { m.other_state = true; });
  ASSERT_FALSE(v.empty());
  EXPECT_EQ(v[0].step, 2);
  EXPECT_EQ(v[0].replica, 1);
  EXPECT_NE(v[0].link.find("starts from a different state"), std::string::npos);
}

TEST(Links, ABatchThatWasNotFed) {
  const auto v = reported([](Mistold& m) { m.other_batch = true; });
  ASSERT_FALSE(v.empty());
  EXPECT_EQ(v[0].step, 2);
  EXPECT_EQ(v[0].replica, 3);
  EXPECT_EQ(v[0].what, Violation::What::kFeed);
  EXPECT_NE(v[0].link.find("was fed"), std::string::npos) << v[0].link;
  EXPECT_EQ(std::ranges::count(v, v[0].step, &Violation::step), 1);
}

TEST(Links, WhatIsTheSameOnAllCoresByTheProgramsOwnWords) {
  const Experiment e = tiny::experiment(tiny::kNormalized);
  const Program sharded = tiny::program(e, true);
  const std::vector<bool> uniform = uniform_values(sharded);
  for (const StateVar& var : sharded.state) {
    if (var.next == kNoValue) continue;
    // Each core's batch norm keeps statistics of its own samples.
    EXPECT_EQ(uniform[static_cast<size_t>(var.next)], var.role != StateRole::kStatistic)
        << var.name;
  }
  Sharding apart = e.sharding;
  apart.reduce_gradients = false;
  const Program no_reduce = e.sharded(apart);
  const std::vector<bool> own = uniform_values(no_reduce);
  for (const StateVar& var : no_reduce.state) {
    if (var.role != StateRole::kParameter) continue;
    EXPECT_FALSE(own[static_cast<size_t>(var.next)]) << var.name;
  }
}

// Only the first 3 steps and every 10th are probed, but replicas that diverge between probes are
// seen at once.
TEST(Links, ReplicasThatPartAreSeenOnEveryStep) {
  const Watched w = watch(tiny::backend("tpu"), tiny::kDense, 8, 12, {3, 10},
                          "scale@dense2/kernel.update,step=5,core=6,magnitude=1.5");
  ASSERT_FALSE(w.probe->violations().empty());
  const Violation& v = w.probe->violations().front();
  EXPECT_EQ(v.step, 5);
  EXPECT_EQ(v.replica, 6);
  EXPECT_EQ(v.op, "dense2/kernel.update");
  EXPECT_NE(v.link.find("diverges from core 0's"), std::string::npos) << v.link;
  ASSERT_FALSE(w.probe->divergences().empty());
  EXPECT_EQ(w.probe->divergences()[0].variable, "dense2/kernel");
  EXPECT_TRUE(w.probe->divergences()[0].must_be_equal);
}

TEST(Links, StatisticsOfEachCoreMayPart) {
  const Watched w = watch(tiny::backend("tpu"), tiny::kNormalized, 8, 3);
  EXPECT_TRUE(w.probe->violations().empty()) << w.all();
  ASSERT_FALSE(w.probe->divergences().empty());
  for (const ReplicaDivergence& p : w.probe->divergences())
    EXPECT_FALSE(p.must_be_equal) << p.variable;
}

// ---- another program

// Runs the program of another sharding than the requested one.
class Elsewhere : public WrappedBackend {
 public:
  Elsewhere(std::unique_ptr<Backend> inner, Program other)
      : WrappedBackend(std::move(inner)), other_(std::move(other)) {}
  Result<std::unique_ptr<Engine>> prepare(const Program&) override {
    return inner_->prepare(other_);
  }

 private:
  Program other_;
};

TEST(ExecutedProgram, AnotherOneIsRecordedAndJudgedByItsOwnOps) {
  const Experiment e = tiny::experiment(tiny::kDense);
  const Program asked = tiny::program(e, true);
  Sharding apart = e.sharding;
  apart.reduce_gradients = false;
  Elsewhere subject(tiny::backend("tpu"), e.sharded(apart));
  ThreadPool pool(1);
  Lockstep probe(asked, subject.capabilities(), {}, &pool);
  RunOptions options;
  options.steps = 4;
  options.observer = &probe;
  options.evaluate = false;
  tiny::must(train(e, asked, subject, options));
  ASSERT_NE(probe.executed_program(), nullptr);
  EXPECT_FALSE(probe.executed_program()->sharding.reduce_gradients);
  EXPECT_TRUE(probe.violations().empty()) << probe.violations()[0].op << probe.violations()[0].link;
  // The weights of its cores diverge, which its own program allows.
  ASSERT_FALSE(probe.divergences().empty());
  EXPECT_FALSE(probe.divergences()[0].must_be_equal);
}

TEST(ExecutedProgram, TheOneAskedForIsNotAnother) {
  EXPECT_EQ(watch(tiny::backend("tpu"), tiny::kDense, 8, 3).probe->executed_program(), nullptr);
}

// ---- evidence levels

TEST(EvidenceLevel, NothingDeclaredIsJudgedByTheLoosestBounds) {
  const auto undeclared = [](Capabilities& c) { c.declares_arithmetic = false; };
  for (const char* engine : {"cpu", "tpu"}) {
    auto subject = std::make_unique<Spoiled>(tiny::backend(engine), nullptr, undeclared);
    const Watched w = watch(std::move(subject), tiny::kNormalized, 8, 4);
    EXPECT_EQ(w.probe->level(), 'B');
    EXPECT_TRUE(w.probe->violations().empty()) << w.all();
    EXPECT_NE(w.probe->summary("T", 4).dot_residual_text.find("the engine declares none"),
              std::string::npos);
  }
  auto subject = std::make_unique<Spoiled>(tiny::backend("tpu"), nullptr, undeclared);
  const Watched w =
      watch(std::move(subject), tiny::kDense, 8, 4, {}, "scale@dense2/kernel.grad,from=2");
  ASSERT_FALSE(w.probe->violations().empty());
  EXPECT_EQ(w.probe->violations()[0].op, "dense2/kernel.grad");
  EXPECT_EQ(w.probe->violations()[0].step, 2);
  EXPECT_EQ(watch(tiny::backend("tpu"), tiny::kDense, 1, 1).probe->level(), 'A');
}

// ---- which elements

std::vector<int64_t> where(int64_t all, const std::function<bool(int64_t)>& f) {
  std::vector<int64_t> at;
  for (int64_t i = 0; i < all; ++i) {
    if (f(i)) at.push_back(i);
  }
  return at;
}

TEST(Pattern, SaysWhichElements) {
  const Dims matrix = {8, 20}, image = {2, 6, 6, 3};
  EXPECT_EQ(element_pattern(matrix, {}), "");
  EXPECT_EQ(element_pattern(matrix, {41}), "one element, [2,1]");
  EXPECT_EQ(element_pattern(matrix, where(160, [](int64_t) { return true; })), "all elements");
  EXPECT_EQ(element_pattern(matrix, where(160, [](int64_t i) { return i / 20 == 3; })),
            "index 3 of 8 along dimension 0");
  EXPECT_EQ(element_pattern(matrix, where(160, [](int64_t i) { return i % 20 >= 16; })),
            "the last 4 of 20 along dimension 1");
  EXPECT_EQ(element_pattern(matrix, where(160, [](int64_t i) { return i % 20 % 4 == 1; })),
            "every 4th along dimension 1, from 1");
  EXPECT_EQ(element_pattern(image, where(216,
                                         [](int64_t i) {
                                           const int64_t y = i / 18 % 6, x = i / 3 % 6;
                                           return y == 0 || y == 5 || x == 0 || x == 5;
                                         })),
            "the border of dimensions 1 and 2, 1 wide");
  EXPECT_EQ(element_pattern({7, 9}, where(63, [](int64_t i) { return i % 8 == 3; })),
            "every 8th element, from 3");
}

}  // namespace
}  // namespace twinrun
