// Tests the renderings of a profile: the terminal and JSON show the same numbers.
#include "reports/profile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "reports/text.h"
#include "tests/reports/profile_examples.h"

namespace twinrun {
namespace {

TEST(ProfileReport, EveryFormatHasItsNumbers) {
  const Profile p = examples::profile();
  const std::string text = to_profile_text(p, 100);
  for (const char* what : {"8.00 ms", "32000 samples/s", "25.0% of the peak of 20.0 TFLOP/s",
                           "25.0% of it padding", "highly input-bound", "conv2/convolution",
                           "train.batch=1024", "2.00 times", "0.64", "someone"}) {
    EXPECT_NE(text.find(what), std::string::npos) << what << '\n' << text;
  }
  const auto j = nlohmann::json::parse(to_profile_json(p));
  EXPECT_DOUBLE_EQ(j["recommendations"][0]["gain"], 2);
  EXPECT_DOUBLE_EQ(j["published"][0]["ratio"], 0.64);
  EXPECT_EQ(j["categories"][0]["name"], "convolution");
  EXPECT_EQ(j["steps"].size(), 6U);
}

// What the guides' views have: docs/guides/tpu-tools.md.
TEST(ProfileReport, TheTextHasTheViewsElements) {
  Profile p = examples::profile();
  p.ops[0].fit = "k 9 padded to 128, n 128 fits exactly";
  p.ops[0].fill = 9.0 / 128;
  const std::string text = to_profile_text(p, 140);
  for (const char* what :
       {"TPU v2-8, batch 256, 32 on each of 8 cores", "cumulative", "GFLOP/s",
        // The slowest op takes 2 of 5 ms, the next 1.5; 10 GFLOP in 2 ms.
        "40.0%", "70.0%", "90.0%", "5000",
        // Steps of 7 and of 9 ms: the deviation is sqrt(6 / 5).
        "6 steps shown: 7.00 ms to 9.00 ms, standard deviation 1.10 ms",
        "3 of 4 ops take 90 % of the ops", "self time",
        "conv1/convolution: k 9 padded to 128, n 128 fits exactly, 7% of the cells are of use"})
    EXPECT_NE(text.find(what), std::string::npos) << what << '\n' << text;
  // The card of an op.
  const auto op = nlohmann::json::parse(to_profile_json(p))["ops"][0];
  EXPECT_EQ(op["fit"], p.ops[0].fit);
  EXPECT_DOUBLE_EQ(op["fill"], p.ops[0].fill);
  EXPECT_DOUBLE_EQ(op["padding"], 1.25);
  EXPECT_EQ(op["layout"], "f32[8,4]{1,0:T(8,128)}");
  EXPECT_EQ(op["expression"], p.ops[0].expression);
  EXPECT_EQ(ops_of_most_time(p), 3U);
  EXPECT_NEAR(step_deviation(p), 1e-3 * std::sqrt(1.2), 1e-12);
}

TEST(ProfileReport, HostTimeHasTheFourCategories) {
  Profile p = examples::profile();
  p.input.stages = {{"read", "opened", 5, 0, true},           {"read ahead", "files", 0.001, 1e6},
                    {"cache", "decoded", 0.002, 1e6},         {"shuffle", "order", 0.0005, 0},
                    {"preprocess", "copy", 0.004, 3e6},       {"batch", "memory", 0.0005, 0},
                    {"enqueue", "to each chip", 0.0015, 3e6}, {"else", "", 0.0005, 0}};
  p.input.host = 0.01;
  const auto j = nlohmann::json::parse(to_profile_json(p))["input"];
  EXPECT_DOUBLE_EQ(j["reading_seconds"], 0.003);
  EXPECT_DOUBLE_EQ(j["preprocessing_seconds"], 0.005);
  EXPECT_DOUBLE_EQ(j["enqueuing_seconds"], 0.0015);
  EXPECT_DOUBLE_EQ(j["other_seconds"], 0.0005);
  const std::string text = to_profile_text(p, 120);
  for (const char* row : {"enqueuing", "15.0%", "reading", "30.0%", "preprocessing", "50.0%",
                          "larger files, several at a time", "once"})
    EXPECT_NE(text.find(row), std::string::npos) << row << '\n' << text;
}

// A suggestion to do more arithmetic says what it is about, and every setting is an option.
TEST(ProfileReport, SettingsAreOptions) {
  Profile p = examples::profile();
  p.recommendations = {{"narrow-layers", "narrow", "a=1 b=2", 32000, 30000, 1e12, 2e12}};
  const std::string text = to_profile_text(p, 120);
  EXPECT_NE(text.find("--set a=1 --set b=2"), std::string::npos) << text;
  EXPECT_NE(text.find("1.00 TFLOP/s -> 2.00 TFLOP/s, 2.00 times, at 32000 -> 30000 samples/s"),
            std::string::npos)
      << text;
}

TEST(ProfileReport, DearestFirst) {
  const Profile p = examples::profile();
  const auto all = categories(p);
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].name, "convolution");
  EXPECT_DOUBLE_EQ(all[0].seconds, 0.0035);
  EXPECT_EQ(all[0].count, 2);
  EXPECT_EQ(top_ops(p, 2)[0]->name, "conv2/convolution");
  EXPECT_EQ(top_ops(p, 2).size(), 2U);
}

TEST(ProfileReport, HostileNamesStayOnTheirLine) {
  const Profile p = examples::hostile_profile();
  const std::string text = to_profile_text(p, 80);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_TRUE(nlohmann::json::accept(to_profile_json(p)));
  EXPECT_TRUE(nlohmann::json::accept(to_profile_json(Profile{})));
  EXPECT_FALSE(to_profile_text(Profile{}, 80).empty());
}

TEST(ProfileReport, LinesFitTheTerminal) {
  for (const int width : {80, 120}) {
    std::istringstream lines(to_profile_text(examples::profile(), width));
    for (std::string line; std::getline(lines, line);)
      EXPECT_LE(text::display_width(line), width) << line;
  }
}

}  // namespace
}  // namespace twinrun
