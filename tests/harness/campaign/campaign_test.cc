// Tests which shard has a case, the plan of a shard, and what merging refuses.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "harness/campaign/merge.h"
#include "program/base/json_checksum.h"
#include "tests/harness/tiny.h"

namespace twinrun::campaign {
namespace {

using tiny::must;

// Values of Python: zlib.crc32(id.encode()) % count.
TEST(Shards, AreChosenByTheDigestOfTheId) {
  EXPECT_EQ(shard_of("engine.drill_mlp.1.17", 1'000'000'000), 62136795);
  EXPECT_EQ(shard_of("engine.drill_mlp.1.17", 8), 3);
  EXPECT_EQ(shard_of("engine.drill_mlp.1.17", 7), 0);
  EXPECT_EQ(shard_of("seed.1", 7), 6);
  EXPECT_EQ(shard_of("clean.drill_cnn.1.0", 8), 4);
}

TEST(Shards, AreReadFromIOfN) {
  EXPECT_EQ(must(parse_shard("0/1")), (Shard{0, 1}));
  EXPECT_EQ(must(parse_shard("7/8")), (Shard{7, 8}));
  for (const char* bad : {"", "3", "/", "3/", "/8", "8/8", "-1/8", "a/8", "1/0", "1/-2", "0/100001",
                          "0/99999999999999999999", "1/8/2", " 1/8", "1/8 "}) {
    const auto shard = parse_shard(bad);
    ASSERT_FALSE(shard.ok()) << bad;
    EXPECT_EQ(shard.error().where, "--shard");
  }
  EXPECT_NE(parse_shard("8/8").error().what.find("shard 8 of 8; allowed: 0/8 to 7/8"),
            std::string::npos);
}

std::vector<std::string> ids_to(int count) {
  std::vector<std::string> ids;
  for (int i = 0; i < count; ++i) ids.push_back("case." + std::to_string(i));
  return ids;
}

// Shards of a small campaign in folders, each record of which is the square of its number.
class Merging : public testing::Test {
 protected:
  static constexpr int kCases = 40, kShards = 5;
  Merging() {
    for (int64_t i = 0; i < kShards; ++i) write(i);
  }
  std::string path(int64_t i, const std::string& file = "") const {
    return folder_ / ("out/" + folder_of({i, kShards}) + (file.empty() ? "" : "/" + file));
  }
  static std::string line(const std::string& id, int64_t square, double seconds,
                          const std::string& error = "") {
    return with_checksum("{\"id\":\"" + id + "\",\"square\":" + std::to_string(square) +
                         ",\"error\":\"" + error + "\",\"seconds\":" + std::to_string(seconds) +
                         "}");
  }
  static std::string line(const PlannedCase& c, double seconds = 1) {
    return line(c.id, c.number * c.number, seconds);
  }
  Plan plan(int64_t i) const {
    Plan p = make_plan("squares", "cases.jsonl", {{"contract", "1"}}, ids_to(kCases), {i, kShards});
    p.run.command = "twinrun squares --shard " + std::to_string(i) + "/5 -o out";
    return p;
  }
  void write(int64_t i) const {
    std::filesystem::create_directories(path(i));
    must(begin(plan(i), path(i), false));
    std::ofstream records(path(i, "cases.jsonl"));
    // In the order of finishing, which is any.
    const Plan p = plan(i);
    for (auto c = p.cases.rbegin(); c != p.cases.rend(); ++c) records << line(*c) << "\n";
  }
  // Replaces the records of a shard by those of its cases that `keep` names.
  void rewrite(int64_t i, const std::vector<std::string>& lines) const {
    std::ofstream records(path(i, "cases.jsonl"));
    for (const std::string& text : lines) records << text << "\n";
  }
  Result<Merged> merged() const { return merge({folder_ / "out"}); }
  void refuses(const std::vector<std::string>& parts) const {
    const auto result = merged();
    ASSERT_FALSE(result.ok());
    for (const std::string& part : parts)
      EXPECT_NE(result.error().message().find(part), std::string::npos) << result.error().message();
  }
  Folder folder_;
};

TEST_F(Merging, GivesEveryCaseOnceInTheOrderOfTheCampaign) {
  const Merged all = must(merged());
  ASSERT_EQ(all.lines.size(), size_t{kCases});
  std::set<int64_t> used;
  for (int64_t i = 0; i < kCases; ++i) {
    const Record record = must(record_from(all.lines[static_cast<size_t>(i)]));
    EXPECT_EQ(record.id, "case." + std::to_string(i));
    used.insert(shard_of(record.id, kShards));
  }
  EXPECT_EQ(used.size(), size_t{kShards});  // the example has cases in every shard
  EXPECT_TRUE(all.plan.shard.whole());
  EXPECT_EQ(all.runs.size(), size_t{kShards});
  EXPECT_TRUE(all.notes.empty());
  // The same from the folders by name, in any order.
  EXPECT_EQ(must(merge({path(3), path(0), path(4), path(2), path(1)})).lines, all.lines);
}

TEST_F(Merging, NamesTheShardsThatAreMissingAndTheirCommand) {
  std::filesystem::remove_all(path(1));
  std::filesystem::remove_all(path(4));
  refuses({"2 of 5 shards missing: 1, 4", "twinrun squares --shard 1/5 -o out"});
}

TEST_F(Merging, NamesTheCaseWithoutARecord) {
  std::vector<std::string> lines;
  for (const PlannedCase& c : plan(2).cases) lines.push_back(line(c));
  ASSERT_GT(lines.size(), 1u);
  lines.pop_back();
  rewrite(2, lines);
  refuses({"cases have no record: " + plan(2).cases.back().id,
           "twinrun squares --shard 2/5 -o out --resume"});
  // A last line that was cut short is none.
  std::ofstream(path(2, "cases.jsonl"), std::ios::app) << line(plan(2).cases.back()).substr(0, 30);
  refuses({"cases have no record: " + plan(2).cases.back().id});
  std::filesystem::remove(path(2, "cases.jsonl"));
  refuses({path(2)});
}

TEST_F(Merging, ADamagedRecordIsRefusedWithItsLine) {
  std::vector<std::string> lines;
  for (const PlannedCase& c : plan(2).cases) lines.push_back(line(c));
  lines[1].replace(lines[1].find("\"square\":") + 9, 1, "7");
  ASSERT_NE(lines[1], line(plan(2).cases[1]));
  rewrite(2, lines);
  refuses({path(2, "cases.jsonl") + ":2", "changed after it was written"});
}

TEST_F(Merging, ADamagedPlanIsRefused) {
  std::stringstream text;
  text << std::ifstream(path(2, "plan.json")).rdbuf();
  std::string changed = text.str();
  changed.replace(changed.find("\"total\": 40"), 11, "\"total\": 41");
  std::ofstream(path(2, "plan.json")) << changed;
  refuses({path(2, "plan.json"), "changed after it was written"});
}

TEST_F(Merging, ShardsOfDifferentCampaignsAreRefused) {
  Plan other = plan(3);
  other.setting["contract"] = "2";
  must(begin(other, path(3), false));
  refuses({path(3), "another campaign", "contract: 1 and 2"});
  must(begin(make_plan("squares", "cases.jsonl", {{"contract", "1"}}, ids_to(41), {3, kShards}),
             path(3), false));
  refuses({path(3), "another campaign", "40 cases and 41"});
  other = plan(3);
  other.setting["scenario"] = "more";
  must(begin(other, path(3), false));
  refuses({"another campaign", "has scenario"});
  must(begin(make_plan("squares", "cases.jsonl", {{"contract", "1"}}, ids_to(kCases), {3, 6}),
             path(3), false));
  refuses({"another campaign", "5 shards and 6"});
}

TEST_F(Merging, WhatWasComputedTwiceMustBeEqual) {
  const Merged all = must(merged());
  // The same shard from another machine: slower, with the same results.
  const std::string again = folder_ / "again";
  std::filesystem::create_directories(again);
  must(begin(plan(2), again, false));
  const auto write_again = [&](int64_t wrong) {
    std::ofstream records(again + "/cases.jsonl");
    for (const PlannedCase& c : plan(2).cases)
      records << line(c.id, c.number * c.number + wrong, 9) << "\n";
  };
  write_again(0);
  EXPECT_EQ(must(merge({folder_ / "out", again})).lines, all.lines);
  write_again(1);
  const auto different = merge({folder_ / "out", again});
  ASSERT_FALSE(different.ok());
  const std::string what = different.error().message();
  EXPECT_NE(what.find("DETERMINISM IS BROKEN"), std::string::npos) << what;
  EXPECT_NE(what.find(plan(2).cases.front().id), std::string::npos) << what;
  EXPECT_NE(what.find("they differ in: square"), std::string::npos) << what;
}

TEST_F(Merging, ACaseThatFailedIsALineAndGivesWayToAResult) {
  const PlannedCase c = plan(2).cases.front();
  std::vector<std::string> lines;
  for (const PlannedCase& each : plan(2).cases) lines.push_back(line(each));
  lines.front() = line(c.id, 0, 1, "the process died in this case");
  rewrite(2, lines);
  const Merged failed = must(merged());
  EXPECT_TRUE(must(record_from(failed.lines[static_cast<size_t>(c.number)])).failed);
  lines.push_back(line(c));
  rewrite(2, lines);
  const Merged mended = must(merged());
  EXPECT_EQ(mended.lines[static_cast<size_t>(c.number)], line(c));
  ASSERT_EQ(mended.notes.size(), 1u);
  EXPECT_NE(mended.notes[0].find(c.id), std::string::npos);
}

TEST_F(Merging, AFolderWithoutAPlanIsRefused) {
  const auto none = merge({folder_ / "nowhere"});
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().where, folder_ / "nowhere");
  std::filesystem::create_directories(folder_ / "empty");
  EXPECT_NE(merge({folder_ / "empty"}).error().what.find("holds no plan.json"), std::string::npos);
}

TEST_F(Merging, GoingOnInTheFolderOfAnotherCampaignIsRefused) {
  EXPECT_TRUE(begin(plan(2), path(2), true).ok());
  Plan other = plan(2);
  other.setting["contract"] = "2";
  const Status refused = begin(other, path(2), true);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message().find("contract: 1 and 2"), std::string::npos);
  EXPECT_NE(refused.error().message().find("twinrun squares --shard 2/5"), std::string::npos);
  EXPECT_FALSE(begin(plan(3), path(2), true).ok());
  // Without --resume the folder begins anew.
  EXPECT_TRUE(begin(other, path(2), false).ok());
}

TEST(Plans, ComeBackFromTheirText) {
  Plan plan = make_plan("drill", "cases.jsonl", {{"contract", "1"}, {"scenario x", "ab"}},
                        ids_to(30), {2, 4});
  plan.run = {"twinrun drill --shard 2/4", "2026-11-26", "a machine", "abcd"};
  const std::string text = to_json(plan);
  const Plan read = must(plan_from(text, "plan.json"));
  EXPECT_EQ(to_json(read), text);
  EXPECT_EQ(read.cases, plan.cases);
  EXPECT_EQ(read.run, plan.run);
  // Names that would lead elsewhere, and cases of other shards; without a checksum, to see what
  // the reader itself refuses.
  const std::string open = text.substr(0, text.rfind(",\n \"checksum\"")) + "}";
  ASSERT_TRUE(plan_from(open, "plan.json").ok());
  for (const auto& [from, to] : {std::pair{"\"cases.jsonl\"", "\"../cases.jsonl\""},
                                 {"\"shard\": \"2/4\"", "\"shard\": \"1/4\""},
                                 {"\"total\": 30", "\"total\": 3"},
                                 {"\"total\": 30", "\"total\": 1e300"},
                                 {"\"schema\": 1", "\"schema\": 2"},
                                 {"\"2/4\"", "\"9/4\""}}) {
    std::string changed = open;
    changed.replace(changed.find(from), std::string_view(from).size(), to);
    EXPECT_FALSE(plan_from(changed, "plan.json").ok()) << to;
  }
}

}  // namespace
}  // namespace twinrun::campaign
