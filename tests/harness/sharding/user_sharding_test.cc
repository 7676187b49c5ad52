// Tests of the judgement of a user's own sharding: a data-parallel step of JAX under clipping and
// momentum, as it is and with mistakes put into its text, against the same step on one device.
#include "harness/sharding/user_sharding.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>

#include "harness/experiment/imported.h"
#include "tests/support/folder.h"
#include "tests/support/jax_steps.h"

namespace twinrun {
namespace {

std::string text_of(const std::string& name) {
  std::ifstream in(jax_step(name), std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

Result<UserSharding> judge(const std::string& text,
                           const std::string& whole = jax_step("shard_mean_whole.hlo")) {
  const Folder folder;
  const std::string file = folder / "step.hlo";
  std::ofstream(file, std::ios::binary) << text;
  const ProgramFiles request{file,
                             jax_step("shard_mean.json"),
                             jax_step("shard_mean.state.npz"),
                             jax_step("shard_mean.batch.npz"),
                             {},
                             whole};
  const auto e = import_experiment(request);
  if (!e) return e.error();
  return judge_user_sharding(*e, 1);
}

std::string replaced(const std::string& text, const std::string& what, const std::string& by) {
  const std::string out = std::regex_replace(text, std::regex(what), by);
  EXPECT_NE(out, text) << what;
  return out;
}

std::vector<std::string> causes_of(const UserSharding& u) {
  std::vector<std::string> names;
  for (const RepairedCause& c : u.causes) names.push_back(c.cause);
  return names;
}

// The all-reduce of a gradient, an array, but not that of the loss.
const std::string kReduction = "(f32\\[[0-9,]+\\]\\{[0-9,]+\\}) all-reduce\\(([a-z_.0-9]+)\\)";

TEST(UserSharding, TheSameMeaningIsFound) {
  const auto u = judge(text_of("shard_mean.hlo"));
  ASSERT_TRUE(u) << u.error().message();
  EXPECT_TRUE(u->compared);
  EXPECT_EQ(u->cores, 8);
  EXPECT_EQ(u->steps, 3);
  EXPECT_FALSE(u->differs()) << u->other.front().name;
  EXPECT_TRUE(u->in_common.empty());
  EXPECT_FALSE(u->loss_ratio);
}

// Without clipping, of which a direction alone is left, the factor shows in every variable.
TEST(UserSharding, ASumForAMeanIsAFactor) {
  const auto unclipped = [](const std::string& name) {
    return replaced(text_of(name), "minimum\\(([a-z_.0-9]+), ([a-z_.0-9]+)\\)", "maximum($2, $2)");
  };
  const Folder folder;
  const std::string whole = folder / "whole.hlo";
  std::ofstream(whole, std::ios::binary) << unclipped("shard_mean_whole.hlo");
  const std::string right = unclipped("shard_mean.hlo");
  const auto same = judge(right, whole);
  ASSERT_TRUE(same) << same.error().message();
  EXPECT_FALSE(same->differs());
  // The divisors of the three gradients; that of the loss stays.
  const auto u =
      judge(replaced(right, "(constant.2[234] = f32\\[\\] constant)\\(8\\)", "$1(1)"), whole);
  ASSERT_TRUE(u) << u.error().message();
  EXPECT_EQ(u->other.size(), 6u) << "three parameters and their velocities";
  for (const UserSharding::Other& o : u->other) {
    EXPECT_EQ(o.step, 0);
    ASSERT_TRUE(o.factor) << o.name;
    EXPECT_NEAR(*o.factor, 8, 1e-9);
    EXPECT_EQ(o.factor_is, "the number of cores");
  }
  EXPECT_TRUE(u->apart.empty());
  EXPECT_FALSE(u->loss_ratio);
  EXPECT_EQ(causes_of(*u), std::vector<std::string>{"unscaled"});
  EXPECT_EQ(u->causes.front().facts.at("factor"), "8");
  std::filesystem::remove(whole);
}

TEST(UserSharding, AForgottenReductionLeavesCopiesApart) {
  const std::string text = replaced(text_of("shard_mean.hlo"), kReduction, "$1 copy($2)");
  for (const bool whole : {true, false}) {
    const auto u = whole ? judge(text) : judge(text, "");
    ASSERT_TRUE(u) << u.error().message();
    EXPECT_TRUE(u->differs());
    EXPECT_EQ(u->compared, whole);
    ASSERT_EQ(u->apart.size(), 6u);
    EXPECT_EQ(u->apart.front().step, 0);
    EXPECT_EQ(u->apart.front().core, 1);
    EXPECT_EQ(u->other.empty(), !whole);
    EXPECT_EQ(causes_of(*u),
              whole ? std::vector<std::string>{"no_all_reduce"} : std::vector<std::string>());
  }
}

TEST(UserSharding, ASumOfWhatIsSummedAlreadyIsNamed) {
  // pmean of a gradient that was averaged before: right, but told apart where a sum follows a sum.
  const std::string text =
      replaced(text_of("shard_mean.hlo"),
               "( +)(psum.22)( = f32\\[6,8\\]\\{0,1\\} all-reduce\\()([a-z_.0-9]+)(\\)[^\\n]*\\n)",
               "$1first$3$4$5$1$2$3first$5");
  const auto u = judge(text);
  ASSERT_TRUE(u) << u.error().message();
  ASSERT_EQ(u->in_common.size(), 1u);
  EXPECT_NE(u->in_common.front().find("psum"), std::string::npos);
  ASSERT_FALSE(u->other.empty());
  ASSERT_EQ(causes_of(*u), std::vector<std::string>{"summed_twice"});
  EXPECT_EQ(u->causes[0].facts.at("factor"), "8");
  EXPECT_EQ(u->causes[0].facts.at("axes"), "data");
}

TEST(UserSharding, AStepOfManyCoresIsNoReference) {
  const auto e = import_experiment(
      {.program = jax_step("shard_mean.hlo"), .whole = jax_step("shard_mean.mlir")});
  ASSERT_FALSE(e);
  EXPECT_NE(e.error().message().find("a step of 8 cores"), std::string::npos);
  const auto one =
      import_experiment({.program = jax_step("mlp_sgd.hlo"), .whole = jax_step("mlp_sgd.mlir")});
  ASSERT_FALSE(one);
  EXPECT_NE(one.error().message().find("runs on one core"), std::string::npos);
}

// A text for each core of pmap and a text after the partitioner hold parts of the user's arrays.
TEST(UserSharding, PartsAreComparedAsParts) {
  for (const char* name : {"shard_tensor_gspmd.hlo", "shard_tensor_spmd.hlo"}) {
    const auto e = import_experiment({jax_step(name),
                                      jax_step("shard_tensor.json"),
                                      jax_step("shard_tensor.state.npz"),
                                      jax_step("shard_tensor.batch.npz"),
                                      {}});
    ASSERT_TRUE(e) << e.error().message();
    const auto u = judge_user_sharding(*e, 1);
    ASSERT_TRUE(u) << u.error().message();
    EXPECT_FALSE(u->differs()) << name << u->apart.front().name;
  }
}

}  // namespace
}  // namespace twinrun
