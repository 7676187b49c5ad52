// Tests the error messages of scenarios: each tests/cases/scenarios/*.case has an input, overrides
// and the exact expected message.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "scenarios/scenario.h"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

struct Case {
  std::string input, error;
  Overrides sets;
};

Case read_case(const fs::path& path) {
  Case out;
  std::string line, part;
  std::ifstream in(path);
  while (std::getline(in, line)) {
    if (line.starts_with("=== ")) {
      part = line.substr(4);
    } else if (part == "input") {
      out.input += line + "\n";
    } else if (part == "set") {
      const size_t equals = line.find('=');
      out.sets.emplace_back(line.substr(0, equals), line.substr(equals + 1));
    } else if (part == "error") {
      out.error += (out.error.empty() ? "" : "\n") + line;
    }
  }
  return out;
}

TEST(ScenarioCases, SayWhatWhereAndHowToFix) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(TWINRUN_SOURCE_DIR "/tests/cases/scenarios")) {
    if (entry.path().extension() == ".case") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  ASSERT_GE(paths.size(), 30u);
  for (const fs::path& path : paths) {
    SCOPED_TRACE(path.filename().string());
    const Case c = read_case(path);
    const auto scenario = parse_scenario(c.input, "case.toml", c.sets);
    if (scenario.ok()) {
      ADD_FAILURE() << "accepted";
      continue;
    }
    EXPECT_EQ(scenario.error().message(), c.error);
  }
}

}  // namespace
}  // namespace twinrun
