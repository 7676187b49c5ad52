// Tests of layers in which samples of a batch meet. With everything gathered, synced and divided
// globally, the gradient of the cores is that of the whole batch, up to the last bits of binary64;
// computed per core it is a different one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/backends/small_programs.h"

namespace twinrun::across_cores_test {
namespace {

using small::Trial;
using Vec = std::vector<double>;

constexpr int64_t kBatch = 16;
constexpr int kCores = 4;
// How far equal gradients may differ in binary64: sums of a few hundred terms in another order,
// each off by 2^-53 of its size, through a handful of layers.
constexpr double kSame = 1e-12;

const SampleType kImages{{4, 4, 2}};
const SampleType kPhrases{{5}, DType::kI32, {}, true, 7, 3};
const SampleType kTokens{{5}, DType::kI32, {5}, true, 7, 7};

Program model(const SampleType& sample, const Definition& define) {
  return build_forward(Mode::kTraining, kBatch, sample, 3, {}, define);
}

void feed(Trial& t, const SampleType& sample) {
  const int cores = t.program().sharding.cores;
  const int64_t each = kBatch / cores;
  const auto all = [&](const std::string& name, TensorType type) {
    type.dims.insert(type.dims.begin(), kBatch);
    if (type.dtype == DType::kF32) {
      Tensor x = small::generic_f32(type.dims, -1, 1, 9);
      if (name == "weights") {  // samples, and hence cores, have unequal numbers of tokens
        for (int64_t i = 0; i < x.elements(); ++i)
          x.as<float>()[static_cast<size_t>(i)] = i % 5 <= i / 5 * i / 5 % 5 ? 1.0f : 0.0f;
      }
      return x;
    }
    Tensor x = Tensor::empty(type);
    const int64_t most = name == "tokens" ? sample.vocabulary : name == "labels" ? 3 : kBatch;
    for (int64_t i = 0; i < x.elements(); ++i)
      x.as<int32_t>()[static_cast<size_t>(i)] =
          static_cast<int32_t>(name == "sample_ids" ? i : (i * 5 + i / 3) % most);
    return x;
  };
  for (size_t i = 0; i < t.program().inputs.size(); ++i) {
    const std::string& name = t.program().inputs[i].name;
    for (int r = 0; r < cores; ++r) {
      Tensor& to = t.inputs[static_cast<size_t>(r)][i];
      if (name == "replica_id") to = Tensor::scalar_i32(r);
      TensorType type = t.program().graph.type(t.program().inputs[i].id);
      if (type.dims.empty()) continue;
      type.dims.erase(type.dims.begin());
      to = all(name, type).rows(r * each, (r + 1) * each);
    }
  }
}

std::map<std::string, Vec> gradients_of(const Trial& t) {
  std::map<std::string, Vec> g;
  for (const Output& output : t.program().outputs) {
    if (output.name.ends_with(".grad")) g[output.name] = small::numbers(t.output(output.name));
  }
  EXPECT_FALSE(g.empty());
  return g;
}
std::map<std::string, Vec> gradients(const Program& forward, const SampleType& sample) {
  Trial t("cpu:f64", training_step(forward));
  feed(t, sample);
  t.step();
  return gradients_of(t);
}

double gap(const std::map<std::string, Vec>& a, const std::map<std::string, Vec>& b) {
  double off = 0, size = 0;
  for (const auto& [name, x] : a) {
    for (size_t i = 0; i < x.size(); ++i) {
      off = std::max(off, std::fabs(x[i] - b.at(name)[i]));
      size = std::max(size, std::fabs(x[i]));
    }
  }
  EXPECT_GT(size, 1e-6) << "gradients of zero prove nothing";
  return off / size;
}

void expect_cured(const SampleType& sample, const Definition& define, const Sharding& cured,
                  const std::string& cause) {
  const Program whole = model(sample, define);
  const auto same_cause = [&](const Coupling& c) { return c.cause == cause; };
  EXPECT_TRUE(std::ranges::any_of(whole.couplings, same_cause)) << "not noted as " << cause;
  const auto g = gradients(whole, sample);
  EXPECT_LT(gap(g, gradients(shard(whole, cured), sample)), kSame) << cause << ", cured";
  EXPECT_GT(gap(g, gradients(shard(whole, {.cores = kCores}), sample)), 1e-4) << cause;
}

void small_images(Layers& n) {
  n.conv2d("c", {.filters = 3, .kernel = 3});
  n.unary("t", OpKind::kTanh);
}
void classes(Layers& n) {
  n.flatten("f");
  n.dense("out", 3);
  n.softmax_cross_entropy(3, {});
}
void phrases(Layers& n) {
  n.embedding("e", 7, 6, {Initializer::Kind::kRandomUniform});
  n.masked_mean("m");
  n.dense("d", 4);
}

constexpr Sharding kGathered{.cores = kCores, .batchwise = Scope::kGlobal};

TEST(AcrossCores, MinibatchStandardDeviation) {
  expect_cured(
      kImages,
      [](Layers& n) {
        small_images(n);
        n.minibatch_stddev("m", 4);
        classes(n);
      },
      kGathered, "batch_wise");
}

TEST(AcrossCores, Triplets) {
  for (bool hardest : {true, false}) {
    expect_cured(
        kPhrases,
        [=](Layers& n) {
          phrases(n);
          n.triplet(0.5, hardest, {});
        },
        kGathered, "batch_wise");
  }
}

TEST(AcrossCores, Contrastive) {
  expect_cured(
      kPhrases,
      [](Layers& n) {
        phrases(n);
        n.contrastive(0.5, {});
      },
      kGathered, "batch_wise");
}

TEST(AcrossCores, TripletsAveragedByTokens) {
  expect_cured(
      kPhrases,
      [](Layers& n) {
        phrases(n);
        n.triplet(0.5, false, {.weighted = true});
      },
      {.cores = kCores, .batchwise = Scope::kGlobal, .token_mean = Scope::kGlobal}, "batch_wise");
}

TEST(AcrossCores, MeanOverTokens) {
  expect_cured(
      kTokens,
      [](Layers& n) {
        n.embedding("e", 7, 6, {Initializer::Kind::kRandomUniform});
        n.attention("a", {2, true, true}, {});
        n.dense("out", 7);
        n.softmax_cross_entropy(7, {.weighted = true});
      },
      {.cores = kCores, .token_mean = Scope::kGlobal}, "token_mean");
}

// Cores hold unequal numbers of labels that count.
TEST(AcrossCores, MeanOverCountedLabels) {
  expect_cured(
      kTokens,
      [](Layers& n) {
        n.embedding("e", 7, 6, {Initializer::Kind::kRandomUniform});
        n.dense("out", 7);
        n.softmax_cross_entropy(7, {.ignored = 2});
      },
      {.cores = kCores, .token_mean = Scope::kGlobal}, "token_mean");
}

TEST(AcrossCores, SyncedBatchNorm) {
  expect_cured(
      kImages,
      [](Layers& n) {
        small_images(n);
        n.batch_norm("bn", {.epsilon = 1e-3, .momentum = 0.9});
        classes(n);
      },
      {.cores = kCores, .batchnorm = BatchNormSync::kSynced}, "batch_norm");
}

// With two groups of two cores the statistics are those of each half of the batch, as on two cores
// with half of the batch each.
TEST(AcrossCores, BatchNormOverGroups) {
  const Definition define = [](Layers& n) {
    small_images(n);
    n.batch_norm("bn", {.epsilon = 1e-3, .momentum = 0.9});
    classes(n);
  };
  const Program whole = model(kImages, define);
  const Sharding groups{.cores = 4, .batchnorm = BatchNormSync::kSynced, .batchnorm_group = 2};
  const Sharding halves{.cores = 2};
  EXPECT_LT(gap(gradients(shard(whole, halves), kImages), gradients(shard(whole, groups), kImages)),
            kSame);
  // The running statistics of a core are those of its own group.
  Trial a("cpu:f64", training_step(shard(whole, groups)));
  feed(a, kImages);
  a.step();
  const auto mean = [&](size_t r) { return small::numbers(a.state("bn/moving_mean", r)); };
  EXPECT_EQ(mean(0), mean(1));
  EXPECT_EQ(mean(2), mean(3));
  EXPECT_NE(mean(0), mean(2));
  EXPECT_THROW(
      shard(whole, {.cores = 4, .batchnorm = BatchNormSync::kSynced, .batchnorm_group = 3}),
      GraphError);
}

// Sharding does not change layers that treat each sample on its own.
TEST(AcrossCores, NothingElseChanges) {
  const Program whole = model(kTokens, [](Layers& n) {
    n.embedding("e", 7, 6, {Initializer::Kind::kRandomUniform});
    n.position_embedding("p", {Initializer::Kind::kRandomUniform});
    n.attention("a", {2, true, true}, {});
    n.layer_norm("ln", {.epsilon = 1e-3});
    n.dropout("drop", {.rate = 0.2});
    n.gelu("g", false);
    n.dense("out", 7);
    n.softmax_cross_entropy(7, {});
  });
  EXPECT_TRUE(whole.couplings.empty());
  EXPECT_LT(gap(gradients(whole, kTokens), gradients(shard(whole, {.cores = 8}), kTokens)), kSame);
}

// cpu agrees with cpu:f64 up to rounding, and tpu with f32 products gives the bits of cpu.
TEST(AcrossCores, EnginesAgree) {
  const Program p = training_step(
      shard(model(kPhrases,
                  [](Layers& n) {
                    phrases(n);
                    n.triplet(0.5, false, {.weighted = true});
                  }),
            {.cores = kCores, .batchwise = Scope::kGlobal, .token_mean = Scope::kGlobal}));
  Trial cpu("cpu", p), tpu("tpu", p, {.tpu = {.precision = DotPrecision::kF32}}), f64("cpu:f64", p);
  for (Trial* t : {&cpu, &tpu, &f64}) {
    feed(*t, kPhrases);
    t->step();
  }
  // Some 64 roundings contribute to a gradient. The bound is relative to the largest gradient,
  // since some gradients are sums that cancel.
  double size = 0;
  for (const auto& [name, gradient] : gradients_of(f64)) {
    for (double v : gradient) size = std::max(size, std::fabs(v));
  }
  for (const auto& [name, gradient] : gradients_of(f64)) {
    EXPECT_TRUE(cpu.output(name).same_bits(tpu.output(name))) << name;
    const Vec of_cpu = small::numbers(cpu.output(name));
    for (size_t i = 0; i < of_cpu.size(); ++i)
      EXPECT_NEAR(of_cpu[i], gradient[i], 64 * 0x1p-24 * size) << name;
  }
}

// ---- a GAN: each part minimises its own loss

TEST(Gan, EachPartHasItsOwnObjective) {
  const Definition define = [](Layers& n) {
    const auto judge = [&] {
      n.flatten("discriminator/f");
      n.dense("discriminator/d", 1);
      return n.value();
    };
    n.noise("generator/noise", 3);
    n.dense("generator/d", 32);
    n.reshape("generator/r", {4, 4, 2});
    const ValueId fake = n.value();
    n.set(n.features());
    const ValueId of_real = judge();
    n.set(fake);
    n.gan(of_real, judge(), "discriminator", "generator", Reducer::kMean);
  };
  Trial t("cpu:f64", training_step(model(kImages, define)));
  feed(t, kImages);
  const Vec kernel = small::numbers(t.state("discriminator/d/kernel"));
  t.step();
  const auto parameter = [&](const std::string& name) {
    return small::numbers(t.output(name + ".grad"));
  };
  // d/db of mean(softplus(-real) + softplus(fake)) = mean(-sigmoid(-real) + sigmoid(fake)).
  double expected = 0;
  const Vec real = small::numbers(t.output("judged")), fake = small::numbers(t.output("deceived"));
  for (size_t i = 0; i < real.size(); ++i)
    expected += (1 / (1 + std::exp(-fake[i])) - 1 / (1 + std::exp(real[i]))) / kBatch;
  EXPECT_NEAR(parameter("discriminator/d/bias")[0], expected, 1e-14);
  // d/dx of mean(softplus(-fake)) = -sigmoid(-fake) / n. The generator's bias receives it through
  // the kernel of the discriminator.
  const Vec bias = parameter("generator/d/bias");
  double slope = 0;
  for (double f : fake) slope -= 1 / (1 + std::exp(f)) / kBatch;
  for (size_t i = 0; i < bias.size(); ++i) EXPECT_NEAR(bias[i], slope * kernel[i], 1e-14);
}

}  // namespace
}  // namespace twinrun::across_cores_test
