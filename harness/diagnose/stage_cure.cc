// Applies the cure: if the scenario's sharding changes the meaning, the subject trains again with
// the causes undone and is compared with the reference seed by seed.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "device/machine.h"
#include "harness/diagnose/runs.h"
#include "harness/effect/effect.h"
#include "harness/effect/moments.h"
#include "harness/sharding/causes.h"

namespace twinrun {
namespace {

// A command without its -o FOLDER, in which the report that names the cure lies.
std::string without_out(std::string command) {
  for (const std::string_view option : {" -o ", " --out ", " --out="}) {
    const size_t at = command.find(option);
    if (at == std::string::npos) continue;
    const size_t value = at + option.size();
    const size_t quoted = command[value] == '\'' ? command.find('\'', value + 1) : value;
    command.erase(at, std::min(command.find(' ', quoted), command.size()) - at);
  }
  return command;
}

struct Cure {
  std::string run, reference;
  Overrides settings;
};

// Run C undoes every cause that a key of the scenario can undo. If cores normalise by few samples,
// run B has a batch that gives each core enough.
std::vector<Cure> cures_of(const DiagnosisState& diagnosis) {
  const Experiment& e = diagnosis.experiment;
  Cure undo{"U", "R", {}};
  bool few = false, others = false;
  for (const ShardingCause& cause : diagnosis.evidence.meaning.causes) {
    for (const auto& setting : cure_settings(e, cause.name)) {
      if (std::ranges::find(undo.settings, setting) == undo.settings.end())
        undo.settings.push_back(setting);
    }
    few = few || cause.name == "batch_norm";
    others = others || (cause.name != "batch_norm" && cause.name != "statistics");
  }
  std::vector<Cure> cures;
  if (!undo.settings.empty()) cures.push_back(std::move(undo));
  const int64_t batch = tpu::kSmallBatchPerCore * e.sharding.cores;
  // A larger batch is a cure only if no other cause is present and there are enough samples.
  if (few && !others && e.scenario.train.batch < batch && e.data->train.count() >= batch)
    cures.push_back({"L", "RL", {{"train.batch", std::to_string(batch)}}});
  return cures;
}

std::string settings_text(const Overrides& settings) {
  std::string out;
  for (const auto& [key, value] : settings)
    out += fmt::format("{}{} = {}", out.empty() ? "" : ", ", key, value);
  return out;
}

// Whether the whole interval lies within what another seed of the reference does: must_see, two
// standard deviations between seeds.
CureOutcome outcome_of(const std::vector<TrajectoryRow>& left) {
  bool inside = true;
  for (const TrajectoryRow& row : left) {
    if (row.outcome == PairedOutcome::kIdentical) continue;
    if (!std::isfinite(row.mean) || row.low > row.must_see || row.high < -row.must_see)
      return CureOutcome::kOutsideNoise;
    inside = inside && -row.must_see < row.low && row.high < row.must_see;
  }
  return inside ? CureOutcome::kWithinNoise : CureOutcome::kUndecided;
}

// Trains one run of a cure. The run of the first seed is kept, so that the report can show its
// curve.
Result<Evaluation> train_cured(DiagnosisState& diagnosis, const Cure& cure, const std::string& name,
                               size_t seed, const Experiment& cured, Backend& backend) {
  TWINRUN_ASSIGN(const Experiment e, with_seed(cured, cured.scenario.seed + seed));
  const bool is_reference = name == cure.reference;
  Program program = is_reference
                        ? e.whole()
                        : as_computed_by(backend.capabilities(), diagnosis.subject_program(e));
  RunOptions options;
  options.digest_states = seed == 0;
  const std::string key = seed == 0 ? name : fmt::format("{}#{}", name, seed);
  const auto run = is_reference ? reference : train_run;
  TWINRUN_RETURN_IF_ERROR(run(diagnosis, key, e, std::move(program), backend, options, seed == 0));
  if (diagnosis.stopped()) return Evaluation{};
  const Evaluation result = final_evaluation(diagnosis.runs[key]);
  if (seed > 0) diagnosis.runs.erase(key);
  return result;
}

Status apply_cure(DiagnosisState& diagnosis, const Cure& cure) {
  const Scenario& s = diagnosis.experiment.scenario;
  TWINRUN_ASSIGN(const Scenario changed, parse_scenario(resolved_toml(s), s.file, cure.settings));
  TWINRUN_ASSIGN(const Experiment cured, with_scenario(diagnosis.experiment, changed));
  TWINRUN_ASSIGN(const auto cpu, baseline(diagnosis, diagnosis.options.threads));
  TWINRUN_ASSIGN(const auto engine, subject(diagnosis, changed));
  // If the cure does not change the training of the whole batch, the runs of R that exist are the
  // reference.
  std::vector<Evaluation> r, c;
  if (cure.reference == "R") r = diagnosis.seeds.r;
  DiagnoseSpec asked = s.diagnose;
  asked.margin = asked.accuracy_margin = 0;
  const SeedTrials trials(asked, labels_are_classes(cured), counted_labels(cured.data->eval));
  CureRow row{.run = cure.run, .reference = cure.reference, .cure = settings_text(cure.settings)};
  for (const int look : trials.looks()) {
    while (c.size() < static_cast<size_t>(look)) {
      if (r.size() == c.size()) {
        TWINRUN_ASSIGN(const Evaluation mine,
                       train_cured(diagnosis, cure, cure.reference, r.size(), cured, *cpu));
        if (diagnosis.stopped()) return Ok{};
        r.push_back(mine);
      }
      TWINRUN_ASSIGN(const Evaluation mine,
                     train_cured(diagnosis, cure, cure.run, c.size(), cured, *engine));
      if (diagnosis.stopped()) return Ok{};
      c.push_back(mine);
    }
    const std::vector<Evaluation> paired(r.begin(), r.begin() + look);
    row.left = trials.compare(fmt::format("{} - {}", cure.run, cure.reference),
                              "what is left with the cure", c, paired, paired);
    row.outcome = outcome_of(row.left);
    if (row.outcome != CureOutcome::kUndecided) break;
  }
  row.seeds = static_cast<int>(c.size());
  r.resize(c.size());
  row.loss_before = mean_of(values_of(diagnosis.seeds.t, &Evaluation::loss));
  row.loss = mean_of(values_of(c, &Evaluation::loss));
  row.loss_reference = mean_of(values_of(r, &Evaluation::loss));
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const bool classes = labels_are_classes(cured);
  row.accuracy_before =
      classes ? mean_of(values_of(diagnosis.seeds.t, &Evaluation::accuracy)) : kNone;
  row.accuracy = classes ? mean_of(values_of(c, &Evaluation::accuracy)) : kNone;
  row.accuracy_reference = classes ? mean_of(values_of(r, &Evaluation::accuracy)) : kNone;
  if (!diagnosis.options.command.empty()) {
    row.command = without_out(diagnosis.options.command);
    for (const auto& [key, value] : cure.settings)
      row.command += fmt::format(" --set {}={}", key, value);
  }
  diagnosis.cures.push_back(std::move(row));
  return Ok{};
}

}  // namespace

Status apply_cures(DiagnosisState& diagnosis) {
  const Evidence& e = diagnosis.evidence;
  // With an engine fault, or another program than the requested one, undoing the causes would not
  // cure what was found.
  const bool other = e.match && e.match->outcome != Identification::Outcome::kInside;
  if (!diagnosis.options.cure || !e.meaning.differs() || !e.violations.empty() || other ||
      diagnosis.seeds.r.size() < 2)
    return Ok{};
  for (const Cure& cure : cures_of(diagnosis)) {
    TWINRUN_RETURN_IF_ERROR(apply_cure(diagnosis, cure));
    if (diagnosis.stopped()) return Ok{};
  }
  return Ok{};
}

}  // namespace twinrun
