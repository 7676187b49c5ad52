// Writes and reads the pairs of a comparison, and concludes from them.
#include "harness/gate/pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "harness/effect/trajectory.h"
#include "harness/gate/compare.h"
#include "program/base/json_checksum.h"
#include "program/base/json_text.h"
#include "reports/csv.h"
#include "reports/text.h"

namespace twinrun {
namespace {

using nlohmann::json;

// JSON has no NaN and no infinity.
json number_of(double x) {
  if (std::isnan(x)) return nullptr;
  if (std::isinf(x)) return x < 0 ? "-inf" : "inf";
  return x;
}
double number_from(const json& x) {
  if (x.is_null()) return std::nan("");
  if (x == "inf" || x == "-inf") return x == "inf" ? HUGE_VAL : -HUGE_VAL;
  return x.get<double>();
}

void write_arm(json& line, const std::string& arm, const PairArm& of) {
  line[arm + "_engine"] = of.engine;
  line[arm + "_settings"] = of.settings;
  line[arm + "_value"] = number_of(of.value);
  line[arm + "_ended"] = to_string(of.ended);
  line[arm + "_seconds"] = of.seconds;
}

Result<PairArm> read_arm(const json& line, const std::string& arm) {
  PairArm of;
  of.engine = line.at(arm + "_engine");
  of.settings = line.at(arm + "_settings");
  of.value = number_from(line.at(arm + "_value"));
  TWINRUN_ASSIGN(of.ended, parse_run_end(line.at(arm + "_ended")));
  of.seconds = line.at(arm + "_seconds");
  return of;
}

// The texts of a question in plan.json.
constexpr const char *kScenario = "scenario name", *kMetric = "metric", *kArmA = "a", *kArmB = "b",
                     *kSeeds = "seeds", *kMargin = "margin", *kMarginSource = "margin of";

template <typename T>
bool number_in(const std::string& text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

void fill_row(Comparison& c, const CompareQuestion& q) {
  const Margin margin = choose_margin(q.margin, c.a.values, q.margin_source, "A");
  c.row = compare_paired("A - B", "A against B", c.a.values, c.b.values, margin);
  c.row.metric = c.metric;
}

void judge_pairs(Comparison& c) {
  const auto n = static_cast<int64_t>(c.seeds.size());
  const auto diverged = [](const CompareArm& arm, size_t i) { return !arm.ended[i].completed(); };
  for (size_t i = 0; i < c.seeds.size(); ++i) {
    if (diverged(c.a, i) == diverged(c.b, i)) continue;
    c.outcome = CompareOutcome::kDiffers;
    c.headline = fmt::format("At seed {} {} diverged and the other did not.", c.seeds[i],
                             diverged(c.a, i) ? "A" : "B");
    return;
  }
  if (!std::isfinite(c.row.mean)) {
    c.outcome = CompareOutcome::kUndetermined;
    c.headline = "A and B both diverged: there is nothing to compare.";
    return;
  }
  c.outcome = decide(c.row);
  const std::string mean = text::signed_number(c.row.mean);
  switch (c.outcome) {
    case CompareOutcome::kEquivalent:
      c.headline = fmt::format("The mean difference of {} over {} is inside the margin {}.",
                               c.metric, text::plural(n, "seed"), text::number(c.row.margin));
      break;
    case CompareOutcome::kDiffers:
      c.headline = fmt::format(
          "The mean difference of {}, {}, differs from 0 (95% confidence){}.", c.metric, mean,
          c.row.outcome == PairedOutcome::kOutside ? ", and beyond the margin" : "");
      break;
    default:
      c.needed = seeds_for_power(c.row);
      if (c.needed) c.needed = std::max(*c.needed, static_cast<int>(n) + 1);
      c.headline =
          n < 2 ? "One pair says nothing about the spread between seeds: give --seeds 3 or more."
                : fmt::format(
                      "{} do not decide: the difference is neither shown to be inside the "
                      "margin nor to differ from 0.{}",
                      text::plural(n, "seed"),
                      c.needed ? fmt::format(" {} seeds would, with 80% power (begin anew with "
                                             "--seeds {}: the number must be fixed beforehand).",
                                             *c.needed, *c.needed)
                               : " More than 10,000 seeds would be needed: raise --margin.");
  }
}

}  // namespace

std::string id_of(uint64_t seed) { return fmt::format("seed.{}", seed); }

std::string to_line(const Pair& pair) {
  json line = {{"id", id_of(pair.seed)},
               {"seed", pair.seed},
               {"identical", pair.identical},
               {"notes", pair.notes}};
  write_arm(line, "a", pair.a);
  write_arm(line, "b", pair.b);
  return with_checksum(line.dump(-1, ' ', false, json::error_handler_t::replace));
}

Result<Pair> pair_from(const std::string& text) {
  const Error bad{"not a pair of a comparison: " + text.substr(0, 60), "pairs.jsonl",
                  "run its shard again in an empty folder"};
  const auto parsed = parse_json_text(text);
  if (!parsed || !parsed->is_object()) return bad;
  TWINRUN_RETURN_IF_ERROR(check_checksum(text, bad.where));
  try {
    Pair pair;
    pair.seed = json_integer<uint64_t>(parsed->at("seed"));
    pair.identical = parsed->at("identical");
    pair.notes = parsed->at("notes").get<std::vector<std::string>>();
    TWINRUN_ASSIGN(pair.a, read_arm(*parsed, "a"));
    TWINRUN_ASSIGN(pair.b, read_arm(*parsed, "b"));
    return pair;
  } catch (const json::exception&) {
    return bad;
  }
}

std::map<std::string, std::string> to_setting(const CompareQuestion& q) {
  return {{kScenario, q.scenario},
          {kMetric, q.metric},
          {kArmA, q.a},
          {kArmB, q.b},
          {kSeeds, std::to_string(q.seeds)},
          {kMargin, fmt::format("{}", q.margin)},
          {kMarginSource, q.margin_source}};
}

Result<CompareQuestion> question_from(const std::map<std::string, std::string>& setting) {
  const auto text = [&](const char* key) {
    const auto it = setting.find(key);
    return it == setting.end() ? std::string() : it->second;
  };
  CompareQuestion q{text(kScenario),    text(kMetric), text(kArmA), text(kArmB), 0, 0,
                    text(kMarginSource)};
  if (!number_in(text(kSeeds), q.seeds) || !number_in(text(kMargin), q.margin))
    return Error{"the plan lacks the seeds or the margin of a comparison", "plan.json",
                 "run the shards again in an empty folder"};
  return q;
}

Comparison conclude(const CompareQuestion& q, const std::vector<Pair>& pairs) {
  Comparison c;
  c.scenario = q.scenario;
  c.metric = q.metric;
  c.asked_seeds = q.seeds;
  c.a.asked = q.a;
  c.b.asked = q.b;
  const bool identical = !pairs.empty() && pairs.front().identical;
  for (const Pair& pair : pairs) {
    c.seeds.push_back(pair.seed);
    c.notes.insert(c.notes.end(), pair.notes.begin(), pair.notes.end());
    for (const auto& [from, to, seconds] :
         {std::tuple(&pair.a, &c.a, &c.seconds_a), std::tuple(&pair.b, &c.b, &c.seconds_b)}) {
      to->engine = from->engine;
      to->settings = from->settings;
      to->values.push_back(from->value);
      to->ended.push_back(from->ended);
      *seconds += from->seconds;
    }
    if (identical) break;
  }
  if (!pairs.empty()) fill_row(c, q);
  if (identical) {
    c.outcome = CompareOutcome::kIdentical;
    c.headline = fmt::format("The same bits in every state of seed {}: one pair was enough.",
                             c.seeds.front());
  } else if (static_cast<int>(pairs.size()) < q.seeds) {
    c.outcome = CompareOutcome::kInterrupted;
    c.headline = fmt::format(
        "Interrupted after {} of {} pairs: the seeds were fixed beforehand, "
        "so nothing is concluded.",
        c.seeds.size(), c.asked_seeds);
  } else {
    judge_pairs(c);
  }
  return c;
}

std::string to_csv(const Comparison& c) {
  std::string text = "seed,a,b,difference,a_ended,b_ended\r\n";
  const auto cell = [](double x) { return std::isfinite(x) ? fmt::format("{}", x) : ""; };
  for (size_t i = 0; i < c.seeds.size(); ++i) {
    text += fmt::format("{},{},{},{},{},{}\r\n", c.seeds[i], cell(c.a.values[i]),
                        cell(c.b.values[i]), cell(c.a.values[i] - c.b.values[i]),
                        csv_field(to_string(c.a.ended[i])), csv_field(to_string(c.b.ended[i])));
  }
  return text;
}

}  // namespace twinrun
