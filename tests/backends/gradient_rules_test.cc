// Tests of the stages between the loss and the optimizer: the L2 term, clipping (on one core and on
// several), accumulation, averaged weights. The expected values are formulas over numbers that
// carry their rounding bound (tests/support/error_number.h).
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/backends/small_programs.h"
#include "tests/support/error_number.h"

namespace twinrun::gradient_rules_test {
namespace {

using small::f32;
using small::Hand;
using small::numbers;
using small::Trial;
using N = Num<24>;
using Kind = OptimizerSpec::Kind;
using Clip = OptimizerSpec::Clip;
using Vec = std::vector<double>;

constexpr int64_t kBatch = 16;

Program network(const OptimizerSpec& spec, Reducer loss = Reducer::kMean, int64_t batch = kBatch) {
  return build_forward(Mode::kTraining, batch, {{6}}, 7, spec, [=](Layers& net) {
    net.dense("dense1", 5);
    net.relu("relu1");
    net.dense("dense2", 3);
    net.softmax_cross_entropy(3, {loss});
  });
}
const std::vector<std::string> kParameters = {"dense1/kernel", "dense1/bias", "dense2/kernel",
                                              "dense2/bias"};

using Gradients = std::map<std::string, std::vector<Vec>>;  // by parameter, then core

Gradients gradients(const Program& forward, double* loss = nullptr,
                    const std::string& engine = "cpu") {
  const Program p = training_step(forward);
  Trial t(engine, p);
  std::vector<int32_t> labels, ids;
  for (int32_t i = 0; i < kBatch; ++i) {
    labels.push_back(i * i % 3);
    ids.push_back(i);
  }
  t.split("images", small::generic_f32({kBatch, 6}, -1, 1, 3));
  t.split("labels", small::i32({kBatch}, labels));
  t.split("sample_ids", small::i32({kBatch}, ids));
  t.step();
  Gradients result;
  for (const std::string& name : kParameters) {
    for (size_t core = 0; core < t.states.size(); ++core)
      result[name].push_back(numbers(t.output(name + ".grad", core)));
  }
  if (loss != nullptr) *loss = numbers(t.output("loss"))[0];
  return result;
}

std::vector<N> exactly(const Vec& v) { return {v.begin(), v.end()}; }
N square_sum(const std::vector<N>& g) {
  std::vector<N> squares;
  for (N x : g) squares.push_back(x * x);
  return sum(squares);
}

// The gradients of one core after tf.clip_by_value, clip_by_norm or clip_by_global_norm.
std::map<std::string, std::vector<N>> clipped(const Gradients& raw, size_t core, Clip clip,
                                              double at) {
  const N c = static_cast<float>(at);
  std::vector<N> parts;
  for (const auto& [name, cores] : raw) parts.push_back(square_sum(exactly(cores[core])));
  const N global = sqrt(sum(parts));
  std::map<std::string, std::vector<N>> result;
  for (const auto& [name, cores] : raw) {
    const std::vector<N> g = exactly(cores[core]);
    const N norm = sqrt(square_sum(g));
    for (N x : g) {
      result[name].push_back(clip == Clip::kValue  ? max(min(x, c), N(-c.value))
                             : clip == Clip::kNorm ? x * c / max(norm, c)
                                                   : x * (c * min(N(1) / global, N(1) / c)));
    }
  }
  return result;
}

void expect_within(const Vec& found, const std::vector<N>& expected, const std::string& name) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i].value, expected[i].error * (1 + 0x1p-20)) << name << " " << i;
    ASSERT_LT(expected[i].error, 0x1p-18) << "a bound that says something";
  }
}

double largest(const Gradients& g) {
  double most = 0;
  for (const auto& [name, cores] : g) {
    for (double x : cores[0]) most = std::max(most, std::abs(x));
  }
  return most;
}

TEST(Clipping, ByTensorFlowsFormulas) {
  const Gradients raw = gradients(network({.kind = Kind::kSgd}));
  const double size = largest(raw);
  for (Clip clip : {Clip::kValue, Clip::kNorm, Clip::kGlobalNorm}) {
    for (double at : {0.3 * size, 100 * size}) {
      OptimizerSpec spec{.kind = Kind::kSgd};
      spec.clip = clip, spec.clip_at = at;
      const Gradients found = gradients(network(spec));
      const auto expected = clipped(raw, 0, clip, at);
      for (const std::string& name : kParameters)
        expect_within(found.at(name)[0], expected.at(name), name);
      const bool same = std::abs(largest(found) - size) < 1e-6 * size;
      EXPECT_EQ(same, at > size) << "clips where it should, and only there";
    }
  }
}

// After the all-reduce the gradient of the whole batch is clipped; before it, each core's own one,
// scaled by 1/cores.
TEST(Clipping, BeforeTheAllReduceEachCoreClipsItsOwn) {
  constexpr int kCores = 4;
  const Gradients local =
      gradients(shard(network({.kind = Kind::kSgd}), {.cores = kCores, .reduce_gradients = false}));
  const Gradients reduced = gradients(shard(network({.kind = Kind::kSgd}), {.cores = kCores}));
  const double at = 0.2 * largest(reduced);
  for (Clip clip : {Clip::kValue, Clip::kNorm, Clip::kGlobalNorm}) {
    OptimizerSpec spec{.kind = Kind::kSgd};
    spec.clip = clip, spec.clip_at = at;
    const Gradients after = gradients(shard(network(spec), {.cores = kCores}));
    const Gradients before =
        gradients(shard(network(spec), {.cores = kCores, .clipping = Clipping::kBeforeAllReduce}));
    const auto expected_after = clipped(reduced, 0, clip, at);
    std::vector<std::map<std::string, std::vector<N>>> each;
    for (size_t core = 0; core < kCores; ++core) each.push_back(clipped(local, core, clip, at));
    for (const std::string& name : kParameters) {
      expect_within(after.at(name)[0], expected_after.at(name), name);
      std::vector<N> total;
      for (size_t i = 0; i < each[0].at(name).size(); ++i)
        total.push_back(sum(std::vector<N>{each[0].at(name)[i], each[1].at(name)[i],
                                           each[2].at(name)[i], each[3].at(name)[i]}));
      for (size_t core = 0; core < kCores; ++core)
        expect_within(before.at(name)[core], total, name);
    }
    EXPECT_NE(before, after);
  }
}

TEST(Clipping, OfAnInfiniteGlobalNormIsNaN) {
  Hand h;
  const ValueId w = h.param("w", {2});
  const ValueId c = h.input("c", {DType::kF32, {2}});
  OptimizerSpec spec{.kind = Kind::kSgd};
  spec.clip = Clip::kGlobalNorm, spec.clip_at = 1;
  Trial t("cpu", training_step(h.forward(h.b.reduce(h.b.mul(w, c), {0}, Reducer::kSum), spec)));
  t.set("c", f32({2}, {std::numeric_limits<float>::infinity(), 1}));
  t.step();
  for (double g : numbers(t.output("w.grad"))) EXPECT_TRUE(std::isnan(g));
}

TEST(Clipping, TextNamesItOnlyWhereItIsNotTheDefault) {
  OptimizerSpec spec{.kind = Kind::kSgd};
  spec.clip = Clip::kValue, spec.clip_at = 1;
  const Program after = shard(network(spec), {.cores = 4});
  const Program before = shard(network(spec), {.cores = 4, .clipping = Clipping::kBeforeAllReduce});
  EXPECT_EQ(to_text(after).find("clipping"), std::string::npos);
  EXPECT_NE(to_text(before).find(" clipping=before_all_reduce"), std::string::npos);
}

// The L2 term, 0.5 l2 sum w^2 over kernels, is in the reported loss and in the gradient.
TEST(L2, AddsToTheLossAndToKernels) {
  constexpr double kL2 = 0.25;  // exact, so that only the products and sums round
  OptimizerSpec spec{.kind = Kind::kSgd};
  double plain_loss = 0, loss = 0;
  const Gradients plain = gradients(network(spec), &plain_loss);
  spec.l2 = kL2;
  const Program forward = network(spec);
  const Gradients found = gradients(forward, &loss);
  const std::vector<Tensor> initial = initial_state(forward, 1);
  std::vector<N> sums;
  for (const std::string& name : kParameters) {
    const bool kernel = name.ends_with("kernel");
    const std::vector<N> w =
        exactly(numbers(initial[static_cast<size_t>(forward.state_index(name))]));
    if (kernel) sums.push_back(square_sum(w));
    std::vector<N> expected = exactly(plain.at(name)[0]);
    for (size_t i = 0; i < expected.size(); ++i) {
      if (kernel) expected[i] = expected[i] + (N(kL2 / 2) * w[i] + N(kL2 / 2) * w[i]);
    }
    expect_within(found.at(name)[0], expected, name);
  }
  const N total = N(plain_loss) + N(kL2 / 2) * sum(sums);
  EXPECT_NEAR(loss, total.value, total.error);
  EXPECT_GT(loss, plain_loss + 0.1);
}

// Each core adds the whole L2 term: a mean reduction counts it once, a sum `cores` times.
TEST(L2, CountsOncePerCoreUnderASum) {
  constexpr int kCores = 4;
  OptimizerSpec spec{.kind = Kind::kSgd};
  spec.l2 = 0.25;
  const auto at = [&](double l2, Reduction reduction, bool once) {
    OptimizerSpec s = spec;
    s.l2 = l2;
    const bool sum = reduction == Reduction::kSum;
    return gradients(shard(network(s, sum ? Reducer::kSum : Reducer::kMean),
                           {.cores = kCores, .reduction = reduction, .l2_once = once}),
                     nullptr, "cpu:f64");
  };
  const Program forward = network(spec);
  const std::vector<Tensor> initial = initial_state(forward, 1);
  for (const auto& [reduction, once, counts] : {std::tuple{Reduction::kMean, false, 1.0},
                                                {Reduction::kSum, false, 4.0},
                                                {Reduction::kSum, true, 1.0}}) {
    const Gradients with = at(spec.l2, reduction, once), without = at(0, reduction, once);
    const Vec w = numbers(initial[static_cast<size_t>(forward.state_index("dense1/kernel"))]);
    for (size_t i = 0; i < w.size(); ++i) {
      // In binary64: some ten roundings of numbers below 32.
      EXPECT_NEAR(with.at("dense1/kernel")[0][i] - without.at("dense1/kernel")[0][i],
                  counts * spec.l2 * w[i], 10 * 32 * 0x1p-53);
    }
  }
}

// A model whose loss is the mean over samples of sum(w x). With small integers and powers of two
// the gradient, its sums and its means are exact, so that k micro-batches must give the bits of one
// batch of all their samples.
Program linear(int64_t batch, const OptimizerSpec& spec) {
  Hand h;
  const ValueId w = h.param("w", {4});
  const ValueId x = h.input("x", {DType::kF32, {batch, 4}});
  const ValueId per_sample =
      h.b.reduce(h.b.mul(x, h.b.broadcast(w, {batch, 4}, {1})), {1}, Reducer::kSum, "per_sample");
  Program p = h.forward(h.b.reduce(per_sample, {0}, Reducer::kMean, "loss"), spec);
  p.batch = batch;
  return p;
}
Tensor samples(int64_t rows) {
  std::vector<float> v;
  for (int64_t i = 0; i < rows * 4; ++i) v.push_back(static_cast<float>(i * 7 % 23 - 11));
  return f32({rows, 4}, v);
}

TEST(Accumulation, MicroBatchesGiveTheBitsOfOneBatch) {
  constexpr int64_t kMicro = 4, kAll = 4 * kMicro, kUpdates = 3;
  std::vector<OptimizerSpec> specs;
  for (Kind kind :
       {Kind::kSgd, Kind::kMomentum, Kind::kAdam, Kind::kAdagrad, Kind::kAdadelta, Kind::kRmsprop,
        Kind::kAdamax, Kind::kAdamw, Kind::kAdafactor, Kind::kLars, Kind::kLamb}) {
    specs.push_back({.kind = kind, .weight_decay = 0.01});
  }
  specs.push_back({.kind = Kind::kAdam, .clip = Clip::kGlobalNorm, .clip_at = 1.5, .ema = 0.75});
  for (const OptimizerSpec& plain : specs) {
    SCOPED_TRACE(static_cast<int>(plain.kind));
    OptimizerSpec spec = plain;
    spec.accumulate = 4;
    Trial big("cpu", training_step(linear(kAll, plain)));
    Trial small("cpu", training_step(linear(kMicro, spec)));
    const Tensor start = f32({4}, {0.5f, -1.25f, 2, 0.75f});
    big.set("w", start);
    small.set("w", start);
    if (plain.ema > 0) {
      big.set("w.ema", start);
      small.set("w.ema", start);
    }
    for (int64_t update = 0; update < kUpdates; ++update) {
      const Tensor all = samples(kAll * (update + 1)).rows(kAll * update, kAll * (update + 1));
      big.set("x", all);
      big.step(update);
      for (int64_t micro = 0; micro < 4; ++micro) {
        const States before = small.states;
        small.set("x", all.rows(kMicro * micro, kMicro * (micro + 1)));
        small.step(4 * update + micro);
        if (micro == 3) break;
        // Between updates only the state of the accumulation changes.
        for (size_t i = 0; i < small.program().state.size(); ++i) {
          const std::string& name = small.program().state[i].name;
          const bool same = small.states[0].vars[i].same_bits(before[0].vars[i]);
          EXPECT_EQ(same, name != "accumulate/step" && name != "w.gradient_sum") << name;
        }
      }
      for (const StateVar& var : big.program().state)
        EXPECT_TRUE(small.state(var.name).same_bits(big.state(var.name))) << var.name;
      EXPECT_EQ(numbers(small.state("w.gradient_sum")), Vec(4, 0.0));
      EXPECT_EQ(numbers(small.state("accumulate/step")), Vec(1, 0.0));
      EXPECT_TRUE(small.output("w.grad").same_bits(big.output("w.grad")));
    }
    EXPECT_FALSE(big.state("w").same_bits(start));
  }
}

TEST(Accumulation, SumsByKey) {
  OptimizerSpec spec{.kind = Kind::kSgd};
  spec.accumulate = 2, spec.accumulate_mean = false;
  Trial t("cpu", training_step(linear(2, spec)));
  t.set("w", f32({4}, {0, 0, 0, 0}));
  t.set("learning_rate", Tensor::scalar(1));
  t.set("x", f32({2, 4}, {1, 2, 3, 4, 3, 2, 1, 0}));  // the mean is 2 2 2 2
  t.step(0);
  EXPECT_EQ(numbers(t.state("w")), (Vec{0, 0, 0, 0}));
  t.step(1);
  EXPECT_EQ(numbers(t.state("w")), (Vec{-4, -4, -4, -4}));
}

// A network on micro-batches agrees with the same samples in one batch, in binary64: only the order
// of a sum over 16 samples differs. Numbers stay below 1, and no path to the gradient of a weight
// has 2^10 roundings.
TEST(Accumulation, OfANetworkIsTheWholeBatch) {
  const auto after = [](int64_t batch, int64_t accumulate) {
    OptimizerSpec spec{.kind = Kind::kMomentum};
    spec.accumulate = accumulate;
    Trial t("cpu:f64", training_step(network(spec, Reducer::kMean, batch)));
    const Tensor images = small::generic_f32({kBatch, 6}, -1, 1, 3);
    std::vector<int32_t> labels;
    for (int32_t i = 0; i < kBatch; ++i) labels.push_back(i * i % 3);
    const Tensor classes = small::i32({kBatch}, labels);
    for (int64_t at = 0; at < kBatch; at += batch) {
      t.set("images", images.rows(at, at + batch));
      t.set("labels", classes.rows(at, at + batch));
      t.set("sample_ids", classes.rows(at, at + batch));
      t.step(at / batch);
    }
    return std::pair(numbers(t.state("dense1/kernel")), numbers(t.state("dense1/kernel.momentum")));
  };
  const auto whole = after(kBatch, 1), parts = after(4, 4);
  for (size_t i = 0; i < whole.first.size(); ++i) {
    EXPECT_NEAR(parts.first[i], whole.first[i], 0x1p-43);
    EXPECT_NEAR(parts.second[i], whole.second[i], 0x1p-43);
  }
}

}  // namespace
}  // namespace twinrun::gradient_rules_test
