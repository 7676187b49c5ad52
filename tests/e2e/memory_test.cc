// Tests the memory section of `twinrun check`: exit codes, XLA's out-of-memory wording, JSON.
#include "tests/e2e/process.h"

namespace twinrun::e2e {
namespace {

TEST(CheckMemory, WhatDoesNotFitSaysSoAndFails) {
  const Folder folder;
  const Outcome o = twinrun(folder, {"check", "resnet50"});
  EXPECT_EQ(o.code, 1) << o.err;
  EXPECT_NE(o.out.find("Ran out of memory in memory space hbm. Used "), std::string::npos) << o.out;
  EXPECT_NE(o.out.find(" of 7.48G hbm. Exceeded hbm capacity by "), std::string::npos);
  EXPECT_NE(o.out.find("what to change, planned again"), std::string::npos);
  EXPECT_EQ(twinrun(folder, {"check", "resnet50", "--generation", "v3"}).code, 0);
}

TEST(CheckMemory, JsonHasThePlan) {
  const Folder folder;
  const Outcome o = twinrun(folder, {"check", "use_tpus", "--json", "--fit"});
  EXPECT_EQ(o.code, 0) << o.err;
  const auto memory = json_of(o.out)["memory"];
  EXPECT_EQ(memory["fits"], true);
  EXPECT_EQ(memory["used"], memory["arguments"].get<int64_t>() + memory["program"].get<int64_t>());
  EXPECT_EQ(memory["slot_bytes_per_weight"], 8);
  EXPECT_EQ(memory["fit"].size(), 3u);
  EXPECT_GT(memory["host"]["arena"], 0);
  EXPECT_TRUE(memory["out_of_memory"].is_null());
}

TEST(CheckMemory, AStepOfOnesOwnIsPlannedToo) {
  const Folder folder;
  const std::string step = jax_step("cnn_batch_norm.hlo");
  const Outcome o = twinrun(folder, {"check", "--program", step, "--json", "--fit"});
  const auto memory = json_of(o.out)["memory"];
  EXPECT_EQ(memory["fits"], true) << o.err;
  EXPECT_TRUE(memory["fit"].is_null());
}

}  // namespace
}  // namespace twinrun::e2e
