// Tests of engines end to end on small programs: the same digests on any number of threads, and
// batch norm, all-reduce and dropout of sharded programs against their definitions.
#include <gtest/gtest.h>

#include <cmath>

#include "backends/registry.h"
#include "program/base/bits.h"
#include "tests/backends/small_programs.h"

namespace twinrun::engines_test {
namespace {

using small::f32;
using small::Hand;
using small::numbers;
using small::Recorder;
using small::Trial;
using Vec = std::vector<double>;

constexpr int64_t kBatch = 16;
constexpr int kClasses = 5;

// A model with batch norm over images and over features, dropout and momentum, and with enough work
// for the thread pool to be used.
Program cnn(Reducer loss = Reducer::kMean, bool normalize = true, bool drop = true) {
  return build_forward(Mode::kTraining, kBatch, {{12, 12, 3}}, 7,
                       OptimizerSpec{OptimizerSpec::Kind::kMomentum}, [=](Layers& net) {
                         net.conv2d("conv1", {.filters = 8, .kernel = 3});
                         if (normalize) net.batch_norm("bn1", {.epsilon = 1e-3, .momentum = 0.9});
                         net.relu("relu1");
                         net.pool("pool1", {2, 2, {Padding::Kind::kValid}}, Reducer::kMax);
                         net.flatten("flatten1");
                         net.dense("dense1", 32);
                         if (normalize) net.batch_norm("bn2", {.epsilon = 1e-3, .momentum = 0.9});
                         if (drop) net.dropout("dropout1", {.rate = 0.3});
                         net.dense("dense2", kClasses);
                         net.softmax_cross_entropy(kClasses, {loss});
                       });
}

Program sharded(const Program& forward, int cores, Reduction reduction = Reduction::kMean,
                BatchNormSync sync = BatchNormSync::kPerCore) {
  return training_step(shard(forward, {.cores = cores, .reduction = reduction, .batchnorm = sync}));
}

// Sets the batch of a step, cut into one part for each replica.
void feed(Trial& t, int64_t step) {
  const auto stream = static_cast<uint32_t>(step);
  std::vector<int32_t> labels, ids;
  for (int32_t i = 0; i < kBatch; ++i) {
    labels.push_back(static_cast<int32_t>((i * 7 + step) % kClasses));
    ids.push_back(static_cast<int32_t>(step * kBatch + i));
  }
  t.split("images", small::generic_f32({kBatch, 12, 12, 3}, -1, 1, stream));
  t.split("labels", small::i32({kBatch}, labels));
  t.split("sample_ids", small::i32({kBatch}, ids));
}

std::string digest_after(const std::string& engine, const Program& program, BackendOptions options,
                         int steps = 5) {
  Trial t(engine, program, options);
  for (int step = 0; step < steps; ++step) {
    feed(t, step);
    t.step(step);
  }
  return t.digest();
}

TEST(EnginesThreads, DigestsDoNotDependOnThem) {
  for (const Program& program : {training_step(cnn()), sharded(cnn(), 8),
                                 sharded(cnn(), 4, Reduction::kMean, BatchNormSync::kSynced)}) {
    for (const std::string engine : {"cpu", "tpu"}) {
      const std::string one = digest_after(engine, program, {.threads = 1});
      for (int threads : {2, 3, 8}) {
        EXPECT_EQ(digest_after(engine, program, {.threads = threads}), one)
            << engine << " with " << threads << " threads on " << program.sharding.cores
            << " cores";
      }
    }
  }
}

// The logits of a sample do not depend on its batch: through convolution, running statistics,
// pooling and dense layers, however they are fused.
TEST(Engines, ARowHasTheSameBitsInAnyBatch) {
  const Tensor images = small::generic_f32({128, 12, 12, 3}, -1, 1, 5);
  for (const std::string engine : {"cpu", "tpu"}) {
    const auto logits = [&](int64_t first, int64_t batch) {
      Layers net(Mode::kInference, batch, {{12, 12, 3}}, 7);
      net.conv2d("conv1", {.filters = 8, .kernel = 3});
      net.batch_norm("bn1", {.epsilon = 1e-3, .momentum = 0.9});
      net.relu("relu1");
      net.pool("pool1", {2, 2, {Padding::Kind::kValid}}, Reducer::kMax);
      net.flatten("flatten1");
      net.dense("dense1", 32);
      net.dense("dense2", kClasses);
      net.softmax_cross_entropy(kClasses, {Reducer::kMean});
      Trial t(engine, net.finish({}), {.threads = 2});
      const std::vector<int32_t> none(static_cast<size_t>(batch), 0);
      t.set("images", images.rows(first, first + batch));
      t.set("labels", small::i32({batch}, none));
      t.set("sample_ids", small::i32({batch}, none));
      t.step();
      return t.output("logits").clone();
    };
    const Tensor all = logits(0, 128);
    for (int64_t batch : {1, 7}) {
      for (int64_t first : {int64_t{0}, int64_t{50}, 128 - batch}) {
        EXPECT_TRUE(logits(first, batch).same_bits(all.rows(first, first + batch)))
            << engine << " batch " << batch << " from " << first;
      }
    }
  }
}

// The engine updates a state in place only if nothing else holds it. A state that the caller also
// holds, as a whole or in part, must keep its bits.
TEST(Engines, AStateThatIsHeldKeepsItsBits) {
  for (const Program& program : {training_step(cnn()), sharded(cnn(), 8)}) {
    Trial free("cpu", program, {.threads = 2}), held("cpu", program, {.threads = 2});
    std::vector<States> kept;
    std::vector<Tensor> copies;
    for (int step = 0; step < 4; ++step) {
      feed(free, step);
      free.step(step);
      feed(held, step);
      kept.push_back(held.states);
      for (const ReplicaState& state : held.states) {
        for (const Tensor& t : state.vars) copies.push_back(t.clone());
      }
      held.step(step);
    }
    EXPECT_EQ(free.digest(), held.digest());
    size_t i = 0;
    for (const States& states : kept) {
      for (const ReplicaState& state : states) {
        for (const Tensor& t : state.vars) EXPECT_TRUE(t.same_bits(copies[i++]));
      }
    }
  }
}

TEST(Engines, StatesAreUpdatedInPlace) {
  Trial t("cpu", training_step(cnn()));
  for (int step = 0; step < 2; ++step) {
    feed(t, step);
    t.step(step);
  }
  const auto kernel = static_cast<size_t>(t.program().state_index("conv1/kernel"));
  const std::byte* before = t.states[0].vars[kernel].raw();
  feed(t, 2);
  t.step(2);
  EXPECT_EQ(t.states[0].vars[kernel].raw(), before);
}

TEST(Engines, PoisonChangesNothing) {
  for (const Program& program : {training_step(cnn()), sharded(cnn(), 8)}) {
    for (const std::string engine : {"cpu", "tpu"}) {
      const std::string plain = digest_after(engine, program, {}, 2);
      EXPECT_EQ(digest_after(engine, program, {.poison_memory = true}, 2), plain) << engine;
      EXPECT_EQ(digest_after(engine, program, {.poison_memory = true, .tpu = {.poison = true}}, 2),
                plain)
          << engine;
    }
  }
}

TEST(Engines, TpuWithF32IsTheReference) {
  const BackendOptions f32{.tpu = {.precision = DotPrecision::kF32}};
  for (const Program& program : {training_step(cnn()), sharded(cnn(), 8)}) {
    const std::string reference = digest_after("cpu", program, {});
    EXPECT_EQ(digest_after("tpu", program, f32), reference);
    EXPECT_NE(digest_after("tpu", program, {}), reference) << "bf16 operands must show";
  }
}

// Denormals are kept by cpu and by tpu at f32 precision, are zero in the arithmetic of tpu at its
// other precisions, and are never changed by moves.
TEST(Engines, DenormalsAsDeclared) {
  Hand h;
  const ValueId x = h.input("x", {DType::kF32, {2}}), y = h.input("y", {DType::kF32, {2}});
  h.p.outputs = {{"sum", h.b.add(x, y)}, {"moved", h.b.reshape(x, {2, 1})}};
  for (const auto& [engine, precision, kept] :
       std::vector<std::tuple<std::string, DotPrecision, bool>>{
           {"cpu", DotPrecision::kBf16, true},
           {"tpu", DotPrecision::kF32, true},
           {"tpu", DotPrecision::kBf16, false},
           {"tpu", DotPrecision::kBf16x6, false}}) {
    Trial t(engine, h.p, {.tpu = {.precision = precision}});
    t.set("x", f32({2}, {0x1p-140f, -0x1p-140f}));
    t.set("y", f32({2}, {0x1p-141f, -0.0f}));
    t.step();
    const auto sum = t.output("sum").as<float>(), moved = t.output("moved").as<float>();
    EXPECT_EQ(sum[0], kept ? 0x1.8p-140f : 0.0f) << engine;
    EXPECT_EQ(to_bits(sum[1]), kept ? to_bits(-0x1p-140f) : 0x80000000u) << engine;
    EXPECT_EQ(moved[0], 0x1p-140f) << engine;
    EXPECT_EQ((*make_backend(engine, {.tpu = {.precision = precision}}))->capabilities().flush,
              !kept);
  }
}

TEST(Engines, DigestSeesEverythingThatMatters) {
  const std::string base = digest_after("cpu", training_step(cnn()), {}, 2);
  EXPECT_NE(digest_after("cpu", training_step(cnn()), {}, 3), base);
  EXPECT_NE(digest_after("cpu", sharded(cnn(), 8), {}, 2), base);
  EXPECT_NE(digest_after("cpu", training_step(cnn(Reducer::kMean, true, false)), {}, 2), base);
}

TEST(Engines, UnknownNameSuggestsTheNearest) {
  const auto unknown = make_backend("cpu:f46", {});
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().what,
            "unknown engine 'cpu:f46' (known: cpu, cpu:f64, tpu, honest:SEED, exec:COMMAND)");
  EXPECT_EQ(unknown.error().fix, "did you mean 'cpu:f64'?");
  EXPECT_EQ(backend_names(), (std::vector<std::string>{"cpu", "cpu:f64", "tpu"}));
}

TEST(Engines, RefuseStateAndInputsOfAnotherProgram) {
  Trial t("cpu", training_step(cnn()));
  feed(t, 0);
  t.set("step", Tensor::scalar_i32(0));
  StepOutputs outputs;
  auto engine = *(*make_backend("cpu", {}))->prepare(t.program());
  States two(2, t.states[0]);
  const Status replicas = engine->step(0, two, t.inputs, outputs);
  ASSERT_FALSE(replicas.ok());
  EXPECT_EQ(replicas.error().what, "the program has 1 replicas, got state for 2 and inputs for 1");
  States wrong = t.states;
  wrong[0].vars[0] = Tensor::scalar(0);
  const Status shape = engine->step(0, wrong, t.inputs, outputs);
  ASSERT_FALSE(shape.ok());
  EXPECT_EQ(shape.error().where, "conv1/kernel");
  EXPECT_EQ(shape.error().what, "expected f32[3,3,3,8], got f32[]");
  StepInputs missing = t.inputs;
  missing[0][0] = Tensor();
  const Status nothing = engine->step(0, t.states, missing, outputs);
  ASSERT_FALSE(nothing.ok());
  EXPECT_EQ(nothing.error().where, "images");
}

// ---- batch norm against its definition ----

constexpr int64_t kChannels = 3, kPixels = 4;  // images of 2x2
constexpr double kMomentum = 0.75, kEpsilon = 0.125;

Program batch_norm_net() {
  return build_forward(Mode::kTraining, 8, {{2, 2, kChannels}}, 1, OptimizerSpec{},
                       [=](Layers& net) {
                         net.batch_norm("bn", {.epsilon = kEpsilon, .momentum = kMomentum});
                         net.flatten("f");
                         net.softmax_cross_entropy(kPixels * kChannels, {Reducer::kMean});
                       });
}

struct Statistics {
  Vec mean, variance;
};
// The statistics of rows [begin, end) of the batch, over samples and pixels.
Statistics statistics(const Vec& x, int64_t begin, int64_t end) {
  Statistics s;
  const double n = static_cast<double>((end - begin) * kPixels);
  for (int64_t c = 0; c < kChannels; ++c) {
    double sum = 0, squares = 0;
    for (int64_t i = begin * kPixels; i < end * kPixels; ++i)
      sum += x[static_cast<size_t>(i * kChannels + c)];
    for (int64_t i = begin * kPixels; i < end * kPixels; ++i) {
      const double gap = x[static_cast<size_t>(i * kChannels + c)] - sum / n;
      squares += gap * gap;
    }
    s.mean.push_back(sum / n);
    s.variance.push_back(squares / n);
  }
  return s;
}

struct BatchNormTrial {
  Trial t;
  Recorder seen;
  Vec x;
  explicit BatchNormTrial(const Program& step) : t("cpu:f64", step) {
    const Tensor images =
        small::f64({8, 2, 2, kChannels}, small::generic(8 * kPixels * kChannels, -1, 3, 1));
    x = numbers(images);
    t.split("images", images);
    t.split("labels", small::i32({8}, {0, 1, 2, 3, 4, 5, 6, 7}));
    t.split("sample_ids", small::i32({8}, {0, 1, 2, 3, 4, 5, 6, 7}));
    t.step(0, &seen);
  }
  // Expects the normalised values and running statistics of a core whose statistics over n elements
  // are `s`.
  void expect_core(size_t core, int64_t first, int64_t rows, const Statistics& s, double n,
                   const std::string& suffix) {
    const double part = static_cast<float>(1 - kMomentum), epsilon = static_cast<float>(kEpsilon);
    const Vec mean = numbers(seen.output("bn/mean" + suffix, core));
    const Vec variance = numbers(seen.output("bn/variance" + suffix, core));
    const Vec moving_mean = numbers(t.state("bn/moving_mean", core)),
              moving = numbers(t.state("bn/moving_variance", core));
    const Vec y = numbers(seen.output("bn/shift", core));
    const auto bessel = static_cast<double>(static_cast<float>(n / (n - 1)));
    for (size_t c = 0; c < kChannels; ++c) {
      EXPECT_NEAR(mean[c], s.mean[c], 1e-14);
      EXPECT_NEAR(variance[c], s.variance[c], 1e-14);
      EXPECT_NEAR(moving_mean[c], 0 - (0 - s.mean[c]) * part, 1e-14);
      EXPECT_NEAR(moving[c], 1 - (1 - s.variance[c] * bessel) * part, 1e-14);
    }
    for (int64_t i = 0; i < rows * kPixels * kChannels; ++i) {
      const auto c = static_cast<size_t>(i % kChannels);
      const double in = x[static_cast<size_t>(first * kPixels * kChannels + i)];
      ASSERT_NEAR(y[static_cast<size_t>(i)], (in - s.mean[c]) / std::sqrt(s.variance[c] + epsilon),
                  1e-13);
    }
  }
};

TEST(BatchNorm, WholeBatch) {
  BatchNormTrial whole(training_step(batch_norm_net()));
  whole.expect_core(0, 0, 8, statistics(whole.x, 0, 8), 8 * kPixels, "");
}

TEST(BatchNorm, PerCoreSeesItsOwnSamples) {
  BatchNormTrial cores(sharded(batch_norm_net(), 4));
  for (size_t r = 0; r < 4; ++r) {
    const auto first = static_cast<int64_t>(2 * r);
    cores.expect_core(r, first, 2, statistics(cores.x, first, first + 2), 2 * kPixels, "");
  }
}

TEST(BatchNorm, SyncedSeesTheWholeBatch) {
  BatchNormTrial cores(sharded(batch_norm_net(), 4, Reduction::kMean, BatchNormSync::kSynced));
  for (size_t r = 0; r < 4; ++r) {
    cores.expect_core(r, static_cast<int64_t>(2 * r), 2, statistics(cores.x, 0, 8), 8 * kPixels,
                      ".mean_over_cores");
  }
}

// ---- what sharding does to gradients, in binary64 ----

using Gradients = std::map<std::string, Vec>;
Gradients gradients(const std::string& engine, const Program& step) {
  Trial t(engine, step);
  feed(t, 0);
  t.step();
  Gradients g;
  for (const auto& output : step.outputs) {
    if (output.name.ends_with(".grad")) g[output.name] = numbers(t.output(output.name));
  }
  EXPECT_GE(g.size(), 6u);
  return g;
}
// The largest difference between a and factor * b, relative to the largest element of its tensor.
double gap(const Gradients& a, const Gradients& b, double factor = 1) {
  double worst = 0;
  for (const auto& [name, x] : a) {
    const Vec& y = b.at(name);
    double size = 0, off = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      size = std::max(size, std::fabs(x[i]));
      off = std::max(off, std::fabs(x[i] - factor * y[i]));
    }
    // A bias before batch norm has no effect: its gradient is rounding error around 0.
    worst = std::max(worst, off / std::max(size, 1e-2));
  }
  return worst;
}

TEST(Sharding, MeanReductionGivesTheWholeGradient) {
  const Program plain = cnn(Reducer::kMean, /*normalize=*/false);
  EXPECT_LT(
      gap(gradients("cpu:f64", training_step(plain)), gradients("cpu:f64", sharded(plain, 8))),
      1e-12);
  EXPECT_GT(gap(gradients("cpu:f64", training_step(plain)),
                gradients("cpu:f64", sharded(plain, 8, Reduction::kSum))),
            1)
      << "the all-reduce alone sums eight means";
}

TEST(Sharding, SyncedBatchNormGivesTheWholeGradient) {
  const Gradients whole = gradients("cpu:f64", training_step(cnn()));
  EXPECT_LT(
      gap(whole, gradients("cpu:f64", sharded(cnn(), 8, Reduction::kMean, BatchNormSync::kSynced))),
      1e-12);
  EXPECT_GT(gap(whole, gradients("cpu:f64", sharded(cnn(), 8))), 1e-3)
      << "per-core statistics are another model";
}

// A summed loss with a mean all-reduce gives exactly an eighth of the gradient, since 1/8 is a
// power of two.
TEST(Sharding, SumUnderMeanIsAnEighth) {
  const Program sum = cnn(Reducer::kSum);
  const Gradients as_sum = gradients("cpu", sharded(sum, 8, Reduction::kSum));
  EXPECT_EQ(gap(as_sum, gradients("cpu", sharded(sum, 8, Reduction::kMean)), 8), 0);
  const Program plain = cnn(Reducer::kSum, /*normalize=*/false);
  EXPECT_LT(
      gap(gradients("cpu:f64", training_step(plain)), gradients("cpu:f64", sharded(plain, 8)), 8),
      1e-12);
}

TEST(Sharding, MissingAllReduceLetsReplicasDrift) {
  Program forward = shard(cnn(), {.cores = 2, .reduce_gradients = false});
  Trial t("cpu", training_step(forward));
  feed(t, 0);
  t.step();
  EXPECT_FALSE(t.state("dense1/kernel", 0).same_bits(t.state("dense1/kernel", 1)));
}

TEST(Sharding, ReplicaAxisOfRunningStatistics) {
  for (const auto sync : {BatchNormSync::kPerCore, BatchNormSync::kSynced}) {
    Trial t("cpu", sharded(cnn(), 4, Reduction::kMean, sync));
    for (int step = 0; step < 2; ++step) {
      feed(t, step);
      t.step(step);
    }
    for (size_t i = 0; i < t.program().state.size(); ++i) {
      const StateVar& var = t.program().state[i];
      for (size_t r = 1; r < 4; ++r) {
        const bool same = t.states[0].vars[i].same_bits(t.states[r].vars[i]);
        EXPECT_EQ(same, var.role != StateRole::kStatistic || sync == BatchNormSync::kSynced)
            << var.name << " on replica " << r;
      }
    }
  }
}

TEST(Sharding, DropoutMasksAreThoseOfTheWholeBatch) {
  Recorder whole, cores;
  Trial a("cpu", training_step(cnn())), b("cpu", sharded(cnn(), 8));
  feed(a, 3);
  feed(b, 3);
  a.step(3, &whole);
  b.step(3, &cores);
  const Tensor& mask = whole.output("dropout1/keep");
  double kept = 0;
  for (double k : numbers(mask)) kept += k;
  EXPECT_NEAR(kept / static_cast<double>(mask.elements()), 0.7, 0.1);
  for (size_t r = 0; r < 8; ++r) {
    const auto first = static_cast<int64_t>(2 * r);
    EXPECT_TRUE(cores.output("dropout1/keep", r).same_bits(mask.rows(first, first + 2))) << r;
  }
  Recorder next;
  a.step(4, &next);
  EXPECT_FALSE(next.output("dropout1/keep").same_bits(mask)) << "another step, another mask";
}

// An element is kept where uniform >= rate and scaled by 1 / (1 - rate); elsewhere it is +0. The
// draw depends on (seed, stream 0, step, sample, element).
TEST(Sharding, DropoutByItsDefinition) {
  Trial t("cpu", training_step(cnn()));
  feed(t, 3);
  Recorder seen;
  t.step(3, &seen);
  const Tensor &x = seen.output("bn2/shift"), &y = seen.output("dropout1/select");
  for (size_t i = 0; i < y.as<float>().size(); ++i) {
    const auto sample = static_cast<uint32_t>(3 * kBatch + static_cast<int64_t>(i) / 32);
    const bool keep = uniform(draw({7, kStreamOps}, 3, sample, i % 32)) >= 0.3f;
    const float scaled = x.as<float>()[i] * static_cast<float>(1 / (1 - 0.3));
    ASSERT_EQ(to_bits(y.as<float>()[i]), keep ? to_bits(scaled) : 0u) << i;
  }
}

// ---- the trace ----

TEST(Trace, IsInProgramOrderAndWithoutParameters) {
  const Program p = sharded(cnn(), 2);
  Trial t("tpu", p);
  feed(t, 0);
  Recorder seen;
  t.step(0, &seen);
  std::vector<std::string> expected;
  for (const Op& op : p.graph.ops()) {
    if (op.kind != OpKind::kParameter) expected.push_back(op.name);
  }
  EXPECT_EQ(seen.order, expected);
  for (const auto& [name, op] : seen.seen) {
    EXPECT_EQ(op.outputs.size(), 2u) << name;
    EXPECT_EQ(op.inputs[1].size(), p.graph.op(p.graph.find(name)).operands.size()) << name;
    for (const Tensor& t2 : op.outputs) EXPECT_TRUE(t2.valid()) << name;
  }
}

// ---- bugs of the past ----

// An unpruned program may contain dead ops, whose operands last_uses() does not keep alive: here y
// is released after z. The engines must skip dead ops; "dead" used to read an empty Tensor.
TEST(Engines, DeadOpReadsAReleasedValue) {
  for (const std::string engine : {"cpu", "cpu:f64"}) {
    Hand h;
    const ValueId x = h.input("x", {DType::kF32, {2}});
    const ValueId y = h.b.add(x, x, "y"), z = h.b.mul(y, y, "z");
    h.b.unary(OpKind::kTanh, y, "dead");
    h.p.outputs = {{"z", z}};
    Trial t(engine, h.p);
    t.set("x", f32({2}, {1, 3}));
    t.step();
    EXPECT_EQ(numbers(t.output("z")), (Vec{4, 36}));
  }
}

// Where a binary64 result is the midpoint of two binary32 numbers, eval_op returns the rounded
// number (rounded_once in elementwise.cc). That is right for judging an engine, but cpu:f64 must
// keep the binary64 value.
TEST(Engines, F64RoundsMidpointsToF32) {
  Hand h;
  const ValueId x = h.input("x", {DType::kF32, {2}}), y = h.input("y", {DType::kF32, {2}});
  h.p.outputs = {{"sum", h.b.add(x, y)}};
  Trial t("cpu:f64", h.p);
  t.set("x", f32({2}, {1, 16777216}));
  t.set("y", f32({2}, {0x1p-24f, 1}));
  t.step();
  EXPECT_EQ(numbers(t.output("sum")), (Vec{1 + 0x1p-24, 16777217}));
}

}  // namespace
}  // namespace twinrun::engines_test
