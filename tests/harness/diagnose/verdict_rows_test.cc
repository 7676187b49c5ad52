// Tests the table of verdicts: that each row decides some evidence, and that the page prints it.
#include "harness/diagnose/verdict_rows.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "tests/harness/evidence.h"

namespace twinrun {
namespace {

using namespace by_hand;

// Evidence in which a row decides, by the name of the row.
std::vector<std::pair<std::string_view, Evidence>> evidence_by_row() {
  std::vector<std::pair<std::string_view, Evidence>> out;
  const auto add = [&](std::string_view row, Evidence e) -> Evidence& {
    out.emplace_back(row, std::move(e));
    return out.back().second;
  };
  add("reference_diverges", clean()).reference_diverges_at = 3;
  add("reference_not_finite", clean()).reference_non_finite = FirstNonFinite{};
  add("engine_failed", clean()).engine_failure = Error{"exited", "exec:engine", ""};
  add("emulator_fails", clean()).emulator_fails = true;
  add("violation", clean()).violations = {violation("dense1/kernel.grad", 3, 0, 8)};
  add("unrepeatable", clean()).match = matched(Identification::Outcome::kUnrepeatable);
  Evidence& tensors = add("tensor_outside", clean());
  tensors.match = matched(Identification::Outcome::kUnexplained);
  tensors.level = 'C';
  add("replicas_diverge", clean()).replica_split = ReplicaSplit{};
  add("identical", clean()).identical = true;
  Evidence& formula = add("other_formula", clean());
  formula.match = matched(Identification::Outcome::kExplained);
  formula.match->explanations.front().parts.front().formula.emplace().values = {{"loss.scale", ""}};
  add("other_program", clean()).match = matched(Identification::Outcome::kUnexplained);
  add("quick", clean()).quick = true;

  const auto with_rows = [](Evidence e, const char* tr, const char* sr) {
    e.trajectories = {trajectory("T - R", tr), trajectory("S - R", sr)};
    return e;
  };
  const auto not_learnt = [](Evidence e) {
    e.learning.emplace().learnt = false;
    return e;
  };
  Evidence script = clean();
  script.match = matched(Identification::Outcome::kExplained);
  add("script_matters", with_rows(script, "undecided", "harmful"));
  add("script_harmless", with_rows(script, "none detected", "none detected"));
  add("script_not_learnt", not_learnt(with_rows(script, "none detected", "none detected")));
  add("script_undecided", with_rows(script, "harmful", "undecided"));

  Evidence sharding = clean();
  add_meaning(sharding);
  add("sharding_matters", with_rows(sharding, "undecided", "harmful"));
  add("sharding_harmless", with_rows(sharding, "none detected", "none detected"));
  add("sharding_not_learnt", not_learnt(with_rows(sharding, "none detected", "none detected")));
  add("sharding_undecided", with_rows(sharding, "harmful", "undecided"));
  sharding.meaning.residual = 0.1;
  add("sharding_unexplained", with_rows(sharding, "undecided", "harmful"));

  const Evidence drift = with_rows(clean(), "harmful", "none detected");
  add("ensemble_outside", drift).ensembles.emplace_back().outcome = "outside";
  add("imported", clean()).held_out = false;
  add("not_tested", clean());
  add("beyond_rounding", drift).trajectories.front().must_see = 0;
  add("noise", drift);
  return out;
}

TEST(VerdictRows, EachDecidesSomeEvidence) {
  std::set<std::string_view> decided;
  for (const auto& [name, evidence] : evidence_by_row()) {
    const VerdictRow& row = deciding_row(evidence);
    EXPECT_EQ(row.name, name);
    const Judgement j = classify(evidence);
    EXPECT_EQ(j.verdict, row.verdict) << name;
    EXPECT_FALSE(j.headline.empty() || j.confidence.empty() || j.findings.empty()) << name;
    decided.insert(row.name);
  }
  EXPECT_EQ(decided.size(), verdict_rows().size());
}

TEST(VerdictRows, ThePageHasThisTable) {
  std::ifstream file(std::string(TWINRUN_SOURCE_DIR) + "/docs/method/diagnosis.md");
  const std::string page((std::istreambuf_iterator<char>(file)), {});
  const std::string begin = "<!-- verdict table: begin (generated) -->\n",
                    end = "<!-- verdict table: end -->\n";
  const size_t from = page.find(begin), to = page.find(end);
  ASSERT_TRUE(from < to && to != std::string::npos);
  EXPECT_EQ(page.substr(from + begin.size(), to - from - begin.size()), verdict_table_markdown())
      << verdict_table_markdown();
}

}  // namespace
}  // namespace twinrun
