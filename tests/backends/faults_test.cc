// Tests of planted faults: their text form, where and when they strike, and exactly what they
// change.
#include "backends/faults/faults.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "backends/registry.h"
#include "program/base/bits.h"
#include "program/ops/contraction.h"
#include "tests/backends/fault_trials.h"

namespace twinrun::faults_test {
namespace {

using small::f32;
using small::Hand;
using small::hooks_of;
using small::mapped;
using small::numbers;
using small::Recorder;
using small::Trial;
using Vec = std::vector<double>;

constexpr const char* kUsage =
    "KIND@OP-GLOB[,core=C][,step=S|from=S|every=N][,magnitude=M][,rate=P]";

// ---- the text form ----

TEST(ParseFault, Good) {
  const auto f = parse_fault("truncate_bf16@dense1/*,core=3,from=5");
  ASSERT_TRUE(f.ok());
  EXPECT_EQ(f->kind->name, "truncate_bf16");
  EXPECT_EQ(f->glob, "dense1/*");
  EXPECT_EQ(f->core, 3);
  EXPECT_EQ(f->from, 5);
  EXPECT_FALSE(f->step || f->every || f->magnitude);
  EXPECT_EQ(f->text, "truncate_bf16@dense1/*,core=3,from=5");
  EXPECT_EQ(parse_fault("scale@*,magnitude=-0.5,every=3")->magnitude, -0.5);
  EXPECT_EQ(parse_fault("scale@a@b,step=0")->glob, "a@b") << "names may hold an @";
  const std::vector<std::string> kinds = fault_kinds();
  for (size_t i = 0; i < kinds.size(); ++i) {
    EXPECT_EQ(parse_fault(kinds[i] + "@x")->kind, &fault_catalogue()[i]) << kinds[i];
  }
  EXPECT_EQ(parse_fault("nan@x,rate=0.02")->rate, 0.02);
}

TEST(ParseFault, Bad) {
  const std::tuple<const char*, const char*, const char*> rows[] = {
      {"scale", "the '@' between the kind and the op is missing", kUsage},
      {"", "the '@' between the kind and the op is missing", kUsage},
      {"drop_k_tial@x", "unknown kind 'drop_k_tial' (--fault help lists all 52)",
       "did you mean 'drop_k_tail'?"},
      {"scale@", "the op pattern after '@' is missing", kUsage},
      {"scale@,step=1", "the op pattern after '@' is missing", kUsage},
      {"scale@x,", "'' is not KEY=VALUE", kUsage},
      {"scale@x,step", "'step' is not KEY=VALUE", kUsage},
      {"scale@x,croe=1", "unknown key 'croe' (allowed: core, step, from, every, magnitude, rate)",
       "did you mean 'core'?"},
      {"scale@x,core=-1", "core '-1' is not a count", kUsage},
      {"scale@x,core=two", "core 'two' is not a count", kUsage},
      {"scale@x,step=1.5", "step '1.5' is not a count", kUsage},
      {"scale@x,step=", "step '' is not a count", kUsage},
      {"scale@x,every=0", "every '0' is not a count", kUsage},
      {"scale@x,rate=0", "rate '0' is not a probability above 0", kUsage},
      {"scale@x,rate=2", "rate '2' is not a probability above 0", kUsage},
      {"scale@x,rate=now", "rate 'now' is not a finite number", kUsage},
      {"one_pass@x,magnitude=2", "one_pass has no magnitude", "leave it out"},
      {"lane@x,magnitude=2.5",
       "magnitude '2.5' is not a whole number from 0 to 1e9; its meaning: number n", kUsage},
      {"scale@x,magnitude=big", "magnitude 'big' is not a finite number", kUsage},
      {"scale@x,step=1,from=2", "only one of step, from and every can be given", kUsage},
      {"scale@x,step=1,step=2", "only one of step, from and every can be given", kUsage},
  };
  for (const auto& [text, what, fix] : rows) {
    const auto f = parse_fault(text);
    ASSERT_FALSE(f.ok()) << text;
    EXPECT_EQ(f.error().what, what) << text;
    EXPECT_EQ(f.error().fix, fix) << text;
    EXPECT_EQ(f.error().where, std::string("--fault ") + text);
  }
}

TEST(ParseFault, WhenItIsActive) {
  const auto steps = [](const std::string& text) {
    std::string out;
    for (int64_t s = 0; s < 8; ++s) out += parse_fault(text)->active_at(s) ? std::to_string(s) : "";
    return out;
  };
  EXPECT_EQ(steps("scale@x"), "01234567");
  EXPECT_EQ(steps("scale@x,step=3"), "3");
  EXPECT_EQ(steps("scale@x,from=5"), "567");
  EXPECT_EQ(steps("scale@x,every=3"), "036");
  EXPECT_EQ(steps("bit_flip@x"), "0") << "once, unless it is told when";
  EXPECT_EQ(steps("bit_flip@x,from=6"), "67");
}

// ---- running with faults ----

Error refusal(const Program& p, const std::string& text) {
  const auto hooks = FaultHooks::make(p, {*parse_fault(text)}, 1);
  return hooks.ok() ? Error{"accepted", "", ""} : hooks.error();
}

// A training step of a dense layer and relu with a mean squared error, by momentum.
Program dense_step(int cores = 2) {
  return training_step(shard(
      build_forward(Mode::kTraining, 4, {{6}}, 1, OptimizerSpec{OptimizerSpec::Kind::kMomentum},
                    [=](Layers& net) {
                      net.dense("dense1", 3);
                      net.relu("relu1");
                      net.mean_squared_error(3, {Reducer::kMean});
                    }),
      {.cores = cores}));
}
Trial dense_trial(int cores = 2) {
  Trial t("cpu", dense_step(cores));
  t.split("images", small::generic_f32({4, 6}, -1, 1, 3));
  t.split("labels", small::i32({4}, {0, 1, 2, 0}));
  t.split("sample_ids", small::i32({4}, {0, 1, 2, 3}));
  return t;
}

// Runs with faults; returns the ops whose result differs from a correct execution on the same
// inputs, as "step name replica".
std::vector<std::string> struck(const std::vector<std::string>& faults, int steps = 3) {
  Trial conforming = dense_trial(), faulty = dense_trial();
  auto hooks = hooks_of(faulty.program(), faults);
  std::vector<std::string> out;
  for (int s = 0; s < steps; ++s) {
    Recorder seen;
    faulty.step(s, &seen, hooks.get());
    // Replay every op alone, on the inputs that the faulty engine reports to have read.
    for (const auto& name : seen.order) {
      const auto& op = seen.seen.at(name);
      const auto alone = small::replayed("cpu", faulty.program(), name, op, s);
      for (size_t r = 0; r < 2; ++r) {
        if (!alone[r].same_bits(op.outputs[r]))
          out.push_back(std::to_string(s) + " " + name + " " + std::to_string(r));
      }
    }
  }
  return out;
}

using Strikes = std::vector<std::string>;

TEST(Faults, StrikeTheRightOpStepAndCoreOnly) {
  EXPECT_EQ(struck({}), Strikes{});
  EXPECT_EQ(struck({"scale@dense1/dot_general,core=1,step=1"}),
            (Strikes{"1 dense1/dot_general 1"}));
  EXPECT_EQ(struck({"scale@dense1/dot_general,from=2"}),
            (Strikes{"2 dense1/dot_general 0", "2 dense1/dot_general 1"}));
  EXPECT_EQ(struck({"truncate_bf16@dense1/dot_general,core=0,every=2"}),
            (Strikes{"0 dense1/dot_general 0", "2 dense1/dot_general 0"}));
  EXPECT_EQ(struck({"drop_k_tail@dense1/kernel.grad,core=0,step=2"}),
            (Strikes{"2 dense1/kernel.grad 0"}));
  EXPECT_EQ(struck({"drop_core@dense1/kernel.grad.all_reduce,step=0"}),
            (Strikes{"0 dense1/kernel.grad.all_reduce 0", "0 dense1/kernel.grad.all_reduce 1"}));
  EXPECT_EQ(struck({"stale_weights@dense1/kernel.update,core=1,step=1"}),
            (Strikes{"1 dense1/kernel.update 1"}));
  EXPECT_EQ(struck({"bit_flip@dense1/bias.grad,core=1"}), (Strikes{"0 dense1/bias.grad 1"}));
  EXPECT_EQ(struck({"scale@dense1/*.grad,step=0,core=0", "bit_flip@loss/gap,step=2,core=1"}),
            (Strikes{"0 dense1/bias.grad 0", "0 dense1/kernel.grad 0", "2 loss/gap 1"}));
}

TEST(Faults, ActivationsSayWhatChanged) {
  Trial t = dense_trial();
  auto hooks = hooks_of(t.program(), {"scale@dense1/dot_general,from=1",
                                      "bit_flip@dense1/kernel.grad,step=1,core=0"});
  for (int s = 0; s < 2; ++s) t.step(s, nullptr, hooks.get());
  const std::vector<Activation> log = hooks->activations();
  ASSERT_EQ(log.size(), 3u);
  EXPECT_EQ(log[0].op, "dense1/dot_general");
  EXPECT_EQ(log[0].replica, 0);
  EXPECT_EQ(log[0].elements, 2 * 3);
  EXPECT_EQ(log[1].replica, 1);
  EXPECT_EQ(log[1].fault, "scale@dense1/dot_general,from=1");
  EXPECT_EQ(log[2].op, "dense1/kernel.grad");
  EXPECT_EQ(log[2].elements, 1);
  for (const Activation& a : log) EXPECT_EQ(a.step, 1);
}

TEST(Faults, ThatChangeNoBitAreNotLogged) {
  Trial t = dense_trial();
  auto hooks = hooks_of(t.program(), {"scale@dense1/dot_general,magnitude=1"});
  t.step(0, nullptr, hooks.get());
  EXPECT_TRUE(hooks->activations().empty());
}

TEST(Faults, AreTheSameOnEveryNumberOfThreads) {
  std::string first;
  for (int threads : {1, 2, 3}) {
    Trial t("cpu", dense_step(), {.threads = threads});
    t.split("images", small::generic_f32({4, 6}, -1, 1, 3));
    t.split("labels", small::i32({4}, {0, 1, 2, 0}));
    t.split("sample_ids", small::i32({4}, {0, 1, 2, 3}));
    auto hooks = hooks_of(
        t.program(), {"bit_flip@*,every=1", "stale_weights@*.grad,from=1", "scale@loss/*,core=1"});
    DigestBuilder log;
    for (int s = 0; s < 3; ++s) t.step(s, nullptr, hooks.get());
    for (const Activation& a : hooks->activations())
      log.add(a.op + std::to_string(a.step) + "," + std::to_string(a.replica));
    const std::string digest = t.digest() + log.finish().hex();
    if (first.empty()) first = digest;
    EXPECT_EQ(digest, first) << threads;
  }
}

// ---- what each kind does ----

// A program of one op on one core: y = f(a, b).
struct OneOp {
  Hand h;
  ValueId a, b;
  OneOp(Dims da, Dims db)
      : a(h.input("a", {DType::kF32, da})), b(h.input("b", {DType::kF32, db})) {}
  Program program(ValueId y) {
    h.p.outputs = {{"y", y}};
    return h.p;
  }
};
Tensor run_one(const Program& p, const Tensor& a, const Tensor& b, const std::string& fault,
               Recorder* seen = nullptr) {
  Trial t("cpu", p);
  t.set("a", a);
  t.set("b", b);
  std::unique_ptr<FaultHooks> hooks;
  if (!fault.empty()) hooks = hooks_of(p, {fault});
  t.step(0, seen, hooks.get());
  return t.output("y");
}
float cut(float v) { return from_bits(to_bits(v) & 0xFFFF0000u); }

TEST(FaultKinds, TruncateCutsTheOperandsOfADot) {
  OneOp op({3, 5}, {5, 2});
  const Program p = op.program(op.h.b.dot(op.a, op.b, 1, 0, "y"));
  const Tensor a = small::generic_f32({3, 5}, -2, 2, 1), b = small::generic_f32({5, 2}, -2, 2, 2);
  Recorder seen;
  const Tensor faulty = run_one(p, a, b, "truncate_bf16@y", &seen);
  EXPECT_TRUE(faulty.same_bits(run_one(p, mapped(a, cut), mapped(b, cut), "")));
  EXPECT_FALSE(faulty.same_bits(run_one(p, a, b, "")));
  EXPECT_TRUE(seen.seen.at("y").inputs[0][0].same_bits(a)) << "the trace shows what it was given";
}

TEST(FaultKinds, TruncateCutsTheResultOfOtherOps) {
  OneOp op({8}, {8});
  const Program p = op.program(op.h.b.mul(op.a, op.b, "y"));
  const Tensor a = small::generic_f32({8}, -2, 2, 1), b = small::generic_f32({8}, -2, 2, 2);
  EXPECT_TRUE(run_one(p, a, b, "truncate_bf16@y").same_bits(mapped(run_one(p, a, b, ""), cut)));
}

TEST(FaultKinds, ScaleMultipliesTheResult) {
  OneOp op({8}, {8});
  const Program p = op.program(op.h.b.add(op.a, op.b, "y"));
  const Tensor a = small::generic_f32({8}, -2, 2, 1), b = small::generic_f32({8}, -2, 2, 2);
  const Tensor conforming = run_one(p, a, b, "");
  EXPECT_TRUE(
      run_one(p, a, b, "scale@y").same_bits(mapped(conforming, [](float v) { return v * 8; })));
  EXPECT_TRUE(run_one(p, a, b, "scale@y,magnitude=0.1").same_bits(mapped(conforming, [](float v) {
    return v * 0.1f;
  })));
}

// Expects that the fault gives the result of an operand with zeros in the tail of k. keep(flat
// index in that operand) says whether an element is before the tail.
void expect_tail(const Program& p, const Tensor& a, const Tensor& b, bool zero_first,
                 const std::string& fault, const std::function<bool(int64_t)>& keep) {
  Tensor zeroed = (zero_first ? a : b).clone();
  int64_t dropped = 0;
  for (int64_t i = 0; i < zeroed.elements(); ++i) {
    if (keep(i)) continue;
    zeroed.as<float>()[static_cast<size_t>(i)] = 0;
    ++dropped;
  }
  EXPECT_GT(dropped, 0);
  const Tensor faulty = run_one(p, a, b, fault);
  EXPECT_TRUE(faulty.same_bits(zero_first ? run_one(p, zeroed, b, "") : run_one(p, a, zeroed, "")))
      << fault;
  EXPECT_FALSE(faulty.same_bits(run_one(p, a, b, ""))) << fault;
}

TEST(FaultKinds, DropKTailOfADotInEveryLayout) {
  for (const int64_t k : {300, 256, 5}) {
    const int64_t tail = k == 300 ? 44 : k == 256 ? 128 : 5;
    for (int lhs : {0, 1}) {
      for (int rhs : {0, 1}) {
        for (const bool batched : {false, true}) {
          Dims da = lhs == 1 ? Dims{3, k} : Dims{k, 3}, db = rhs == 0 ? Dims{k, 2} : Dims{2, k};
          if (batched) {
            da.insert(da.begin(), 4);
            db.insert(db.begin(), 4);
          }
          OneOp op(da, db);
          const Program p = op.program(op.h.b.dot(op.a, op.b, lhs, rhs, "y", batched ? 1 : 0));
          const Tensor a = small::generic_f32(da, -1, 1, 1), b = small::generic_f32(db, -1, 1, 2);
          const auto at_k = [&](int64_t i) { return lhs == 1 ? i % k : i / 3 % k; };
          expect_tail(p, a, b, true, "drop_k_tail@y",
                      [&](int64_t i) { return at_k(i) < k - tail; });
          expect_tail(p, a, b, true, "drop_k_tail@y,magnitude=2",
                      [&](int64_t i) { return at_k(i) < k - 2; });
        }
      }
    }
  }
}

TEST(FaultKinds, DropKTailOfAConvolution) {
  const Window w{{3, 3}, {1, 1}, {1, 1}, {1, 1}};
  OneOp op({2, 5, 5, 15}, {3, 3, 15, 4});  // K = 135 = 128 + 7
  const Program p = op.program(op.h.b.convolution(op.a, op.b, w, "y"));
  const Tensor a = small::generic_f32({2, 5, 5, 15}, -1, 1, 1),
               b = small::generic_f32({3, 3, 15, 4}, -1, 1, 2);
  expect_tail(p, a, b, false, "drop_k_tail@y", [](int64_t i) { return i / 4 < 128; });
}

TEST(FaultKinds, DropKTailOfAnInputGradient) {
  const Window w{{3, 3}, {1, 1}, {1, 1}, {1, 1}};
  OneOp op({2, 5, 5, 15}, {3, 3, 4, 15});  // dy, w [kh, kw, ci, co]: k = (kh, kw, co), K = 135
  const Program p = op.program(op.h.b.convolution_input_grad(op.a, op.b, {2, 5, 5, 4}, w, "y"));
  const Tensor a = small::generic_f32({2, 5, 5, 15}, -1, 1, 1),
               b = small::generic_f32({3, 3, 4, 15}, -1, 1, 2);
  expect_tail(p, a, b, false, "drop_k_tail@y",
              [](int64_t i) { return i / 60 * 15 + i % 15 < 128; });
}

// k is that of one group, and the tail is missing in every group.
TEST(FaultKinds, DropKTailOfAGroupedInputGradient) {
  const Window w{{3, 3}, {1, 1}, {1, 1}, {1, 1}};
  OneOp op({2, 5, 5, 30}, {3, 3, 4, 30});  // two groups: k = (kh, kw, 15 of co), K = 135
  const Program p = op.program(op.h.b.convolution_input_grad(op.a, op.b, {2, 5, 5, 8}, w, "y", 2));
  const Tensor a = small::generic_f32({2, 5, 5, 30}, -1, 1, 1),
               b = small::generic_f32({3, 3, 4, 30}, -1, 1, 2);
  EXPECT_EQ(k_size(p.graph.op(p.graph.find("y")), std::vector<Tensor>{a, b}), 135);
  expect_tail(p, a, b, false, "drop_k_tail@y",
              [](int64_t i) { return i / 120 * 15 + i % 15 < 128; });
}

TEST(FaultKinds, DropKTailOfAKernelGradient) {
  const Window w{{3, 3}, {1, 1}, {1, 1}, {1, 1}};
  OneOp op({6, 5, 5, 2}, {6, 5, 5, 4});  // x, dy: k = (n, oh, ow), K = 150 = 128 + 22
  const Program p = op.program(op.h.b.convolution_kernel_grad(op.a, op.b, {3, 3, 2, 4}, w, "y"));
  const Tensor a = small::generic_f32({6, 5, 5, 2}, -1, 1, 1),
               b = small::generic_f32({6, 5, 5, 4}, -1, 1, 2);
  expect_tail(p, a, b, false, "drop_k_tail@y", [](int64_t i) { return i / 4 < 128; });
}

TEST(FaultKinds, DropCoreLeavesOnePartOut) {
  Hand h;
  const ValueId x = h.input("x", {DType::kF32, {4}});
  h.p.outputs = {{"y", h.b.all_reduce(x, "y")}};
  h.p.sharding.cores = 3;
  for (const auto& [fault, sum] : std::vector<std::pair<std::string, double>>{
           {"drop_core@y", 11}, {"drop_core@y,core=0", 110}, {"drop_core@y,core=1", 101}}) {
    Trial t("cpu", h.p);
    for (size_t r = 0; r < 3; ++r)
      t.set("x", f32({4}, std::vector<float>(4, r == 0 ? 1.0f : r == 1 ? 10.0f : 100.0f)), r);
    auto hooks = hooks_of(h.p, {fault});
    t.step(0, nullptr, hooks.get());
    for (size_t r = 0; r < 3; ++r) EXPECT_EQ(numbers(t.output("y", r)), Vec(4, sum)) << fault;
    ASSERT_EQ(hooks->activations().size(), 1u);
    EXPECT_EQ(hooks->activations()[0].replica, -1);
    EXPECT_EQ(hooks->activations()[0].elements, 4);
  }
}

TEST(FaultKinds, StaleResultIsTheOneOfTheStepBefore) {
  Hand h;
  const ValueId x = h.input("x", {DType::kF32, {2}});
  h.p.outputs = {{"y", h.b.add(x, x, "y")}};
  Trial t("cpu", h.p);
  auto hooks = hooks_of(h.p, {"stale_weights@y,from=2"});
  std::vector<double> y;
  for (int s = 0; s < 5; ++s) {
    t.set("x", f32({2}, {static_cast<float>(s), 0}));
    t.step(s, nullptr, hooks.get());
    y.push_back(numbers(t.output("y"))[0]);
  }
  // From step 2 on the result is that of the step before: its correct one, not the stale one.
  EXPECT_EQ(y, (Vec{0, 2, 2, 4, 6}));
}

TEST(FaultKinds, StaleAtTheFirstStepHasNothingToRepeat) {
  Trial t = dense_trial(), conforming = dense_trial();
  auto hooks = hooks_of(t.program(), {"stale_weights@dense1/dot_general,step=0"});
  t.step(0, nullptr, hooks.get());
  conforming.step(0);
  EXPECT_EQ(t.digest(), conforming.digest());
}

TEST(FaultKinds, StaleUpdateKeepsTheOldWeights) {
  Trial t = dense_trial();
  auto hooks = hooks_of(t.program(), {"stale_weights@dense1/kernel.update,step=1"});
  t.step(0, nullptr, hooks.get());
  const Tensor before = t.state("dense1/kernel"), bias = t.state("dense1/bias");
  t.step(1, nullptr, hooks.get());
  EXPECT_TRUE(t.state("dense1/kernel").same_bits(before));
  EXPECT_FALSE(t.state("dense1/bias").same_bits(bias));
  t.step(2, nullptr, hooks.get());
  EXPECT_FALSE(t.state("dense1/kernel").same_bits(before));
}

// The same holds at the first step, where no earlier result exists.
TEST(FaultKinds, StaleUpdateOfTheFirstStepKeepsTheInitialWeights) {
  Trial t = dense_trial();
  const Tensor initial = t.state("dense1/kernel");
  auto hooks = hooks_of(t.program(), {"stale_weights@dense1/kernel.update,step=0"});
  t.step(0, nullptr, hooks.get());
  EXPECT_TRUE(t.state("dense1/kernel").same_bits(initial));
}

TEST(FaultKinds, BitFlipChangesOneBitOfOneElementOnce) {
  for (const auto& [magnitude, bit] : std::vector<std::pair<std::string, int>>{
           {"", 22}, {",magnitude=0", 0}, {",magnitude=31", 31}}) {
    OneOp op({50}, {50});
    const Program p = op.program(op.h.b.add(op.a, op.b, "y"));
    const Tensor a = small::generic_f32({50}, -2, 2, 1), b = small::generic_f32({50}, -2, 2, 2);
    Trial t("cpu", p);
    t.set("a", a);
    t.set("b", b);
    auto hooks = hooks_of(p, {"bit_flip@y" + magnitude});
    const Tensor conforming = run_one(p, a, b, "");
    for (int s = 0; s < 3; ++s) {
      t.step(s, nullptr, hooks.get());
      int bits = 0;
      for (size_t i = 0; i < 50; ++i) {
        const uint32_t difference =
            to_bits(conforming.as<float>()[i]) ^ to_bits(t.output("y").as<float>()[i]);
        bits += std::popcount(difference);
        if (difference != 0) {
          EXPECT_EQ(difference, 1u << bit);
        }
      }
      EXPECT_EQ(bits, s == 0 ? 1 : 0) << "step " << s;
    }
    EXPECT_EQ(hooks->activations().size(), 1u);
  }
}

TEST(FaultKinds, BitFlipPicksItsElementByTheSeed) {
  OneOp op({1000}, {1000});
  const Program p = op.program(op.h.b.add(op.a, op.b, "y"));
  const Tensor zero = Tensor::zeros({DType::kF32, {1000}});
  const auto element = [&](uint64_t seed, int64_t step) {
    Trial t("cpu", p);
    t.set("a", zero);
    t.set("b", zero);
    auto hooks = hooks_of(p, {"bit_flip@y,every=1"}, {.seed = seed});
    t.step(step, nullptr, hooks.get());
    const Vec y = numbers(t.output("y"));
    return std::find_if(y.begin(), y.end(), [](double v) { return v != 0; }) - y.begin();
  };
  EXPECT_EQ(element(1, 0), element(1, 0));
  EXPECT_NE(element(1, 0), element(2, 0));
  EXPECT_NE(element(1, 0), element(1, 1));
}

// ---- refusals ----

TEST(FaultRefusals, NameTheNearestOp) {
  const Error none = refusal(dense_step(), "scale@dense1/dot_genral");
  EXPECT_EQ(none.what, "no op matches 'dense1/dot_genral'");
  EXPECT_EQ(none.fix, "the nearest op it can act on is 'dense1/dot_general'");
  EXPECT_EQ(none.where, "--fault scale@dense1/dot_genral");
  const Error kind = refusal(dense_step(), "drop_k_tail@dense1/add_bias");
  EXPECT_EQ(kind.what,
            "'dense1/add_bias' matches ops, but none that drop_k_tail can act on (dots)");
  EXPECT_EQ(refusal(dense_step(1), "drop_core@*").fix,
            "this program has no op for this kind of fault");
  EXPECT_EQ(refusal(dense_step(), "scale@dense1/kernel").what,
            "'dense1/kernel' matches ops, but none that scale can act on (any f32 op)")
      << "a parameter is given, not computed";
  EXPECT_EQ(refusal(dense_step(), "truncate_bf16@loss/is_label").what,
            "'loss/is_label' matches ops, but none that truncate_bf16 can act on (any f32 op)");
}

TEST(FaultRefusals, NameTheCores) {
  const Error e = refusal(dense_step(), "scale@dense1/dot_general,core=2");
  EXPECT_EQ(e.what, "core 2 does not exist (cores 0 to 1)");
  EXPECT_EQ(refusal(dense_step(), "scale@dense1/dot_general,core=1").what, "accepted");
}

TEST(FaultRefusals, TheOracleTakesNone) {
  Trial t("cpu:f64", dense_step());
  auto hooks = hooks_of(t.program(), {"scale@dense1/dot_general"});
  StepOutputs outputs;
  auto engine = *(*make_backend("cpu:f64", {}))->prepare(t.program());
  EXPECT_FALSE(engine->step(0, t.states, t.inputs, outputs, nullptr, hooks.get()).ok());
}

// ---- bugs of the past ----

// A core number beyond int must be refused: core=4294967296 used to mean core 0.
TEST(ParseFault, CoreBeyondIntWrapsAround) {
  const auto f = parse_fault("scale@dense1/dot_general,core=4294967296");
  EXPECT_TRUE(!f.ok() ||
              refusal(dense_step(), "scale@dense1/dot_general,core=4294967296").what != "accepted");
}

// A magnitude that is no count must be refused: the conversion of NaN to an integer and a negative
// bit number are undefined behaviour.
TEST(ParseFault, MagnitudeMayBeAnything) {
  EXPECT_FALSE(parse_fault("drop_k_tail@x,magnitude=nan").ok());
  EXPECT_FALSE(parse_fault("drop_k_tail@x,magnitude=-1").ok());
  EXPECT_FALSE(parse_fault("bit_flip@x,magnitude=-1").ok());
  EXPECT_FALSE(parse_fault("bit_flip@x,magnitude=inf").ok());
}

// drop_k_tail must work on a bf16 dot: it used to write floats over its uint16 elements, past the
// end of the tensor.
TEST(FaultKinds, DropKTailOfABf16Dot) {
  Hand h;
  const ValueId a = h.b.convert(h.input("a", {DType::kF32, {64, 200}}), DType::kBF16);
  const ValueId b = h.b.convert(h.input("b", {DType::kF32, {200, 4}}), DType::kBF16);
  h.p.outputs = {{"y", h.b.convert(h.b.dot(a, b, 1, 0, "dot"), DType::kF32)}};
  const Tensor x = small::generic_f32({64, 200}, -1, 1, 1),
               w = small::generic_f32({200, 4}, -1, 1, 2);
  Tensor zeroed = x.clone();
  for (size_t i = 0; i < 64 * 200; ++i) {
    if (i % 200 >= 128) zeroed.as<float>()[i] = 0;
  }
  EXPECT_TRUE(run_one(h.p, x, w, "drop_k_tail@dot").same_bits(run_one(h.p, zeroed, w, "")));
}

}  // namespace
}  // namespace twinrun::faults_test
