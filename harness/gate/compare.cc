// Trains both arms seed by seed, and concludes from the paired differences.
#include "harness/gate/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/effect/trajectory.h"
#include "harness/run/run.h"
#include "reports/text.h"

namespace twinrun {
namespace {

class Comparing {
 public:
  explicit Comparing(const CompareOptions& options) : o_(options) {}

  Result<Comparison> run() {
    TWINRUN_RETURN_IF_ERROR(open(o_.a, a_));
    TWINRUN_RETURN_IF_ERROR(open(o_.b, b_));
    const Scenario& s = a_->scenario;
    c_.scenario = s.name;
    c_.metric = accuracy() ? kAccuracyMetric : kLossMetric;
    c_.asked_seeds = o_.seeds > 0 ? o_.seeds : s.diagnose.seeds;
    c_.a.asked = o_.a.asked;
    c_.b.asked = o_.b.asked;
    for (int i = 0; i < c_.asked_seeds; ++i) {
      const uint64_t seed = s.seed + static_cast<uint64_t>(i);
      TWINRUN_ASSIGN(const RunFile a, train_arm("A", *a_, o_.a, seed, c_.a, c_.seconds_a));
      if (a.ended.interrupted()) return interrupted();
      TWINRUN_ASSIGN(const RunFile b, train_arm("B", *b_, o_.b, seed, c_.b, c_.seconds_b));
      if (b.ended.interrupted()) return interrupted();
      c_.seeds.push_back(seed);
      take(a, c_.a);
      take(b, c_.b);
      identical_ = i == 0 && a.state_digests == b.state_digests && a.ended == b.ended;
      if (identical_) break;
    }
    judge();
    return std::move(c_);
  }

 private:
  bool accuracy() const { return o_.metric == CompareOptions::Metric::kAccuracy; }

  Status open(const CompareArmSpec& arm, std::optional<Experiment>& to) const {
    Overrides all = o_.settings;
    all.insert(all.end(), arm.settings.begin(), arm.settings.end());
    TWINRUN_ASSIGN(Experiment e, open_experiment(o_.source, all));
    if (!e.has_held_out())
      return Error{"nothing is held out, so what is learnt cannot be compared", "--held-out",
                   "batches of the same inputs that are not trained on: --held-out FILE"};
    if (e.imported && accuracy())
      return Error{"an imported program has no accuracy, only its loss", "--metric",
                   "--metric loss"};
    if (e.imported && e.imported->batches.size() < 2 && o_.seeds > 1)
      return Error{"there is one batch, so a seed, which is an order of batches, changes nothing",
                   "--seeds", "--seeds 1, or several batches"};
    TWINRUN_RETURN_IF_ERROR(check_data_lasts(e));
    to.emplace(std::move(e));
    return Ok{};
  }

  Result<RunFile> train_arm(const char* name, const Experiment& base, const CompareArmSpec& arm,
                            uint64_t seed, CompareArm& out, double& seconds) {
    TWINRUN_ASSIGN(const Experiment e, with_seed(base, seed));
    TWINRUN_ASSIGN(const EngineSetup setup, set_up(e, arm.engine, o_.progress));
    RunOptions run;
    run.name = fmt::format("{}#{} {}, {}", name, seed, arm.engine.engine,
                           text::plural(setup.program.sharding.cores, "core"));
    run.threads = arm.engine.threads;
    run.progress = o_.progress;
    run.stop = o_.stop;
    TWINRUN_ASSIGN(RunResult result, train(e, setup.program, *setup.backend, run));
    seconds += result.seconds;
    out.engine = result.file.engine;
    out.settings = result.file.engine_settings;
    if (c_.seeds.empty()) compare_starts(name, e, setup.program);
    return std::move(result.file);
  }

  // Notes, for the first pair, what the arms do not share although they share the seed.
  void compare_starts(const std::string& name, const Experiment& e, const Program& program) {
    const CheckpointHeader start =
        to_checkpoint(program, initial_states(e, program), e.scenario, 0).header();
    if (name == "A") {
      start_ = start;
      return;
    }
    const auto same = [](const auto& x, const auto& y) {
      return x.first == y.first &&
             (x.second.role != "parameter" || x.second.digest == y.second.digest);
    };
    const bool weights = std::ranges::equal(parameters(start_), parameters(start), same);
    if (!weights)
      c_.notes.push_back("A and B have different initial weights: the pairs share only their seed");
    if (a_->data->digest != b_->data->digest)
      c_.notes.push_back(
          "A and B have different samples, held-out ones included: the metric is not "
          "computed on the same samples");
    if (a_->scenario.train.batch != b_->scenario.train.batch ||
        a_->scenario.train.steps != b_->scenario.train.steps)
      c_.notes.push_back(
          fmt::format("A sees {} samples, B {}",
                      text::count(a_->scenario.train.batch * a_->scenario.train.steps),
                      text::count(b_->scenario.train.batch * b_->scenario.train.steps)));
  }

  static std::map<std::string, CheckpointHeader::Entry> parameters(const CheckpointHeader& of) {
    std::map<std::string, CheckpointHeader::Entry> out;
    for (const auto& [name, entry] : of.tensors) {
      if (entry.role == "parameter") out.emplace(name, entry);
    }
    return out;
  }

  void take(const RunFile& file, CompareArm& arm) const {
    const Evaluation& e = file.evaluations.back();
    // A diverged model still has an accuracy, but it means nothing.
    const bool whole = file.ended.completed();
    arm.values.push_back(!whole ? std::nan("") : accuracy() ? e.accuracy : e.loss);
    arm.ended.push_back(file.ended);
  }

  Comparison interrupted() {
    c_.outcome = CompareOutcome::kInterrupted;
    c_.headline = fmt::format(
        "Interrupted after {} of {} pairs: the seeds were fixed beforehand, "
        "so nothing is concluded.",
        c_.seeds.size(), c_.asked_seeds);
    // The interrupted pair may have the value of one arm: drop it.
    c_.a.values.resize(c_.seeds.size());
    c_.b.values.resize(c_.seeds.size());
    fill_row();
    return std::move(c_);
  }

  void fill_row() {
    if (c_.seeds.empty()) return;
    const double of_scenario = accuracy() ? 0 : a_->scenario.diagnose.margin;
    const bool asked = o_.margin > 0;
    const Margin margin = choose_margin(asked ? o_.margin : of_scenario, c_.a.values,
                                        asked || accuracy() ? "--margin" : "diagnose.margin", "A");
    c_.row = compare_paired("A - B", "A against B", c_.a.values, c_.b.values, margin);
    c_.row.metric = c_.metric;
  }

  void judge() {
    fill_row();
    const auto n = static_cast<int64_t>(c_.seeds.size());
    if (identical_) {
      c_.outcome = CompareOutcome::kIdentical;
      c_.headline = fmt::format("The same bits in every state of seed {}: one pair was enough.",
                                c_.seeds.front());
      return;
    }
    const auto diverged = [](const CompareArm& arm, size_t i) { return !arm.ended[i].completed(); };
    for (size_t i = 0; i < c_.seeds.size(); ++i) {
      if (diverged(c_.a, i) == diverged(c_.b, i)) continue;
      c_.outcome = CompareOutcome::kDiffers;
      c_.headline = fmt::format("At seed {} {} diverged and the other did not.", c_.seeds[i],
                                diverged(c_.a, i) ? "A" : "B");
      return;
    }
    if (!std::isfinite(c_.row.mean)) {
      c_.outcome = CompareOutcome::kUndetermined;
      c_.headline = "A and B both diverged: there is nothing to compare.";
      return;
    }
    c_.outcome = decide(c_.row);
    const std::string mean = text::signed_number(c_.row.mean);
    switch (c_.outcome) {
      case CompareOutcome::kEquivalent:
        c_.headline = fmt::format("The mean difference of {} over {} is inside the margin {}.",
                                  c_.metric, text::plural(n, "seed"), text::number(c_.row.margin));
        break;
      case CompareOutcome::kDiffers:
        c_.headline = fmt::format(
            "The mean difference of {}, {}, differs from 0 (95% confidence){}.", c_.metric, mean,
            c_.row.outcome == PairedOutcome::kOutside ? ", and beyond the margin" : "");
        break;
      default:
        c_.needed = seeds_for_power(c_.row);
        if (c_.needed) c_.needed = std::max(*c_.needed, static_cast<int>(n) + 1);
        c_.headline =
            n < 2 ? "One pair says nothing about the spread between seeds: give --seeds 3 or more."
                  : fmt::format(
                        "{} do not decide: the difference is neither shown to be inside the "
                        "margin nor to differ from 0.{}",
                        text::plural(n, "seed"),
                        c_.needed ? fmt::format(" {} seeds would, with 80% power (begin anew with "
                                                "--seeds {}: the number must be fixed beforehand).",
                                                *c_.needed, *c_.needed)
                                  : " More than 10,000 seeds would be needed: raise --margin.");
    }
  }

  const CompareOptions& o_;
  std::optional<Experiment> a_, b_;
  CheckpointHeader start_;
  Comparison c_;
  bool identical_ = false;
};

}  // namespace

CompareOutcome decide(const TrajectoryRow& row) {
  // "identical" here: equal values (as accuracies can be) of states that differ, with no spread and
  // a mean of 0.
  if (row.outcome == PairedOutcome::kEquivalent ||
      (row.outcome == PairedOutcome::kIdentical && row.differences.size() > 1))
    return CompareOutcome::kEquivalent;
  if (row.outcome == PairedOutcome::kOutside) return CompareOutcome::kDiffers;
  if (row.differences.size() > 1 && (row.low > 0 || row.high < 0)) return CompareOutcome::kDiffers;
  return CompareOutcome::kUndetermined;
}

Result<Comparison> compare(const CompareOptions& options) { return Comparing(options).run(); }

}  // namespace twinrun
