// Trains both arms seed by seed, and concludes from the paired differences.
#include "harness/gate/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "harness/gate/pairs.h"
#include "harness/run/run.h"
#include "reports/text.h"

namespace twinrun {
namespace {

class Comparing {
 public:
  explicit Comparing(const CompareOptions& options) : o_(options) {}

  Result<Comparison> run() {
    TWINRUN_ASSIGN(const CompareQuestion question, open_arms());
    std::vector<Pair> pairs;
    for (const uint64_t seed : seeds(question)) {
      TWINRUN_ASSIGN(auto pair, train_pair(seed));
      if (!pair) break;
      pairs.push_back(std::move(*pair));
      if (pairs.front().identical) break;
    }
    return conclude(question, pairs);
  }

 private:
  bool accuracy() const { return o_.metric == CompareOptions::Metric::kAccuracy; }
  uint64_t first_seed() const { return a_->scenario.seed; }

  Result<CompareQuestion> open_arms() {
    TWINRUN_RETURN_IF_ERROR(open(o_.a, a_));
    TWINRUN_RETURN_IF_ERROR(open(o_.b, b_));
    const DiagnoseSpec& of_scenario = a_->scenario.diagnose;
    const bool asked = o_.margin > 0;
    return CompareQuestion{.scenario = a_->scenario.name,
                           .metric = std::string(accuracy() ? kAccuracyMetric : kLossMetric),
                           .a = o_.a.asked,
                           .b = o_.b.asked,
                           .seeds = o_.seeds > 0 ? o_.seeds : of_scenario.seeds,
                           .margin = asked        ? o_.margin
                                     : accuracy() ? 0
                                                  : of_scenario.margin,
                           .margin_source = asked || accuracy() ? "--margin" : "diagnose.margin"};
  }

  std::vector<uint64_t> seeds(const CompareQuestion& question) const {
    std::vector<uint64_t> all;
    for (int i = 0; i < question.seeds; ++i) all.push_back(first_seed() + static_cast<uint64_t>(i));
    return all;
  }

  // nullopt: interrupted.
  Result<std::optional<Pair>> train_pair(uint64_t seed) {
    Pair pair{.seed = seed};
    TWINRUN_ASSIGN(const RunFile a, train_arm("A", *a_, o_.a, seed, pair, pair.a));
    if (a.ended.interrupted()) return std::optional<Pair>();
    TWINRUN_ASSIGN(const RunFile b, train_arm("B", *b_, o_.b, seed, pair, pair.b));
    if (b.ended.interrupted()) return std::optional<Pair>();
    pair.identical = a.state_digests == b.state_digests && a.ended == b.ended;
    return std::optional(std::move(pair));
  }

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
                            uint64_t seed, Pair& pair, PairArm& out) {
    TWINRUN_ASSIGN(const Experiment e, with_seed(base, seed));
    TWINRUN_ASSIGN(const EngineSetup setup, set_up(e, arm.engine, o_.progress));
    RunOptions run;
    run.name = fmt::format("{}#{} {}, {}", name, seed, arm.engine.engine,
                           text::plural(setup.program.sharding.cores, "core"));
    run.threads = arm.engine.threads;
    run.progress = o_.progress;
    run.stop = o_.stop;
    TWINRUN_ASSIGN(RunResult result, train(e, setup.program, *setup.backend, run));
    out.seconds = result.seconds;
    out.engine = result.file.engine;
    out.settings = result.file.engine_settings;
    out.ended = result.file.ended;
    // A diverged model still has an accuracy, but it means nothing.
    out.value = !out.ended.completed() ? std::nan("")
                : accuracy()           ? result.file.evaluations.back().accuracy
                                       : result.file.evaluations.back().loss;
    if (seed == first_seed()) compare_starts(name, e, setup.program, pair.notes);
    return std::move(result.file);
  }

  // Notes, for the first pair, what the arms do not share although they share the seed.
  void compare_starts(const std::string& name, const Experiment& e, const Program& program,
                      std::vector<std::string>& notes) {
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
      notes.push_back("A and B have different initial weights: the pairs share only their seed");
    if (a_->data->digest != b_->data->digest)
      notes.push_back(
          "A and B have different samples, held-out ones included: the metric is not "
          "computed on the same samples");
    if (a_->scenario.train.batch != b_->scenario.train.batch ||
        a_->scenario.train.steps != b_->scenario.train.steps)
      notes.push_back(
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

  const CompareOptions& o_;
  std::optional<Experiment> a_, b_;
  CheckpointHeader start_;
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
