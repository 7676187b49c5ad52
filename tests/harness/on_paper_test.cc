// Programs made without data are those made with it.
#include <gtest/gtest.h>

#include "harness/experiment.h"
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
    if (!scenario->data.dir.empty()) continue;  // its files may be absent
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

}  // namespace
}  // namespace twinrun
