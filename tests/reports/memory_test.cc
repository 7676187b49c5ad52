// Tests the out-of-memory text in XLA's wording, with the figures of a real TPU v2 log.
#include "reports/memory.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace twinrun {
namespace {

constexpr double kG = 1 << 30;

// The figures of the log in github.com/sokrypton/ColabFold/issues/62.
MemoryReport colabfold() {
  MemoryReport r;
  r.generation = "v2";
  r.hbm = 8LL << 30;
  r.reserved = 530LL << 20;
  r.program = static_cast<int64_t>(9.08 * kG);
  r.program_unpadded = static_cast<int64_t>(8.66 * kG);
  r.largest = {{"while/fusion", "fusion", "activations", "f32[512,245,256]{2,1,0:T(8,128)}",
                124LL << 20, 512LL * 245 * 256 * 4, ""}};
  return r;
}

TEST(Memory, OutOfMemoryInTheWordsOfTheStack) {
  const std::string text = out_of_memory_text(colabfold());
  for (const char* line :
       {"Ran out of memory in memory space hbm. Used 9.08G of 7.48G hbm. Exceeded hbm capacity by "
        "1.60G.",
        "Total hbm usage >= 9.60G:", "reserved         530.00M", "program            9.08G",
        "arguments             0B", "Output size 0B; shares 0B with arguments.",
        "HLO temp           9.08G (95.4% utilization: Unpadded (8.66G) Padded (9.08G), 0.0% "
        "fragmentation (0B))",
        "  1. Size: 124.00M\n",
        "     Shape: f32[512,245,256]{2,1,0:T(8,128)}\n     Unpadded size: 122.50M\n"
        "     Extra memory due to padding: 1.50M (1.0x expansion)\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << "\nnot in\n" << text;
}

TEST(Memory, WhatFitsSaysNothingOfTheKind) {
  MemoryReport r = colabfold();
  r.program = r.usable();
  EXPECT_TRUE(r.fits());
  EXPECT_EQ(out_of_memory_text(r), "");
  EXPECT_TRUE(nlohmann::json::parse(memory_json(r))["out_of_memory"].is_null());
  ++r.program;
  EXPECT_FALSE(r.fits());
}

TEST(Memory, JsonHasWhatTheTextHas) {
  MemoryReport r = colabfold();
  r.changes = {{"train.batch = 512", "--set train.batch=512", 5LL << 30, true, 512}};
  r.fit = {{"", 640, 64, 7LL << 30}};
  r.host = HostMemory{100, 20, 3, 4, 5};
  const auto j = nlohmann::json::parse(memory_json(r));
  EXPECT_EQ(j["used"], r.used());
  EXPECT_EQ(j["usable"], r.usable());
  EXPECT_EQ(j["fits"], false);
  EXPECT_EQ(j["changes"][0]["set"], "--set train.batch=512");
  EXPECT_EQ(j["fit"][0]["batch"], 640);
  EXPECT_EQ(j["host"]["total"], 132);
  EXPECT_EQ(j["largest"][0]["unpadded"], 512 * 245 * 256 * 4);
  const std::string text = memory_text(r);
  EXPECT_NE(text.find("  640  7.00G of 7.48G"), std::string::npos) << text;
  EXPECT_NE(text.find("train.batch = 512"), std::string::npos) << text;
}

}  // namespace
}  // namespace twinrun
