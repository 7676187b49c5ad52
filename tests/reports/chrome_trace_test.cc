// Tests that to_chrome_trace keeps the rules of the trace-event format that viewers rely on.
#include "reports/chrome_trace.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

namespace twinrun {
namespace {

using nlohmann::ordered_json;

const ChromeTrace kTrace = {
    {"tpu \"x\"\xff"},
    {{"steps"}, {"core 0"}},
    {{"step 3", "step", 0, 0, 100.0004, {}},
     {"dense/matmul", "forward", 1, 1.00049, 10.00049, {{"kind", "dot_general"}}},
     {"dense/bias", "forward", 1, 11.00098, 5, {}}},
    {{"times", "wall clock"}}};

TEST(ChromeTrace, IsAnObjectOfEvents) {
  const ordered_json j = ordered_json::parse(to_chrome_trace(kTrace));
  EXPECT_EQ(j["displayTimeUnit"], "ms");
  EXPECT_EQ(j["otherData"]["times"], "wall clock");
  std::map<int, std::string> tracks;
  int spans = 0;
  for (const auto& event : j["traceEvents"]) {
    ASSERT_TRUE(event["name"].is_string());
    ASSERT_TRUE(event["pid"].is_number_integer() && event["tid"].is_number_integer());
    if (event["ph"] == "M") {
      if (event["name"] == "thread_name") tracks[event["tid"]] = event["args"]["name"];
      continue;
    }
    ++spans;
    EXPECT_EQ(event["ph"], "X");
    EXPECT_GE(event["ts"].get<double>(), 0);
    EXPECT_GE(event["dur"].get<double>(), 0);
    EXPECT_TRUE(event["args"].is_object());
    EXPECT_TRUE(tracks.contains(event["tid"])) << "a track is named before it is used";
  }
  EXPECT_EQ(spans, 3);
  EXPECT_EQ(tracks, (std::map<int, std::string>{{0, "steps"}, {1, "core 0"}}));
}

// Rounding to nanoseconds must not make adjacent spans overlap: a viewer would nest them.
TEST(ChromeTrace, NeighboursStayApart) {
  const ordered_json j = ordered_json::parse(to_chrome_trace(kTrace));
  const auto& events = j["traceEvents"];
  const auto& first = events[events.size() - 2];
  const auto& second = events[events.size() - 1];
  EXPECT_LE(first["ts"].get<double>() + first["dur"].get<double>(),
            second["ts"].get<double>() + 1e-9);
  EXPECT_EQ(first["args"]["kind"], "dot_general");
}

// Sections become processes. Spans are sorted by track and begin; an enclosing span comes first.
TEST(ChromeTrace, SectionsAndOrder) {
  const ChromeTrace trace = {{"core 0", "host"},
                             {{"step", 0}, {"op", 0}, {"read", 1}},
                             {{"late", "", 2, 50, 10, {}},
                              {"inner", "", 0, 0, 20, {}},
                              {"outer", "", 0, 0, 100, {}},
                              {"early", "", 2, 5, 10, {}}},
                             {}};
  const ordered_json j = ordered_json::parse(to_chrome_trace(trace));
  std::vector<std::string> names;
  std::map<std::string, int> sections;
  for (const auto& event : j["traceEvents"]) {
    if (event["ph"] == "X") names.push_back(event["name"]);
    if (event["name"] == "process_name") sections[event["args"]["name"]] = event["pid"];
    if (event["name"] == "late") {
      EXPECT_EQ(event["pid"], sections["host"]);
    }
  }
  EXPECT_EQ(names, (std::vector<std::string>{"outer", "inner", "early", "late"}));
  EXPECT_LT(sections["core 0"], sections["host"]);
}

}  // namespace
}  // namespace twinrun
