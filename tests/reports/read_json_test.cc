// Tests reading report.json back: every format renders the same Report, and malformed documents are
// rejected with the key at fault.
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "tests/reports/examples.h"

namespace twinrun {
namespace {

using nlohmann::ordered_json;

// An example report with every field changed from its default, so that a forgotten key shows.
Report unusual() {
  Report r = examples::engine_bug();
  r.runs[0].kept = true;
  r.runs[1].evaluated = r.runs[1].scored = false;
  r.runs[1].eval_loss = r.runs[1].eval_accuracy = 0;
  r.runs[2].losses.clear();
  r.runs[3].train_loss = -std::numeric_limits<double>::infinity();
  r.controls[0].run = false;
  r.ensembles = {{"T", "weights", 20, 12, 0.25, 0.125, 0.5, 0.0769, EnsembleOutcome::kInside}};
  r.unexplained = -0.125;
  r.notes = {"one", "two"};
  r.findings[0].level = 'C';
  r.probes[0].rows[0].operand_residual = -1;
  r.ablations[0].explains = true;
  r.ablations[0].note = "n";
  return r;
}

Result<Report> read(const std::string& text) { return report_from_json(text, "report.json"); }

// The document of an older version, which a test may change.
ordered_json without_checksum(const Report& report) {
  ordered_json j = ordered_json::parse(to_json(report));
  EXPECT_EQ(j.erase("checksum"), 1U);
  return j;
}

TEST(ReadJson, EveryFormatRendersTheSame) {
  for (const Report& report : {Report{}, examples::noise(), examples::sharding(),
                               examples::engine_bug(), examples::inconclusive(), unusual()}) {
    const auto back = read(to_json(report));
    ASSERT_TRUE(back) << back.error().message();
    for (const ReportFormat& format : report_formats())
      EXPECT_EQ(format.render(*back), format.render(report)) << format.name;
    EXPECT_EQ(to_terminal(*back, {}), to_terminal(report, {}));
  }
}

// Writing replaces broken UTF-8 by U+FFFD; after that, reading and writing change nothing.
TEST(ReadJson, HostileStringsSettle) {
  const std::string once = to_json(examples::hostile());
  const auto back = read(once);
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(to_json(*back), once);
  for (const ReportFormat& format : report_formats())
    EXPECT_EQ(format.render(*back), format.render(*read(to_json(*back)))) << format.name;
}

TEST(ReadJson, UnknownAndMissingKeysAreNoError) {
  ordered_json j = without_checksum(examples::noise());
  j["new"] = {{"of", "tomorrow"}};
  j["runs"][0]["new"] = 1;
  j["findings"][0].erase("share");
  j.erase("ensembles");
  const auto back = read(j.dump());
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(back->runs.size(), 6U);
  EXPECT_FALSE(back->findings[0].share);
}

struct Wrong {
  const char* pointer;
  ordered_json value;
  const char* says;
};

TEST(ReadJson, ErrorsNameKeyFoundAndAllowed) {
  const std::vector<Wrong> all = {
      {"/schema", 4, "report.json: schema: schema 4 is of a later twinrun"},
      {"/schema", "1", "report.json: schema: found \"1\"; allowed: 3"},
      {"/schema", 0, "found 0"},
      {"/verdict", 3, "by an older twinrun"},
      {"/answers/sharding/outcome", "maybe", "answers.sharding.outcome: found \"maybe\""},
      {"/verdict/class", "NOISY", "did you mean 'NOISE'?"},
      {"/verdict/class", nullptr, "verdict.class: found null; allowed: IDENTICAL, NOISE"},
      {"/findings/0/step", "three",
       "findings[0].step: found \"three\"; allowed: an integer from -9223372036854775808"},
      {"/findings/0/step", 1.5, "findings[0].step: found 1.5"},
      {"/findings/0/step", 18446744073709551615u, "findings[0].step"},
      {"/findings/0/core", 3000000000u, "findings[0].core: found 3000000000"},
      {"/findings/0/level", "AB", "findings[0].level: found \"AB\""},
      {"/findings/0/evidence", "word", "findings[0].evidence: found \"word\"; allowed: an array"},
      {"/findings/0/evidence/1", 7, "findings[0].evidence[1]: found 7; allowed: a string"},
      {"/findings", ordered_json::object(), "findings: found an object; allowed: an array"},
      {"/runs/2", "R1", "runs[2]: found \"R1\"; allowed: an object"},
      {"/runs/5/losses/3", "NaN", "runs[5].losses[3]: found \"NaN\"; allowed: a number, \"nan\""},
      {"/runs/5/losses/3", 1e300, "a number of at most 3.40282e+38"},
      {"/runs/0/kept", 1, "runs[0].kept: found 1; allowed: true or false"},
      {"/probes/0/rows/0/op", ordered_json::array({1, 2}), "found an array of 2"},
      {"/environment", "linux", "environment: found \"linux\"; allowed: an object"},
      {"/environment/isa", 512, "environment.isa: found 512"},
      {"/unexplained", true, "unexplained: found true"},
  };
  const ordered_json good = without_checksum(examples::engine_bug());
  for (const Wrong& wrong : all) {
    ordered_json j = good;
    j[ordered_json::json_pointer(wrong.pointer)] = wrong.value;
    const auto back = read(j.dump());
    ASSERT_FALSE(back) << wrong.pointer;
    EXPECT_NE(back.error().message().find(wrong.says), std::string::npos)
        << wrong.pointer << ": " << back.error().message();
  }
}

TEST(ReadJson, WhatIsNoReportIsRefused) {
  const std::string good = to_json(examples::noise());
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("null"), std::string("{}"),
        std::string("\xff\xfe"), good.substr(0, good.size() / 2), good + "x",
        std::string(R"({"schema": 1e999, "verdict": {}})"), std::string(200'000, '['),
        std::string(R"({"schema": 1})")}) {
    const auto back = read(text);
    ASSERT_FALSE(back) << text.substr(0, 80);
    EXPECT_EQ(back.error().where.substr(0, 11), "report.json");
    EXPECT_LT(back.error().message().size(), 600U);
  }
}

TEST(ReadJson, AChangedDigitIsRefused) {
  const Report report = examples::engine_bug();
  std::string text = to_json(report);
  const size_t digit = text.find(report.runs[0].root_digest);
  ASSERT_NE(digit, std::string::npos);
  text[digit] = text[digit] == '0' ? '1' : '0';
  const auto back = read(text);
  ASSERT_FALSE(back);
  EXPECT_EQ(back.error().where, "report.json");
  EXPECT_NE(back.error().what.find("was changed after it was written"), std::string::npos);
  EXPECT_NE(back.error().fix.find("delete its member `checksum`"), std::string::npos);
}

TEST(ReadJson, AReportWithoutChecksumSaysSo) {
  const auto back = read(without_checksum(examples::noise()).dump());
  ASSERT_TRUE(back) << back.error().message();
  ASSERT_EQ(back->notes.size(), examples::noise().notes.size() + 1);
  EXPECT_NE(back->notes.back().find("has no checksum"), std::string::npos);
  EXPECT_EQ(read(to_json(*back))->notes, back->notes);
}

}  // namespace
}  // namespace twinrun
