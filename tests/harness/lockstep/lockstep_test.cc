// Tests lockstep: clean engines show no violation; planted faults are found at their op, step and
// core; broken links between ops are found; a gap between probes is searched.
#include "harness/lockstep/lockstep.h"

#include <gtest/gtest.h>

#include <ostream>

#include "harness/diagnose/pipeline.h"
#include "harness/tensors/pattern.h"
#include "tests/harness/watched.h"

namespace twinrun {
namespace {

tiny::Watched watch(const char* layers, const std::string& engine, DotPrecision precision,
                    int cores, int64_t steps, ProbePolicy policy, const std::string& fault = "") {
  tiny::Watched w =
      tiny::watch(tiny::backend(engine, 1, precision), layers, cores, steps, policy, fault);
  if (!fault.empty() && w.log->runs.front().empty()) throw std::runtime_error("inert fault");
  return w;
}
using tiny::Watched;

// ---- clean pairs

struct CleanSetup {
  const char* name;
  const char* engine;
  DotPrecision precision;
  int cores;
  const char* layers;
};

std::ostream& operator<<(std::ostream& out, const CleanSetup& c) { return out << c.name; }

class LockstepClean : public testing::TestWithParam<CleanSetup> {};

TEST_P(LockstepClean, ShowsNoViolation) {
  const CleanSetup& c = GetParam();
  const Watched w = watch(c.layers, c.engine, c.precision, c.cores, 5, {});
  for (const Violation& v : w.probe->violations()) {
    ADD_FAILURE() << v.op << " at step " << v.step << ": " << v.elements << v.link << ", "
                  << v.verdict.worst << " times its bound";
  }
  const EngineProbe summary = w.probe->summary("T", 5);
  EXPECT_EQ(summary.steps_probed, 5);
  EXPECT_EQ(summary.steps, 5);
  EXPECT_EQ(summary.policy, "every step");
  EXPECT_GT(summary.ops, 40);
  EXPECT_GT(summary.elements, 5 * 28 * 28 * 12);
  EXPECT_EQ(summary.untestable, 0);
  ASSERT_FALSE(summary.rows.empty());
  EXPECT_LE(summary.rows.front().worst_ratio, 1);
}

INSTANTIATE_TEST_SUITE_P(
    All, LockstepClean,
    testing::Values(CleanSetup{"Cpu1", "cpu", tiny::kOnce, 1, tiny::kNormalized},
                    CleanSetup{"Cpu8", "cpu", tiny::kOnce, 8, tiny::kNormalized},
                    CleanSetup{"TpuDefault1", "tpu", tiny::kOnce, 1, tiny::kNormalized},
                    CleanSetup{"TpuDefault8", "tpu", tiny::kOnce, 8, tiny::kNormalized},
                    CleanSetup{"TpuHigh1", "tpu", tiny::kThrice, 1, tiny::kNormalized},
                    CleanSetup{"TpuHigh8", "tpu", tiny::kThrice, 8, tiny::kNormalized},
                    CleanSetup{"TpuHighest1", "tpu", tiny::kSixTimes, 1, tiny::kNormalized},
                    CleanSetup{"TpuHighest8", "tpu", tiny::kSixTimes, 8, tiny::kNormalized},
                    CleanSetup{"ConvolutionCpu8", "cpu", tiny::kOnce, 8, tiny::kConvolutional},
                    CleanSetup{"ConvolutionTpu1", "tpu", tiny::kOnce, 1, tiny::kConvolutional},
                    CleanSetup{"ConvolutionTpu8", "tpu", tiny::kOnce, 8, tiny::kConvolutional}),
    [](const auto& info) { return std::string(info.param.name); });

// The size of operand rounding shows how many passes were made.
TEST(Lockstep, OperandResidualsTellPrecision) {
  const auto residual = [](DotPrecision p, const std::string& engine) {
    return watch(tiny::kDense, engine, p, 1, 3, {}).probe->summary("E1", 3).dot_residual;
  };
  const double once = residual(tiny::kOnce, "tpu"), thrice = residual(tiny::kThrice, "tpu"),
               six = residual(tiny::kSixTimes, "tpu"), f32 = residual(tiny::kOnce, "cpu");
  EXPECT_GT(once, 0x1p-11);
  EXPECT_LT(once, 0x1p-7);
  EXPECT_LT(thrice, 0x1p-13);
  EXPECT_GT(thrice, 0x1p-20);
  EXPECT_LT(six, 0x1p-20);
  EXPECT_LT(f32, 0x1p-20);
}

// ---- planted faults

struct Planted {
  const char* name;
  const char* fault;
  const char* op;
  int64_t step;
  int replica;   // first core; -1: the collective
  int replicas;  // how many cores show it
  const char* fingerprint;
};

std::ostream& operator<<(std::ostream& out, const Planted& p) { return out << p.fault; }

class LockstepFault : public testing::TestWithParam<Planted> {};

TEST_P(LockstepFault, IsFoundWhereItIs) {
  const Planted& p = GetParam();
  const Watched w = watch(tiny::kDense, "tpu", tiny::kOnce, 8, 8, {}, p.fault);
  ASSERT_FALSE(w.probe->violations().empty());
  const Violation& v = w.probe->violations().front();
  EXPECT_EQ(v.op, p.op);
  EXPECT_EQ(v.step, p.step);
  EXPECT_EQ(v.replica, p.replica);
  EXPECT_EQ(v.replicas, p.replicas);
  EXPECT_EQ(v.what, Violation::What::kResult);
  EXPECT_GT(v.verdict.worst, 1);
  EXPECT_GT(v.verdict.outside, 0);
  EXPECT_NE(v.fingerprint.find(p.fingerprint), std::string::npos) << v.fingerprint;
  EXPECT_NE(v.elements.find(std::to_string(v.verdict.outside) + " of "), std::string::npos);
  // Each op is judged on its own inputs, so no other op is blamed.
  for (const Violation& other : w.probe->violations()) EXPECT_EQ(other.op, p.op);
}

INSTANTIATE_TEST_SUITE_P(
    All, LockstepFault,
    testing::Values(Planted{"TruncatedOperands", "truncate_bf16@dense1/dot_general,from=2",
                            "dense1/dot_general", 2, 0, 8, "instead of rounded"},
                    Planted{"TruncatedOnOneCore", "truncate_bf16@dense1/dot_general,from=2,core=5",
                            "dense1/dot_general", 2, 5, 1, "instead of rounded"},
                    Planted{"DroppedTail", "drop_k_tail@dense1/dot_general,from=5",
                            "dense1/dot_general", 5, 0, 8, ""},
                    Planted{"Scaled", "scale@dense2/kernel.grad,from=7", "dense2/kernel.grad", 7, 0,
                            8, "8 times what was expected"},
                    Planted{"ScaledDown", "scale@dense2/kernel.grad,step=1,magnitude=0.5,core=6",
                            "dense2/kernel.grad", 1, 6, 1, "0.5 times what was expected"},
                    Planted{"DroppedCore", "drop_core@dense1/kernel.grad.all_reduce,core=3",
                            "dense1/kernel.grad.all_reduce", 0, -1, 1, "the sum without core 3"},
                    Planted{"StaleWeights", "stale_weights@dense2/kernel.update,from=4",
                            "dense2/kernel.update", 4, 0, 8, "the old value was kept"},
                    Planted{"StaleForward", "stale_weights@dense1/dot_general,from=3,core=2",
                            "dense1/dot_general", 3, 2, 1, "the step before (stale)"},
                    Planted{"BitFlip", "bit_flip@dense1/kernel.grad,step=6,core=2,magnitude=30",
                            "dense1/kernel.grad", 6, 2, 1, ""}),
    [](const auto& info) { return std::string(info.param.name); });

// The op and the step of a fault are found with every precision, and on one core as well.
TEST(Lockstep, FaultsShowOnEveryPrecision) {
  for (const DotPrecision precision : {tiny::kOnce, tiny::kThrice, tiny::kSixTimes}) {
    for (const int cores : {1, 8}) {
      SCOPED_TRACE(std::string(to_string(precision)) + ", cores " + std::to_string(cores));
      const Watched w = watch(tiny::kNormalized, "tpu", precision, cores, 4, {},
                              "scale@dense2/dot_general,step=2,magnitude=1.01");
      ASSERT_EQ(w.probe->violations().size(), 1u);
      EXPECT_EQ(w.probe->violations()[0].op, "dense2/dot_general");
      EXPECT_EQ(w.probe->violations()[0].step, 2);
      EXPECT_EQ(w.probe->violations()[0].phase, "forward");
      EXPECT_EQ(w.probe->violations()[0].kind, "dot_general");
      EXPECT_EQ(w.probe->violations()[0].layer, "dense2");
    }
  }
}

// ---- probes with gaps

TEST(Lockstep, PolicyProbesTheFirstStepsAndEveryNth) {
  const Watched w = watch(tiny::kDense, "cpu", tiny::kOnce, 1, 20, {3, 10});
  const EngineProbe summary = w.probe->summary("T", 20);
  EXPECT_EQ(summary.steps_probed, 4);  // 0, 1, 2, 10
  EXPECT_EQ(summary.policy, "steps 0-2 and every 10th");
  EXPECT_EQ(
      watch(tiny::kDense, "cpu", tiny::kOnce, 1, 6, {3, 0}).probe->summary("T", 6).steps_probed, 3);
}

TEST(Lockstep, KeepsTheStateAfterTheLastCleanProbe) {
  const Watched w =
      watch(tiny::kDense, "tpu", tiny::kOnce, 8, 20, {3, 5}, "scale@dense2/kernel.grad,from=13");
  ASSERT_FALSE(w.probe->violations().empty());
  EXPECT_EQ(w.probe->violations().front().step, 15);  // the first probe after step 13
  ASSERT_TRUE(w.probe->last_clean());
  EXPECT_EQ(w.probe->last_clean()->first, 11);  // the state after step 10
}

Report diagnosed(const Overrides& overrides, const std::string& fault) {
  const Folder folder;
  DiagnoseOptions options;
  options.directory = folder / "out";
  options.quick = true;
  options.faults = {tiny::must(parse_fault(fault))};
  return tiny::must(diagnose(tiny::scenario(tiny::kDense, overrides), options, nullptr, nullptr))
      .report;
}

TEST(Localise, AGapBetweenProbesIsGoneThrough) {
  const Report r = diagnosed({{"train.steps", "24"}, {"diagnose.probe", "\"10\""}},
                             "scale@dense2/kernel.grad,from=13");
  EXPECT_EQ(r.verdict, VerdictClass::kEngineBug);
  ASSERT_FALSE(r.findings.empty());
  EXPECT_EQ(r.findings[0].op, "dense2/kernel.grad");
  EXPECT_EQ(r.findings[0].step, 13);
}

TEST(Localise, AStaleUpdateInTheGap) {
  const Report r = diagnosed({{"train.steps", "24"}, {"diagnose.probe", "\"10\""}},
                             "stale_weights@dense1/kernel.update,from=16,core=2");
  ASSERT_FALSE(r.findings.empty());
  EXPECT_EQ(r.findings[0].op, "dense1/kernel.update");
  EXPECT_EQ(r.findings[0].step, 16);
  EXPECT_EQ(r.findings[0].core, 2);
}

// ---- links between ops

// Stands between the engine and the probe, and tampers with what the probe sees.
class Tamper : public StepObserver, public TraceSink {
 public:
  explicit Tamper(Lockstep& probe) : probe_(probe) {}
  std::string op;
  size_t replica = 0, operand = 0;
  bool state = false;

  TraceSink* begin_step(int64_t step, const States& before, const StepInputs& inputs) override {
    return probe_.begin_step(step, before, inputs) == nullptr ? nullptr : this;
  }
  void on_op(const OpEvent& event) override {
    if (event.op().name != op || event.step != 1) return probe_.on_op(event);
    std::vector<std::vector<Tensor>> inputs(event.inputs.begin(), event.inputs.end());
    inputs[replica][operand] = changed(inputs[replica][operand]);
    OpEvent reported = event;
    reported.inputs = inputs;
    probe_.on_op(reported);
  }
  void end_step(int64_t step, const States& after, const StepOutputs& outputs) override {
    States reported = after;
    if (state && step == 1) reported[replica].vars[0] = changed(reported[replica].vars[0]);
    probe_.end_step(step, reported, outputs);
  }

 private:
  // Changes one element by one unit in the last place: far inside every bound.
  static Tensor changed(const Tensor& t) {
    Tensor copy = t.clone();
    copy.as<uint32_t>()[0] ^= 1;
    return copy;
  }
  Lockstep& probe_;
};

std::vector<Violation> tampered(const std::string& op, size_t operand, size_t replica, bool state) {
  const Experiment e = tiny::experiment(tiny::kDense);
  const Program program = tiny::program(e, true);
  const auto backend = tiny::backend("cpu");
  ThreadPool pool(1);
  Lockstep probe(program, backend->capabilities(), {}, &pool);
  Tamper tamper(probe);
  tamper.op = op;
  tamper.operand = operand;
  tamper.replica = replica;
  tamper.state = state;
  RunOptions options;
  options.steps = 3;
  options.observer = &tamper;
  options.evaluate = false;
  tiny::must(train(e, program, *backend, options));
  return probe.violations();
}

TEST(LockstepLinks, UntamperedIsClean) { EXPECT_TRUE(tampered("", 0, 0, false).empty()); }

TEST(LockstepLinks, AnOperandThatNobodyWrote) {
  const auto violations = tampered("dense2/dot_general", 1, 4, false);
  ASSERT_FALSE(violations.empty());
  const Violation& v = violations[0];
  EXPECT_EQ(v.what, Violation::What::kLink);
  EXPECT_EQ(v.op, "dense2/dot_general");
  EXPECT_EQ(v.step, 1);
  EXPECT_EQ(v.replica, 4);
  EXPECT_EQ(v.link, "operand 1 is not what dense2/kernel held before the step");
}

TEST(LockstepLinks, ACollectiveThatReadsOtherBits) {
  const auto violations = tampered("dense1/bias.grad.all_reduce", 0, 7, false);
  ASSERT_FALSE(violations.empty());
  EXPECT_EQ(violations[0].what, Violation::What::kLink);
  EXPECT_EQ(violations[0].op, "dense1/bias.grad.all_reduce");
  EXPECT_EQ(violations[0].replica, 7);
}

TEST(LockstepLinks, AStateThatIsNotWhatTheUpdateWrote) {
  const auto violations = tampered("", 0, 3, true);
  ASSERT_EQ(violations.size(), 1u);
  EXPECT_EQ(violations[0].what, Violation::What::kLink);
  EXPECT_EQ(violations[0].op, "dense1/kernel.update");
  EXPECT_EQ(violations[0].step, 1);
  EXPECT_EQ(violations[0].replica, 3);
}

// The cost of watching is reported.
TEST(Lockstep, TheCostIsStated) {
  const EngineProbe p = watch(tiny::kDense, "tpu", tiny::kOnce, 8, 5, {}).probe->summary("T", 5);
  EXPECT_GT(p.seconds, 0);
  EXPECT_GT(p.share, 0);
  EXPECT_LT(p.share, 1);
}

// A constant that is right at first and wrong later.
TEST(Lockstep, AConstantIsJudgedAgainWhenItChanges) {
  const Watched w =
      watch(tiny::kDense, "tpu", tiny::kOnce, 1, 6, {}, "wrong_constant@loss/*,from=3");
  ASSERT_FALSE(w.probe->violations().empty());
  EXPECT_EQ(w.probe->violations().front().kind, "constant");
  EXPECT_EQ(w.probe->violations().front().step, 3);
}

TEST(Lockstep, IndexText) {
  EXPECT_EQ(index_text({2, 3, 4}, 0), "[0,0,0]");
  EXPECT_EQ(index_text({2, 3, 4}, 23), "[1,2,3]");
  EXPECT_EQ(index_text({2, 3, 4}, 14), "[1,0,2]");
}

}  // namespace
}  // namespace twinrun
