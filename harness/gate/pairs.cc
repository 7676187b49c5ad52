// Concludes from the pairs of a comparison.
#include "harness/gate/pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/effect/trajectory.h"
#include "harness/gate/compare.h"
#include "reports/text.h"

namespace twinrun {
namespace {

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

}  // namespace twinrun
