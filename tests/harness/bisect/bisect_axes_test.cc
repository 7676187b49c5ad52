// Tests the axes `step` and `op` on real engines with a planted fault. Where it was planted is
// known, and the fault's own log says when it first changed a bit.

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "backends/core/wrapped.h"
#include "backends/exec/messages.h"
#include "harness/bisect/divergence.h"
#include "harness/diagnose/pipeline.h"
#include "tests/harness/tiny.h"

namespace twinrun::bisect {
namespace {

using tiny::must;

struct Planted {
  Experiment experiment;
  Program program;
  std::unique_ptr<Backend> a, b;
  std::shared_ptr<FaultLog> log = std::make_shared<FaultLog>();
  Twins twins() const { return {experiment, program, program, *a, *b}; }
};

Planted planted(const Scenario& scenario, const std::string& fault,
                const std::string& engine = "tpu") {
  Planted p{must(make_experiment(scenario)), {}, tiny::backend(engine), tiny::backend(engine)};
  p.program = p.experiment.sharded(p.experiment.sharding);
  if (!fault.empty())
    p.b = with_faults(std::move(p.b), {must(parse_fault(fault))}, scenario.seed, p.log);
  return p;
}

RunFile run_of(const Experiment& e, const Program& program, Backend& backend) {
  RunOptions options;
  options.evaluate = false;
  return must(train(e, program, backend, options)).file;
}

TEST(BisectStep, EnginesSideBySide) {
  const Planted p =
      planted(tiny::scenario(tiny::kDense), "scale@dense1/kernel.grad,core=3,from=7,magnitude=2");
  const Diverged diverged = must(part_of_engines(p.twins()));
  EXPECT_EQ(diverged.divergence.step, 7);
  EXPECT_EQ(diverged.kept.step, 7);
  EXPECT_EQ(diverged.divergence.executions, 2);
  EXPECT_EQ(diverged.divergence.steps_run, 16);  // no more steps than needed
  ASSERT_FALSE(diverged.divergence.tensors.empty());
  EXPECT_EQ(diverged.divergence.tensors[0].name, "dense1/kernel");
  EXPECT_EQ(diverged.divergence.tensors[0].cores.size(), 8u);  // spread by the all-reduce

  const Planted conforming = planted(tiny::scenario(tiny::kDense, {{"train.steps", "4"}}), "");
  EXPECT_EQ(must(part_of_engines(conforming.twins())).divergence.step, std::nullopt);
}

TEST(BisectStep, RunsOnFileNeedNoEngine) {
  const Planted p = planted(tiny::scenario(tiny::kDense), "scale@dense1/bias.grad,from=11");
  const RunFile a = run_of(p.experiment, p.program, *p.a);
  RunFile b = run_of(p.experiment, p.program, *p.b);
  StepDivergence divergence = must(part_of_runs(a, b));
  EXPECT_EQ(divergence.step, 11);
  EXPECT_EQ(divergence.meets, std::nullopt);
  EXPECT_EQ(divergence.executions, 0);
  EXPECT_EQ(must(part_of_runs(a, a)).step, std::nullopt);
  // A later state that is the same again is reported, too.
  b.state_digests[15] = a.state_digests[15];
  EXPECT_EQ(must(part_of_runs(a, b)).meets, 15);
  // One of the two runs was resumed.
  RunFile late = b;
  late.first_step = 14;
  late.state_digests.erase(late.state_digests.begin(), late.state_digests.begin() + 14);
  divergence = must(part_of_runs(a, late));
  EXPECT_EQ(divergence.step, 14);
  EXPECT_EQ(divergence.first, 14);
  EXPECT_FALSE(divergence.notes.empty());
  late.first_step = 40;
  EXPECT_FALSE(part_of_runs(a, late).ok());
}

TEST(BisectStep, StoredStatesAreSearched) {
  const Scenario s =
      tiny::scenario(tiny::kDense, {{"train.steps", "64"}, {"train.checkpoint_every", "2"}});
  for (const int64_t from : {0, 1, 30, 41, 63}) {
    const Planted p = planted(s, fmt::format("scale@dense1/kernel.grad,from={},magnitude=2", from));
    const RunFile run = run_of(p.experiment, p.program, *p.a);
    const StepDivergence divergence =
        must(part_of_run(p.experiment, p.program, run, *p.b, false, nullptr, nullptr));
    EXPECT_EQ(divergence.step, from);
    // 32 segments: both ends, log2(32), and the two neighbours once more.
    EXPECT_LE(divergence.executions, 1 + 5 + 2);
    EXPECT_LE(divergence.steps_run, 2 * divergence.executions);
  }
  // A fault that strikes once does not show in the last segment, so every step is run.
  const Planted once = planted(s, "scale@dense1/kernel.grad,step=9,magnitude=2");
  const RunFile run = run_of(once.experiment, once.program, *once.a);
  const StepDivergence divergence =
      must(part_of_run(once.experiment, once.program, run, *once.b, false, nullptr, nullptr));
  EXPECT_EQ(divergence.step, 9);
  EXPECT_EQ(divergence.executions, 2);
  RunFile bare = run;
  bare.first_step = 3;
  bare.checkpoints.clear();
  EXPECT_FALSE(
      part_of_run(once.experiment, once.program, bare, *once.b, false, nullptr, nullptr).ok());
}

TEST(BisectOp, NamesOpCoreAndElement) {
  const Planted p =
      planted(tiny::scenario(tiny::kNormalized), "bit_flip@batch_norm1/mean,core=2,step=4");
  const Diverged diverged = must(part_of_engines(p.twins()));
  const OpDivergence op = must(op_of_step(p.twins(), diverged.kept));
  ASSERT_EQ(op.by, OpDivergence::By::kOp);
  EXPECT_EQ(op.step, 4);
  ASSERT_FALSE(p.log->runs.empty());
  const Activation& first = p.log->runs[0].front();
  EXPECT_EQ(op.op, first.op);
  EXPECT_EQ(op.gap.cores, std::vector<int>{2});
  EXPECT_EQ(op.gap.different, first.elements);
  EXPECT_EQ(op.gap.bits_a.size(), 10u);
  EXPECT_NE(op.gap.bits_a, op.gap.bits_b);
  EXPECT_TRUE(op.inputs_agree);
  EXPECT_TRUE(op.repeats_a && op.repeats_b);
  EXPECT_EQ(op.executions, 4);
}

// The fault strikes at random, so a repeated step need not show the difference again.
TEST(BisectOp, ADifferenceThatIsGoneIsNotReproducible) {
  const Planted p = planted(tiny::scenario(tiny::kDense, {{"train.steps", "40"}}),
                            "scale@dense1/kernel.grad,rate=0.2,magnitude=2");
  int gone = 0;
  for (int i = 0; i < 6; ++i) {
    const Diverged diverged = must(part_of_engines(p.twins()));
    const OpDivergence op = must(op_of_step(p.twins(), diverged.kept));
    gone += op.by == OpDivergence::By::kNothing || !op.repeats_b;
  }
  EXPECT_GT(gone, 0);
}

// As an engine of another process: it shows no ops, and leaves zeros for what it is not asked for.
class Foreign : public WrappedBackend {
 public:
  explicit Foreign(std::unique_ptr<Backend> inner)
      : WrappedBackend(std::move(inner), [](Capabilities& c) { c.op_trace = false; }) {}
  Result<std::unique_ptr<Engine>> prepare(const Program& program) override {
    return wrap<Run>(program);
  }

 private:
  struct Run : WrappedEngine {
    using WrappedEngine::WrappedEngine;
    Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
                TraceSink* sink, OpHooks* hooks) override {
      TWINRUN_RETURN_IF_ERROR(inner_->step(step, states, inputs, outputs, sink, hooks));
      for (std::vector<Tensor>& core : outputs)
        for (size_t o = 0; o < core.size(); ++o)
          if (!exec::is_asked_for(program().outputs[o])) core[o] = Tensor::zeros(core[o].type());
      return Ok{};
    }
  };
};

TEST(BisectOp, WithoutOpsTheFirstTensor) {
  Planted p = planted(tiny::scenario(tiny::kDense), "scale@dense2/bias.grad,step=2,magnitude=2");
  p.b = std::make_unique<Foreign>(std::move(p.b));
  const Diverged diverged = must(part_of_engines(p.twins()));
  const OpDivergence op = must(op_of_step(p.twins(), diverged.kept));
  EXPECT_EQ(op.by, OpDivergence::By::kTensor);
  EXPECT_EQ(op.gap.name, "dense2/bias.grad");
  EXPECT_EQ(op.step, 2);
  ASSERT_EQ(op.notes.size(), 1u);
  EXPECT_TRUE(op.repeats_b);
}

// 34 of the 50 planted differences are faults, half of them found by step and op side by side, half
// by stored states; the other 16 are keys (bisect_config_test.cc).
TEST(BisectAxesSlow, ThirtyFourPlantedFaultsAreFound) {
  std::mt19937 random(11);
  const auto pick = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const std::vector<std::string> kinds = {"scale", "bit_flip", "truncate_bf16"};
  int found = 0;
  for (int trial = 0; trial < 200 && found < 34; ++trial) {
    const bool stored = found % 2 == 1;
    Scenario s = must(load_scenario(
        "drill_mlp", {{"train.steps", "32"}, {"train.checkpoint_every", stored ? "1" : "0"}}));
    const Program program = [&] {
      const Experiment e = must(make_experiment(s));
      return e.sharded(e.sharding);
    }();
    const ValueId id = static_cast<ValueId>(pick(static_cast<size_t>(program.graph.size())));
    const Op& op = program.graph.op(id);
    const auto* kind = find_fault_kind(kinds[pick(kinds.size())]);
    if (!applies(*kind, program, id)) continue;
    const int64_t step = static_cast<int64_t>(pick(32));
    const bool collective = op.kind == OpKind::kAllReduce;
    const int core = static_cast<int>(pick(8));
    std::string fault =
        fmt::format("{}@{},{}={}", kind->name, op.name, stored ? "from" : "step", step);
    if (!collective) fault += fmt::format(",core={}", core);
    if (kind->name == "scale") fault += ",magnitude=1.5";
    const Planted p = planted(s, fault);
    const Diverged diverged = must(part_of_engines(p.twins()));
    // Skip a change of bits that no state shows (in zeros, or in what a relu cuts off).
    if (!diverged.divergence.step) continue;
    const auto truth = std::ranges::find_if(p.log->runs.at(0), [&](const Activation& a) {
      return a.step == *diverged.divergence.step;
    });
    ASSERT_NE(truth, p.log->runs[0].end()) << fault;
    if (!stored) {
      ASSERT_EQ(diverged.divergence.step, step) << fault;
    }
    EXPECT_EQ(diverged.divergence.executions, 2);
    const OpDivergence where = must(op_of_step(p.twins(), diverged.kept));
    ASSERT_EQ(where.by, OpDivergence::By::kOp) << fault;
    EXPECT_EQ(where.op, op.name) << fault;
    if (!collective) {
      EXPECT_EQ(where.gap.core, core) << fault;
    }
    EXPECT_EQ(where.gap.different, truth->elements) << fault;
    EXPECT_LE(where.executions, 4);
    if (stored) {
      const RunFile run = run_of(p.experiment, p.program, *p.a);
      const StepDivergence searched =
          must(part_of_run(p.experiment, p.program, run, *p.b, false, nullptr, nullptr));
      // Started from a state of A's, every step of B's at which the fault acts differs at once, if
      // its state shows the fault at all.
      EXPECT_EQ(searched.step, diverged.divergence.step) << fault;
      EXPECT_LE(searched.executions, 2 + 5 + 2) << fault;
    }
    ++found;
  }
  EXPECT_EQ(found, 34);
}

}  // namespace
}  // namespace twinrun::bisect
