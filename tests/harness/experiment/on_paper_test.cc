// Tests that programs made without data equal those made with data, and that batches which do not
// fit are refused.
#include <gtest/gtest.h>

#include "harness/experiment/experiment.h"
#include "program/graph/program.h"
#include "scenarios/library.h"

namespace twinrun {
namespace {

TEST(OnPaper, SameProgramAsWithData) {
  int compared = 0;
  for (const LibraryFile& file : library_files()) {
    const auto scenario = load_scenario(file.name);
    ASSERT_TRUE(scenario) << file.name;
    const auto paper = experiment_on_paper(*scenario);
    ASSERT_TRUE(paper) << file.name << ": " << paper.error().what;
    EXPECT_EQ(paper->data, nullptr);
    if (!scenario->data.dir.empty()) continue;  // its files may be missing
    const auto real = make_experiment(*scenario);
    ASSERT_TRUE(real) << file.name;
    EXPECT_EQ(to_text(paper->sharded(paper->sharding)), to_text(real->sharded(real->sharding)))
        << file.name;
    ++compared;
  }
  EXPECT_GT(compared, 15);
}

TEST(OnPaper, ShapesThatOnlyTheDataTell) {
  const auto scenario = load_scenario("resnet50", {{"data.shape", "[]"}});
  ASSERT_TRUE(scenario);
  const auto paper = experiment_on_paper(*scenario);
  ASSERT_FALSE(paper);
  EXPECT_EQ(paper.error().fix, "set data.shape");
}

// With drop_remainder = false, TensorFlow's last batch is shorter, which a program of one batch
// size cannot take. Where there is no remainder, the key changes nothing.
TEST(Remainder, IsRefusedWhereThereIsOne) {
  const auto made = [](const char* samples, const char* drop) {
    return make_experiment(
        *load_scenario("digits_mlp", {{"data.train", samples}, {"data.drop_remainder", drop}}));
  };
  const auto refused = made("1000", "false");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().where.find("data.drop_remainder"), std::string::npos);
  EXPECT_NE(refused.error().what.find("leave 40 of the 1000"), std::string::npos)
      << refused.error().what;
  EXPECT_EQ(refused.error().fix, "drop_remainder = true, or train.batch = 40");
  EXPECT_TRUE(made("1000", "true"));
  const auto a = made("640", "false"), b = made("640", "true");
  ASSERT_TRUE(a && b);
  const Program program = a->whole();
  StepFeed of_a(*a, program), of_b(*b, program);
  for (const int64_t step : {0, 9, 10, 25}) {
    EXPECT_TRUE((*of_a.inputs(step))[0][0].same_bits((*of_b.inputs(step))[0][0])) << step;
  }
}

// Samples of a core's share that do not make whole groups are a mistake of the user, wherever the
// program is sharded.
TEST(Shares, NamesTheNearestBatches) {
  const auto made = [](const Overrides& keys) {
    return *experiment_on_paper(*load_scenario("gan_digits", keys));
  };
  const Experiment e = made({{"train.batch", "40"}});
  const Status refused = check_shares(e, e.sharding, true);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("a batch of 5 does not make groups of 4 samples"),
            std::string::npos);
  EXPECT_EQ(refused.error().fix, "train.batch = 32 or 64");
  const Experiment gathered = made({{"train.batch", "40"}, {"tpu.batchwise", "gathered"}});
  EXPECT_TRUE(check_shares(gathered, gathered.sharding, false));
  EXPECT_FALSE(check_shares(gathered, gathered.sharding, true)) << "R1 has 5 samples";
  const Experiment fits = made({});
  EXPECT_TRUE(check_shares(fits, fits.sharding, true));
}

}  // namespace
}  // namespace twinrun
