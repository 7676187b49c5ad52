// Tests the bracket of a fault: between which of the shown tensors it lies, derived from the
// program's graph.
#include "harness/identify/bracket.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "harness/envelope/envelope.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

class Brackets : public testing::Test {
 protected:
  Brackets()
      : e_(tiny::experiment(tiny::kConvolutional,
                            {{"tpu.cores", "2"}, {"optimizer.kind", "adam"}})),
        p_(e_.sharded(e_.sharding)) {}

  // Tensors for which `outside` returns true have the error `relative`; all others are inside, and
  // would show an error of `resolution`.
  Bracket look(const std::function<bool(const std::string&)>& outside, double relative = 0.5,
               double resolution = 1e-4) const {
    std::vector<SeenTensor> seen;
    for (const Compared& c : compared_tensors(p_)) {
      const bool out = outside(c.tensor);
      seen.push_back({c.id, c.tensor, out, out ? relative : 0, out ? 0 : resolution});
    }
    return bracket_of(p_, seen);
  }
  static std::function<bool(const std::string&)> any(std::vector<std::string> names) {
    return [names](const std::string& t) { return std::ranges::find(names, t) != names.end(); };
  }

  Experiment e_;
  Program p_;
};

TEST_F(Brackets, OneGradientAlone) {
  const Bracket b = look(any({"conv1/kernel.grad", "conv1/kernel", "conv1/kernel.adam_m"}));
  EXPECT_EQ(b.text, "the gradient of conv1/kernel itself, not what flows back through the layers");
  EXPECT_NE(b.right.find("the gradient of "), std::string::npos) << b.right;
}

// Adam's update hides the size of a gradient, so an update that is inside is no evidence that its
// gradient is right.
TEST_F(Brackets, WhatFollowsFromAWrongTensorIsNoWitness) {
  const Bracket all = look(
      any({"conv1/kernel.grad", "conv1/kernel", "conv1/kernel.adam_m", "conv1/kernel.adam_v"}));
  EXPECT_EQ(look(any({"conv1/kernel.grad"})).text, all.text);
}

TEST_F(Brackets, TheBackwardPassBetweenTwoLayers) {
  const Bracket b = look([](const std::string& t) {
    return t.starts_with("conv1/") || t.starts_with("batch_norm1/gamma") ||
           t.starts_with("batch_norm1/beta");
  });
  // dense1's gradient is right; the gradients computed after it in the backward pass are not.
  EXPECT_TRUE(b.text.starts_with("the backward pass from ")) << b.text;
  EXPECT_EQ(b.text.find("dense"), b.text.find("dense1 to")) << b.text;
  EXPECT_NE(b.right.find("dense1/kernel"), std::string::npos) << b.right;
}

TEST_F(Brackets, RunningStatisticsTellTheForwardPassBeforeThem) {
  const auto all = [](const std::string& t) { return t == "loss" || t.ends_with(".grad"); };
  const auto also_statistics = [&](const std::string& t) {
    return all(t) || t.find("moving_") != std::string::npos;
  };
  const Bracket after = look(all), before = look(also_statistics);
  EXPECT_EQ(before.text, "the forward pass from avg_pool1 to batch_norm1");
  EXPECT_TRUE(after.text.starts_with("the forward pass from batch_norm1 to ")) << after.text;
}

TEST_F(Brackets, TheLossAlone) {
  EXPECT_EQ(look(any({"loss"})).text, "the forward pass of the loss");
}

TEST_F(Brackets, AnUpdateAlone) {
  EXPECT_EQ(look(any({"dense1/kernel"})).text, "the update of dense1, whose gradient is right");
  EXPECT_EQ(look(any({"batch_norm1/moving_mean"})).text, "the update of batch_norm1");
  EXPECT_EQ(look([&](const std::string& t) {
              const StateVar* var = p_.find_state(t);
              return var != nullptr && var->role == StateRole::kParameter;
            }).text,
            "what these updates share, such as the learning rate");
}

// A loss that is inside does not rule out an error so small that the loss would not show it.
TEST_F(Brackets, ACoarseWitnessSaysNothing) {
  const auto gradients = [](const std::string& t) { return t.ends_with(".grad"); };
  const Bracket fine = look(gradients, 0.5, 1e-4), coarse = look(gradients, 0.5, 0.1);
  EXPECT_EQ(fine.text.find("forward"), std::string::npos) << fine.text;
  EXPECT_NE(coarse.text.find("forward"), std::string::npos) << coarse.text;
}

// The order is that of the backward pass. Gradients are reduced in another order, that of the
// parameters.
TEST_F(Brackets, GradientsAreOrderedAsTheyAreComputed) {
  const auto at = [&](const std::string& t) { return computed_at(p_, t, p_.find_output(t)->id); };
  EXPECT_LT(p_.find_output("conv1/kernel.grad")->id, p_.find_output("dense1/kernel.grad")->id);
  EXPECT_GT(at("conv1/kernel.grad"), at("dense1/kernel.grad"));
}

TEST_F(Brackets, TensorsInWords) {
  EXPECT_EQ(tensor_words("conv1/kernel.grad", false), "the gradient of conv1/kernel");
  EXPECT_EQ(tensor_words("conv1/kernel", true), "the update of conv1/kernel");
  EXPECT_EQ(tensor_words("loss", false), "the loss");
  EXPECT_EQ(tensor_words("output/conv1", false), "the output of conv1");
  EXPECT_EQ(tensor_words("output/conv1.grad", false), "the gradient of what conv1 gives");
}

}  // namespace
}  // namespace twinrun
