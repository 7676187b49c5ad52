// Tests regression gates: a golden run against the same engine, a changed one and another
// conforming one; golden files that are invalid or damaged.
#include "harness/gate/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>

#include "backends/variants/variant.h"
#include "harness/gate/golden.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

using tiny::must;

class Verify : public testing::Test {
 protected:
  // Records a golden run of 20 steps, with the states before steps 0, 6, 12 and 19.
  RunFile record(const char* layers, const std::string& engine, int cores,
                 const Overrides& overrides = {}) {
    const Experiment e = tiny::experiment(layers, overrides);
    RunFile golden = must(record_golden(e, {.spec = {.engine = engine, .cores = cores}}));
    EXPECT_TRUE(golden.ended.completed());
    keep(golden);
    return golden;
  }
  void keep(const RunFile& golden) { must(write_run(path_, golden)); }
  Gate verify(const VerifyOptions& options = {}) const {
    return must(verify_golden(path_, options));
  }
  Gate verify_with(const std::string& fault) const {
    return verify({.faults = {must(parse_fault(fault))}});
  }
  std::string refusal() const {
    const auto gate = verify_golden(path_, {});
    return gate ? "accepted" : gate.error().message();
  }

  Folder folder_;
  std::string path_ = folder_ / "tiny.golden.h5";
};

TEST_F(Verify, SameBitsWhateverTheNumberOfWorkers) {
  const std::pair<const char*, int> engines[] = {
      {"cpu", 1}, {"cpu", 8}, {"tpu", 8}, {"honest:3", 4}};
  for (const auto& [engine, cores] : engines) {
    record(tiny::kNormalized, engine, cores);
    for (const int threads : {1, 3}) {
      const Gate gate = verify({.threads = threads});
      EXPECT_EQ(gate.outcome, GateOutcome::kSame) << engine << cores << "\n" << to_terminal(gate);
      EXPECT_EQ(gate.decides, "bits");
      EXPECT_TRUE(gate.changed.empty()) << to_terminal(gate);
      EXPECT_FALSE(gate.noise);
    }
  }
}

TEST_F(Verify, AChangeIsNamedByStepAndTensor) {
  record(tiny::kDense, "cpu", 1);
  // The golden run has digests of every op at step 6, and of tensors only at step 5.
  const Gate tensor = verify_with("scale@dense1/kernel.grad,from=5,magnitude=1.5");
  EXPECT_EQ(tensor.outcome, GateOutcome::kDiverged);
  ASSERT_TRUE(tensor.divergence);
  EXPECT_EQ(tensor.divergence->step, 5);
  EXPECT_EQ(tensor.divergence->tensor, "dense1/kernel.grad");
  EXPECT_NE(tensor.divergence->was, tensor.divergence->now);
  ASSERT_TRUE(tensor.noise);
  EXPECT_FALSE(tensor.noise->inside);
  ASSERT_TRUE(tensor.noise->outside);
  EXPECT_EQ(tensor.noise->outside->step, 5);  // not recorded: judged because the bits part there
  EXPECT_EQ(tensor.noise->outside->tensor, "dense1/kernel.grad");
  EXPECT_NE(tensor.noise->outside->now.find("1.5 times what was expected"), std::string::npos)
      << tensor.noise->outside->now;

  const Gate op = verify_with("bit_flip@dense2/dot_general,step=6");
  EXPECT_EQ(op.outcome, GateOutcome::kDiverged);
  EXPECT_EQ(op.divergence->step, 6);
  EXPECT_EQ(op.divergence->tensor, "dense2/dot_general");
}

TEST_F(Verify, AChangeOnOneCoreIsNamedByItsCore) {
  record(tiny::kDense, "tpu", 8);
  for (const int core : {0, 3}) {
    const Gate gate =
        verify_with(fmt::format("scale@dense1/kernel.grad,step=12,core={},magnitude=2", core));
    EXPECT_EQ(gate.outcome, GateOutcome::kDiverged);
    ASSERT_TRUE(gate.divergence);
    EXPECT_EQ(gate.divergence->step, 12) << to_terminal(gate);
    EXPECT_EQ(gate.divergence->tensor, "dense1/kernel.grad");
    EXPECT_EQ(gate.divergence->core, core);
  }
}

// One of our own engines has defined bits, so a change that is inside the noise is still a change.
// The gate reports that it is no larger than noise.
TEST_F(Verify, ASmallChangeOfDefinedBitsIsMovedAndInsideTheNoise) {
  record(tiny::kDense, "tpu", 1);
  const std::string fault = "ulp_bias@dense1/kernel.grad,step=12,magnitude=1";
  const auto parsed = parse_fault(fault);
  ASSERT_TRUE(parsed) << parsed.error().message();
  const Gate bits = verify({.faults = {*parsed}});
  EXPECT_EQ(bits.outcome, GateOutcome::kDiverged);
  EXPECT_EQ(bits.divergence->step, 12);
  ASSERT_TRUE(bits.noise);
  EXPECT_TRUE(bits.noise->inside);
  const Gate noise = verify({.decides = VerifyOptions::Decides::kNoise, .faults = {*parsed}});
  EXPECT_EQ(noise.outcome, GateOutcome::kInside);
  EXPECT_EQ(noise.decides, "noise");
}

class VerifyNoise : public Verify {
 protected:
  void conforming_engines_are_inside(int first, int last);
};

void VerifyNoise::conforming_engines_are_inside(int first, int last) {
  record(tiny::kNormalized, "cpu", 4);
  for (int seed = first; seed < last; ++seed) {
    const VerifyOptions options{.engine = fmt::format("honest:{}", seed)};
    const Gate gate = verify(options);
    EXPECT_EQ(gate.outcome, GateOutcome::kInside) << to_terminal(gate);
    EXPECT_EQ(gate.decides, "noise");
    ASSERT_TRUE(gate.noise);
    EXPECT_EQ(gate.noise->states, 4);
    if (seed == first) {
      EXPECT_EQ(verify(options).noise->ratio, gate.noise->ratio);
    }
  }
}

TEST_F(VerifyNoise, ConformingEnginesAreInsideAndTheSameAnswerComesTwice) {
  conforming_engines_are_inside(0, 2);
}
TEST_F(VerifyNoise, SlowTwentyConformingEnginesAreInside) { conforming_engines_are_inside(2, 20); }

// Each fault is far larger than what conforming engines of one bfloat16 pass differ by; their
// gradients are within a few per cent.
TEST_F(VerifyNoise, WrongEnginesAreOutside) {
  record(tiny::kDense, "cpu", 4);
  const std::pair<const char*, const char*> faults[] = {
      {"scale@dense1/kernel.grad.all_reduce,magnitude=2", "dense1/kernel.grad"},
      {"drop_core@dense2/kernel.grad.all_reduce,core=3", "dense2/kernel.grad"},
      {"scale@dense2/bias.grad,magnitude=3", "dense2/bias.grad"},
  };
  int seed = 0;
  for (const auto& [fault, tensor] : faults) {
    const Gate gate =
        verify({.engine = fmt::format("honest:{}", seed++), .faults = {must(parse_fault(fault))}});
    EXPECT_EQ(gate.outcome, GateOutcome::kDiverged) << fault << "\n" << to_terminal(gate);
    ASSERT_TRUE(gate.divergence);
    EXPECT_EQ(gate.divergence->step, 0);
    EXPECT_EQ(gate.divergence->tensor, tensor);
  }
}

// States are recorded before steps 0, 6, 12 and 19. The fault shows at 12, so the first step is
// searched for from 6 on.
TEST_F(VerifyNoise, TheFirstStepOutsideIsFoundBetweenRecordedOnes) {
  record(tiny::kDense, "cpu", 1);
  const Gate gate =
      verify({.engine = "honest:1",
              .faults = {must(parse_fault("scale@dense1/kernel.grad,from=9,magnitude=2"))}});
  EXPECT_EQ(gate.outcome, GateOutcome::kDiverged) << to_terminal(gate);
  ASSERT_TRUE(gate.divergence);
  EXPECT_EQ(gate.divergence->step, 9) << to_terminal(gate);
  EXPECT_EQ(gate.divergence->tensor, "dense1/kernel.grad");
}

// No recorded state shows a fault of one step: the step in which the bits part is judged, too.
TEST_F(VerifyNoise, AFaultOfOneStepIsOutside) {
  record(tiny::kDense, "tpu", 1);
  const Gate gate =
      verify({.decides = VerifyOptions::Decides::kNoise,
              .faults = {must(parse_fault("scale@dense1/kernel.grad,step=9,magnitude=2"))}});
  EXPECT_EQ(gate.outcome, GateOutcome::kDiverged) << to_terminal(gate);
  ASSERT_TRUE(gate.divergence);
  EXPECT_EQ(gate.divergence->step, 9) << to_terminal(gate);
}

// One conforming variant in eight draws new summation orders in every run.
TEST_F(Verify, AnEngineThatDoesNotRepeatIsToldSo) {
  uint64_t seed = 0;
  while (draw_variant(seed, DotPrecision::kBf16).declared.deterministic) ++seed;
  const RunFile golden = record(tiny::kDense, fmt::format("honest:{}", seed), 1);
  EXPECT_FALSE(must(golden_facts(golden, path_)).repeats);
  // A new backend counts its runs from the first again, as a new process does, so it would repeat
  // the first run's bits. The fault makes them differ.
  const Gate noise =
      verify({.faults = {must(parse_fault("ulp_bias@dense1/kernel.grad,step=12,magnitude=1"))}});
  EXPECT_EQ(noise.decides, "noise");
  EXPECT_EQ(noise.outcome, GateOutcome::kInside) << to_terminal(noise);
  EXPECT_TRUE(std::ranges::any_of(noise.notes, [](const std::string& note) {
    return note.find("does not repeat its own bits") != std::string::npos;
  })) << to_terminal(noise);

  // One that repeated when it was recorded has a race now, though each step lies inside the noise.
  RunFile repeated = golden;
  repeated.environment["golden.repeats"] = "yes";
  keep(repeated);
  const auto fault = must(parse_fault("ulp_bias@dense1/kernel.grad,step=12,magnitude=1"));
  const Gate race = verify({.faults = {fault}});
  EXPECT_EQ(race.outcome, GateOutcome::kDiverged) << to_terminal(race);
  EXPECT_NE(race.headline.find("no longer does"), std::string::npos) << to_terminal(race);
  EXPECT_EQ(verify({.decides = VerifyOptions::Decides::kNoise, .faults = {fault}}).outcome,
            GateOutcome::kInside);
}

TEST_F(Verify, WhatChangedBeforeTheFirstStepIsNamed) {
  const RunFile golden = record(tiny::kDense, "cpu", 1);
  RunFile data = golden;
  data.environment["data"] = Digest{1, 2}.hex();
  keep(data);
  EXPECT_EQ(verify().divergence->tensor, "data");

  RunFile declares = golden;
  declares.environment["golden.declares"] = "precision=highest";
  keep(declares);
  EXPECT_EQ(verify().divergence->tensor, "declaration");

  RunFile initial = golden;
  Tensor& kernel = initial.checkpoints.front().tensors.at("dense1/kernel").value;
  kernel = kernel.clone();
  kernel.as<float>()[7] += 1;
  keep(initial);
  const Gate gate = verify();
  EXPECT_EQ(gate.outcome, GateOutcome::kDiverged);
  EXPECT_EQ(gate.divergence->tensor, "dense1/kernel, initial value");
}

TEST_F(Verify, WhatElseChangedIsListed) {
  RunFile golden = record(tiny::kDense, "cpu", 1);
  golden.environment["compiler"] = "g++ 4.4";
  keep(golden);
  const Gate gate = verify();
  EXPECT_EQ(gate.outcome, GateOutcome::kSame);
  ASSERT_EQ(gate.changed.size(), 1u);
  EXPECT_TRUE(gate.changed.front().starts_with("compiler: g++ 4.4, now "));
}

TEST_F(Verify, UpdateRecordsAnew) {
  RunFile golden = record(tiny::kDense, "cpu", 1);
  const Digest right = golden.root_digest();
  golden.trace[40].digest = Digest{1, 2};
  golden.state_digests.back() = Digest{3, 4};
  keep(golden);
  EXPECT_EQ(verify().outcome, GateOutcome::kDiverged);
  const Gate gate = verify({.update = true});
  EXPECT_EQ(gate.outcome, GateOutcome::kDiverged);
  EXPECT_TRUE(gate.updated);
  EXPECT_EQ(must(read_run(path_)).root_digest(), right);
  EXPECT_EQ(verify().outcome, GateOutcome::kSame);
}

TEST_F(Verify, FilesThatCannotBeAreRefusedByName) {
  const RunFile golden = record(tiny::kDense, "cpu", 1);
  const auto says = [&](const std::string& what) {
    const std::string message = refusal();
    EXPECT_NE(message.find(what), std::string::npos) << message;
    EXPECT_NE(message.find("tiny.golden.h5"), std::string::npos) << message;
  };
  RunFile other = golden;
  other.contract = kContractVersion + 1;
  keep(other);
  says(fmt::format("found numeric contract {}", kContractVersion + 1));
  other = golden;
  other.environment.erase("golden.engine");
  keep(other);
  says("not a golden one");
  other = golden;
  other.checkpoints.erase(other.checkpoints.begin());
  keep(other);
  says("lacks the state before step 0");
  other = golden;
  other.state_digests.pop_back();
  keep(other);
  says("19 state digests for 20 steps");
  other = golden;
  other.steps.pop_back();
  other.state_digests.pop_back();
  keep(other);
  says("19 steps, its scenario 20");
  other = golden;
  other.scenario = "seed = 1\n[train\n";
  keep(other);
  EXPECT_NE(refusal(), "accepted");
  other = golden;
  other.checkpoints.front().tensors.erase("dense1/bias");
  keep(other);
  says("dense1/bias");
}

// A damaged file gives an error or a gate, and no damage that is read passes as the same.
TEST_F(Verify, DamagedFilesNeverPass) {
  record(tiny::kDense, "cpu", 1, {{"train.steps", "3"}});
  std::ifstream in(path_, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  const auto put = [&](const std::string& bytes) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  };
  for (const size_t share : {0u, 1u, 10u, 50u, 90u, 99u}) {
    put(whole.substr(0, whole.size() * share / 100));
    EXPECT_NE(refusal(), "accepted") << share;
  }
  int refused = 0;
  constexpr int kFlips = 40;
  for (int i = 0; i < kFlips; ++i) {
    std::string bytes = whole;
    const size_t at = bytes.size() * static_cast<size_t>(i) / kFlips + 11;
    bytes[at % bytes.size()] ^= 0x20;
    put(bytes);
    const auto gate = verify_golden(path_, {});
    refused += !gate;
    // Padding that is never read may change.
    if (gate) {
      EXPECT_EQ(gate->outcome, GateOutcome::kSame) << at;
    }
  }
  EXPECT_GT(refused, kFlips / 2);
}

}  // namespace
}  // namespace twinrun
