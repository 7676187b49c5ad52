// Tests the memory of library scenarios on TPU cores: what fits, the effect of changes, the largest
// batch, bytes of optimizers.
#include "harness/experiment/memory.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "device/hbm_plan.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

MemoryReport memory_of(const char* scenario, const Overrides& set = {},
                       const char* generation = "v2", const MemoryOptions& options = {}) {
  const Experiment e = tiny::must(experiment_on_paper(tiny::must(load_scenario(scenario, set))));
  return report_memory(e.sharded(e.sharding), tiny::must(tpu::find_generation(generation)), &e,
                       options);
}

int64_t used(const char* scenario, const Overrides& set) {
  const Experiment e = tiny::must(experiment_on_paper(tiny::must(load_scenario(scenario, set))));
  return tpu::plan_hbm(e.sharded(e.sharding)).used();
}

// tensorflow/tpu's trainer keeps activations in bfloat16 unless configured otherwise; with this
// batch, a v2 needs that.
TEST(MemoryReport, ResNet50OfABatchOf1024) {
  const MemoryReport v2 = memory_of("resnet50");
  EXPECT_FALSE(v2.fits());
  const auto bf16 =
      std::ranges::find(v2.changes, "activations stored in bfloat16", &MemoryChange::change);
  ASSERT_NE(bf16, v2.changes.end());
  EXPECT_TRUE(bf16->fits);
  EXPECT_LE(v2.used(), tiny::must(tpu::find_generation("v3")).hbm_usable());
  // 25.6 million weights and as many slots; two forward values for each convolution, kept in
  // float32.
  EXPECT_NEAR(static_cast<double>(v2.uses[0].unpadded), 25.557e6 * 4, 1e4);
  EXPECT_EQ(v2.uses[1].unpadded, v2.uses[0].unpadded);
  EXPECT_EQ(v2.slot_bytes_per_weight, 4);
}

TEST(MemoryReport, TheLargestBatchFitsAndTheNextDoesNot) {
  const MemoryReport r = memory_of("use_tpus", {}, "v2", {.fit = true});
  ASSERT_EQ(r.fit.size(), 3u);
  EXPECT_EQ(r.fit[0].with, "");
  EXPECT_EQ(r.fit[0].batch % 64, 0);
  ASSERT_GT(r.fit[0].batch, 0);
  EXPECT_GE(r.fit[1].batch, r.fit[0].batch);
  EXPECT_GE(r.fit[2].batch, r.fit[0].batch);
  const auto at = [](int64_t batch) {
    return used("use_tpus", {{"data.train", "1000000"}, {"train.batch", std::to_string(batch)}});
  };
  EXPECT_EQ(at(r.fit[0].batch), r.fit[0].used);
  EXPECT_LE(r.fit[0].used, r.usable());
  EXPECT_GT(at(r.fit[0].batch + 64), r.usable());
}

TEST(MemoryReport, EveryChangeIsAPlanOfItsOwn) {
  const MemoryReport r = memory_of("resnet50");
  ASSERT_GE(r.changes.size(), 5u);
  for (const MemoryChange& c : r.changes) {
    EXPECT_LT(c.used, r.used()) << c.change;
    EXPECT_EQ(c.fits, c.used <= r.usable()) << c.change;
    if (c.set.empty()) continue;
    const std::string key = c.set.substr(6, c.set.find('=') - 6),
                      value = c.set.substr(c.set.find('=') + 1);
    EXPECT_EQ(used("resnet50", {{key, value}}), c.used) << c.set;
  }
}

TEST(MemoryReport, BytesOfSlotsByOptimizer) {
  const auto bytes = [](const char* kind, Overrides set = {}) {
    set.push_back({"optimizer.kind", kind});
    return memory_of("digits_mlp", set).slot_bytes_per_weight;
  };
  EXPECT_EQ(bytes("sgd"), 0);
  EXPECT_EQ(bytes("momentum"), 4);
  EXPECT_EQ(bytes("adagrad"), 4);
  EXPECT_EQ(bytes("lars"), 4);
  EXPECT_EQ(bytes("adam"), 8);
  EXPECT_EQ(bytes("adadelta"), 8);
  EXPECT_EQ(bytes("lamb"), 8);
  EXPECT_EQ(bytes("rmsprop"), 8);
  EXPECT_EQ(bytes("rmsprop", {{"optimizer.centered", "true"}}), 12);
  // Rows and columns of the kernels [784,64] and [64,10], and the whole biases.
  EXPECT_DOUBLE_EQ(bytes("adafactor"),
                   4.0 * (784 + 64 + 64 + 10 + 64 + 10) / (784 * 64 + 64 * 10 + 64 + 10));
}

TEST(MemoryReport, PaddingNamesTheRuleItBreaks) {
  const MemoryReport r = memory_of("use_tpus");
  ASSERT_FALSE(r.padding.empty());
  for (const MemoryAllocation& a : r.padding) EXPECT_GT(a.bytes, a.unpadded) << a.op;
  const auto conv = std::ranges::find(r.padding, "conv1/convolution", &MemoryAllocation::op);
  ASSERT_NE(conv, r.padding.end());
  EXPECT_EQ(conv->broken_rule,
            "batch 200 and 256 features: neither multiples of 64 and 128 nor of 1024 and 8");
  // A batch of 256 fills the tiles, so more samples take fewer bytes each.
  EXPECT_NE(std::ranges::find(r.changes, "train.batch = 256", &MemoryChange::change),
            r.changes.end());
  const MemoryReport whole = memory_of("use_tpus", {{"train.batch", "256"}});
  EXPECT_EQ(std::ranges::find(whole.padding, "conv1/convolution", &MemoryAllocation::op),
            whole.padding.end());
}

// A step without a recipe cannot be built again. It is planned, and only changes that the planner
// alone can make are offered.
TEST(MemoryReport, OfAStepOfOnesOwn) {
  const Experiment e = tiny::must(experiment_on_paper(tiny::must(load_scenario("digits_cnn"))));
  Program step = e.whole();
  step.recipe = nullptr;
  const MemoryReport r = report_memory(step, tiny::must(tpu::find_generation("v2")), nullptr,
                                       {.fit = true, .host = true});
  EXPECT_TRUE(r.fits());
  EXPECT_TRUE(r.fit.empty());
  ASSERT_TRUE(r.host);
  EXPECT_GT(r.host->arena, 0);
  for (const MemoryChange& c : r.changes) EXPECT_EQ(c.set, "") << c.change;
}

// Half of 12 samples per core does not make groups of 4, so this change is not offered, and there
// is no error.
TEST(MemoryReport, OffersNoBatchThatLayersRefuse) {
  const MemoryReport r = memory_of("gan_digits", {{"train.batch", "96"}});
  const auto half = [](const MemoryChange& c) { return c.change == "train.batch = 48"; };
  EXPECT_FALSE(std::ranges::any_of(r.changes, half));
}

}  // namespace
}  // namespace twinrun
