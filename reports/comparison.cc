// Renders an A/B comparison as terminal text and JSON.
#include "reports/comparison.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "reports/json_number.h"
#include "reports/text.h"

namespace twinrun {
namespace {

using Json = nlohmann::ordered_json;

using json::number;

Json numbers(const std::vector<double>& values) {
  Json out = Json::array();
  for (const double v : values) out.push_back(number(v));
  return out;
}

Json of(const CompareArm& arm) {
  Json ended = Json::array();
  for (const RunEnd& how : arm.ended) ended.push_back(text::clean(to_string(how)));
  return {{"asked", text::clean(arm.asked)},
          {"engine", text::clean(arm.engine)},
          {"settings", text::clean(arm.settings)},
          {"values", numbers(arm.values)},
          {"ended", ended}};
}

}  // namespace

std::string_view to_string(CompareOutcome outcome) {
  switch (outcome) {
    case CompareOutcome::kIdentical:
      return "identical";
    case CompareOutcome::kEquivalent:
      return "equivalent";
    case CompareOutcome::kDiffers:
      return "differs";
    case CompareOutcome::kUndetermined:
      return "undetermined";
    case CompareOutcome::kInterrupted:
      return "interrupted";
  }
  return "undetermined";
}

int exit_code(CompareOutcome outcome) {
  switch (outcome) {
    case CompareOutcome::kIdentical:
    case CompareOutcome::kEquivalent:
      return 0;
    case CompareOutcome::kDiffers:
      return 1;
    case CompareOutcome::kUndetermined:
      return 125;
    case CompareOutcome::kInterrupted:
      return 130;
  }
  return 125;
}

std::string to_terminal(const Comparison& c, int width) {
  std::string out;
  const auto add = [&](const std::string& label, const std::string& what) {
    bool first = true;
    for (const std::string& line : text::wrap(text::clean(what), width - 14)) {
      out += fmt::format("  {:<11} {}\n", first ? label : "", line);
      first = false;
    }
  };
  std::string word(to_string(c.outcome));
  for (char& letter : word) letter = static_cast<char>(std::toupper(letter));
  out += fmt::format("{}\n", word);
  for (const std::string& line : text::wrap(text::clean(c.headline), width - 2))
    out += fmt::format("  {}\n", line);
  add("scenario", c.scenario);
  add("A", fmt::format("{} ({}, {})", c.a.asked, c.a.engine, c.a.settings));
  add("B", fmt::format("{} ({}, {})", c.b.asked, c.b.engine, c.b.settings));
  for (const std::string& note : c.notes) add("note", note);
  out += fmt::format("\n  {}\n", c.metric);
  text::Table table({{.title = "seed", .right = true},
                     {.title = "A", .right = true},
                     {.title = "B", .right = true},
                     {.title = "A - B", .right = true},
                     {.title = "", .flexible = true}});
  for (size_t i = 0; i < c.row.differences.size(); ++i) {
    std::string ended;
    if (!c.a.ended[i].completed()) ended = "A " + to_string(c.a.ended[i]);
    if (!c.b.ended[i].completed())
      ended += (ended.empty() ? "B " : "; B ") + to_string(c.b.ended[i]);
    table.add({std::to_string(c.seeds[i]), text::number(c.a.values[i], 6),
               text::number(c.b.values[i], 6), text::signed_number(c.row.differences[i]),
               text::clean(ended)});
  }
  for (const std::string& line : table.lines(width, 2)) out += line + "\n";
  out += "\n";
  const TrajectoryRow& r = c.row;
  if (c.outcome == CompareOutcome::kIdentical || !std::isfinite(r.mean)) return out;
  add("mean", text::signed_number(r.mean));
  if (r.differences.size() < 2) return out;
  const bool differ = r.low > 0 || r.high < 0;
  const bool inside = r.outcome == PairedOutcome::kEquivalent;
  add("95%", fmt::format("{}, {}", text::interval(r.low, r.high),
                         differ ? "excludes 0: A and B differ" : "contains 0"));
  add("90%", fmt::format("{}, {}", text::interval(r.tost_low, r.tost_high),
                         inside ? "inside the margin: equivalent (two one-sided tests at 5%)"
                                : "not inside the margin"));
  add("margin",
      fmt::format("{} ({})", r.margin == 0 ? "none" : text::number(r.margin), r.margin_source));
  add("detectable",
      fmt::format("{}: the smallest mean difference from 0 that this many seeds of this "
                  "spread detect, with 80% power",
                  text::number(r.detectable)));
  if (c.needed) add("seeds", fmt::format("{} would decide, with 80% power", *c.needed));
  return out;
}

std::string to_json(const Comparison& c) {
  const TrajectoryRow& r = c.row;
  Json seeds = Json::array(), notes = Json::array();
  for (const uint64_t seed : c.seeds) seeds.push_back(seed);
  for (const std::string& note : c.notes) notes.push_back(text::clean(note));
  const bool several = r.differences.size() > 1;
  const auto interval = [&](double low, double high) {
    return several ? Json({number(low), number(high)}) : Json(nullptr);
  };
  const Json j = {{"schema", 1},
                  {"outcome", to_string(c.outcome)},
                  {"exit_code", exit_code(c.outcome)},
                  {"headline", text::clean(c.headline)},
                  {"scenario", text::clean(c.scenario)},
                  {"metric", c.metric},
                  {"a", of(c.a)},
                  {"b", of(c.b)},
                  {"seeds", seeds},
                  {"asked_seeds", c.asked_seeds},
                  {"differences", numbers(r.differences)},
                  {"mean", number(r.mean)},
                  {"interval_95", interval(r.low, r.high)},
                  {"interval_90", interval(r.tost_low, r.tost_high)},
                  {"margin", r.margin},
                  {"margin_source", text::clean(r.margin_source)},
                  {"detectable", number(r.detectable)},
                  {"needed_seeds", c.needed ? Json(*c.needed) : Json(nullptr)},
                  {"notes", notes}};
  return j.dump(2);
}

}  // namespace twinrun
