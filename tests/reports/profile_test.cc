// Tests the renderings of a profile: the terminal, JSON and the page show the same numbers, and its
// strings never act as markup.
#include "reports/profile.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "reports/text.h"
#include "tests/reports/profile_examples.h"

namespace twinrun {
namespace {

TEST(ProfileReport, EveryFormatHasItsNumbers) {
  const Profile p = examples::profile();
  const std::string text = to_profile_text(p, 100), page = to_profile_html(p, "trace.json");
  for (const char* what : {"8.00 ms", "32000 samples/s", "25.0% of the peak of 20.0 TFLOP/s",
                           "25.0% of it padding", "highly input-bound", "conv2/convolution",
                           "train.batch=1024", "2.00 times", "0.64", "someone"}) {
    EXPECT_NE(text.find(what), std::string::npos) << what << '\n' << text;
    if (std::string(what) != "someone" && std::string(what) != "32000 samples/s") {
      EXPECT_NE(page.find(what), std::string::npos) << what;
    }
  }
  const auto j = nlohmann::json::parse(to_profile_json(p));
  EXPECT_DOUBLE_EQ(j["recommendations"][0]["gain"], 2);
  EXPECT_DOUBLE_EQ(j["published"][0]["ratio"], 0.64);
  EXPECT_EQ(j["categories"][0]["name"], "convolution");
  EXPECT_EQ(j["steps"].size(), 6U);
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

TEST(ProfileReport, NothingIsTakenForMarkup) {
  const Profile p = examples::hostile_profile();
  const std::string page = to_profile_html(p, "trace.json");
  EXPECT_EQ(page.find("<img"), std::string::npos);
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  EXPECT_EQ(page.find('\x1b'), std::string::npos);
  const std::string text = to_profile_text(p, 80);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_TRUE(nlohmann::json::accept(to_profile_json(p)));
  EXPECT_TRUE(nlohmann::json::accept(to_chrome_trace(to_profile_trace(p))));
  EXPECT_TRUE(nlohmann::json::accept(to_profile_json(Profile{})));
  EXPECT_FALSE(to_profile_html(Profile{}, "").empty() || to_profile_text(Profile{}, 80).empty());
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
