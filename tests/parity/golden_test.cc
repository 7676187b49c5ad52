// Tests that our results agree, within the recorded bounds (docs/method/numerics.md, "Parity"),
// with what JAX, TensorFlow and PyTorch computed. Their results are recorded in tests/golden/parity
// (./dev parity --update-golden), so no framework is needed. Records of deliberate mistakes must lie
// outside the bounds, because a bound that admits them shows nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/harness/tiny.h"
#include "tests/parity/corners.h"

namespace twinrun::parity {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kFolder = TWINRUN_SOURCE_DIR "/tests/golden/parity";

json read(const fs::path& path) { return json::parse(std::ifstream(path)); }

// The records of the frameworks for each case and run (R or S), which are compared with one run of
// ours.
std::map<std::string, std::vector<fs::path>> groups() {
  std::map<std::string, std::vector<fs::path>> found;
  std::error_code absent;  // if the folder is missing, AreThere fails
  for (const auto& entry : fs::directory_iterator(kFolder, absent)) {
    const json r = read(entry.path());
    found[r["case"].get<std::string>() + "_" + r["corner"].get<std::string>()].push_back(
        entry.path());
  }
  return found;
}

Trace run(const json& record) {
  Overrides overrides;
  for (const std::string pair : record["set"]) {
    const size_t equals = pair.find('=');
    overrides.emplace_back(pair.substr(0, equals), pair.substr(equals + 1));
  }
  std::string scenario = record["scenario"];
  if (scenario.ends_with(".toml")) scenario.insert(0, TWINRUN_SOURCE_DIR "/");
  const Experiment e = tiny::must(make_experiment(tiny::must(load_scenario(scenario, overrides))));
  const auto cpu = tiny::backend("cpu", 2);
  return tiny::must(trace(e, tiny::program(e, record["corner"] == "S"), *cpu,
                          {.steps = static_cast<int64_t>(record["losses"].size())}));
}

double norm(const std::vector<double>& v) { return distance(v, std::vector<double>(v.size())); }

// How many numbers of a record lie outside its bounds around ours; `first` describes the first one.
int outside(const json& record, const Trace& ours, std::string* first) {
  int n = 0;
  const auto check = [&](const std::string& what, double a, double b, double bound) {
    if (std::fabs(a - b) <= bound) return;
    if (n++ == 0) *first = what + ": ours " + std::to_string(a) + ", theirs " + std::to_string(b);
  };
  for (size_t s = 0; s < ours.losses.size(); ++s) {
    check("loss of step " + std::to_string(s), mean(ours.losses[s]), record["losses"][s],
          record["loss_bounds"][s]);
  }
  for (const auto& [part, values] :
       {std::pair{"first", &ours.first}, {"last", &ours.last}, {"state", &ours.state}}) {
    for (const auto& [name, pair] : record["norms"][part].items()) {
      // |norm(a) - norm(b)| is at most norm(a - b).
      check(std::string(part) + " " + name, norm(values->at(name)), pair[0], pair[1]);
    }
  }
  return n;
}

class ParityGolden : public testing::TestWithParam<std::string> {};

TEST_P(ParityGolden, OursIsTheirs) {
  const std::vector<fs::path> records = groups().at(GetParam());
  const Trace ours = run(read(records[0]));
  for (const fs::path& path : records) {
    const json record = read(path);
    std::string first;
    if (record["wrong"].is_null()) {
      EXPECT_EQ(outside(record, ours, &first), 0)
          << path.filename() << ": " << first
          << "\nIf the scenario has changed: ./dev parity --update-golden "
          << record["case"].get<std::string>();
    } else {
      EXPECT_GT(outside(record, ours, &first), 0)
          << path.filename() << ": a mistake within the bounds";
    }
  }
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& [name, records] : groups()) all.push_back(name);
  return all;
}
INSTANTIATE_TEST_SUITE_P(Records, ParityGolden, testing::ValuesIn(names()),
                         [](const testing::TestParamInfo<std::string>& info) {
                           return info.param;
                         });

// Every case has records, and there are records of every framework and of deliberate mistakes.
TEST(ParityRecords, AreThere) {
  std::map<std::string, int> count;
  std::set<std::string> cases;
  for (const auto& [name, records] : groups()) {
    for (const fs::path& path : records) {
      const json r = read(path);
      cases.insert(r["case"].get<std::string>());
      ++count[r["wrong"].is_null() ? r["framework"].get<std::string>() : "wrong"];
    }
  }
  std::ifstream file(TWINRUN_SOURCE_DIR "/tests/parity/cases.toml");
  size_t listed = 0;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("name = \"")) continue;
    ++listed;
    const std::string name = line.substr(8, line.rfind('"') - 8);
    EXPECT_TRUE(cases.contains(name))
        << name << " has no record: ./dev parity --update-golden " << name;
  }
  EXPECT_EQ(listed, cases.size()) << "records of cases that are no more";
  for (const char* who : {"jax", "tf", "torch", "wrong"}) EXPECT_GE(count[who], 5) << who;
}

}  // namespace
}  // namespace twinrun::parity
