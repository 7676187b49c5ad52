// Instrument 3: whether the drift matters, from paired seeds; and, if requested, the ensemble of
// conforming engines.
#include <fmt/format.h>

#include <algorithm>

#include "harness/diagnose/runs.h"
#include "harness/effect/effect.h"
#include "harness/envelope/ensemble.h"
#include "harness/run/evaluate.h"

namespace twinrun {
namespace {

std::vector<float> losses_of(const RunFile& run) {
  std::vector<float> losses;
  for (const StepScalars& step : run.steps) losses.push_back(step.loss);
  return losses;
}

// Widens the band of R's training loss by the losses of another seed.
void widen(DiagnosisState& diagnosis, const std::vector<float>& losses) {
  LossBand& band = diagnosis.loss_band;
  if (band.low.empty()) {
    band.low = band.high = losses_of(diagnosis.runs["R"].file);
  }
  for (size_t i = 0; i < std::min(band.low.size(), losses.size()); ++i) {
    band.low[i] = std::min(band.low[i], losses[i]);
    band.high[i] = std::max(band.high[i], losses[i]);
  }
}

// The experiment and the program of run S: the sharded program or, if `scripted`, the program that
// the subject's script was found to run, so that its effect shows without the engine's.
Result<std::pair<Experiment, Program>> program_of_s(const DiagnosisState& diagnosis,
                                                    const Experiment& own, bool scripted) {
  if (!scripted) return std::pair{own, own.sharded(own.sharding)};
  TWINRUN_ASSIGN(
      const ChangedProgram changed,
      changed_by(own, own.sharding, diagnosis.evidence.match->explanations.front().parts));
  const Experiment& meant = changed.experiment ? *changed.experiment : own;
  return std::pair{meant, diagnosis.sharded() ? meant.sharded(changed.sharding) : meant.whole()};
}

struct SeedRuns {
  Evaluation r, s, t;         // held-out, after the last step; s is r where no S is trained
  std::vector<float> losses;  // of R, step by step
};

// Trains R, S (if `with_s`) and T of seed `i`. nullopt: interrupted.
Result<std::optional<SeedRuns>> train_seed(DiagnosisState& diagnosis, int i, bool with_s,
                                           bool scripted, Backend& cpu, Backend& engine) {
  const std::optional<SeedRuns> stopped;
  SeedRuns out;
  TWINRUN_ASSIGN(const Experiment other,
                 with_seed(diagnosis.experiment,
                           diagnosis.experiment.scenario.seed + static_cast<uint64_t>(i)));
  const auto train_one = [&](const std::string& name, Program program, Backend& backend,
                             const Experiment& fed) -> Result<Evaluation> {
    RunOptions o;
    o.digest_states = false;
    const std::string key = fmt::format("{}#{}", name, i);
    const auto run = name == "T" ? train_run : reference;
    TWINRUN_RETURN_IF_ERROR(run(diagnosis, key, fed, std::move(program), backend, o, false));
    if (diagnosis.stopped()) return Evaluation{};
    const Evaluation result = final_evaluation(diagnosis.runs[key]);
    if (name == "R") out.losses = losses_of(diagnosis.runs[key].file);
    diagnosis.runs.erase(key);
    return result;
  };
  TWINRUN_ASSIGN(out.r, train_one("R", other.whole(), cpu, other));
  if (diagnosis.stopped()) return stopped;
  out.s = out.r;
  if (with_s) {
    TWINRUN_ASSIGN(const auto sharded, program_of_s(diagnosis, other, scripted));
    TWINRUN_ASSIGN(out.s, train_one("S", sharded.second, cpu, sharded.first));
    if (diagnosis.stopped()) return stopped;
  }
  TWINRUN_ASSIGN(
      out.t, train_one("T", as_computed_by(engine.capabilities(), diagnosis.subject_program(other)),
                       engine, other));
  if (diagnosis.stopped()) return stopped;
  return std::optional(std::move(out));
}

// Adds the runs of the next seed.
Status add_seed(DiagnosisState& diagnosis, bool with_s, bool scripted, Backend& cpu,
                Backend& engine) {
  const int i = static_cast<int>(diagnosis.seeds.r.size());
  TWINRUN_ASSIGN(const auto runs, train_seed(diagnosis, i, with_s, scripted, cpu, engine));
  if (!runs) return Ok{};
  widen(diagnosis, runs->losses);
  diagnosis.seeds.r.push_back(runs->r);
  diagnosis.seeds.s.push_back(runs->s);
  diagnosis.seeds.t.push_back(runs->t);
  return Ok{};
}

// `tr_acquits`: the subject's script means something else and no S was trained, so T - R alone
// decides whether that matters and may not stop early.
std::vector<TrajectoryRow> rows_of(const SeedTrials& trials, const PairedSeeds& seeds, bool with_s,
                                   bool scripted, bool tr_acquits) {
  auto rows = trials.compare("T - R", "what the user sees", seeds.t, seeds.r, seeds.r, !tr_acquits);
  if (!with_s) return rows;
  const auto add = [&](std::vector<TrajectoryRow> more) {
    rows.insert(rows.end(), more.begin(), more.end());
  };
  add(trials.compare("S - R",
                     scripted ? "what the script's program alone does, on cpu"
                              : "what sharding alone does, on cpu",
                     seeds.s, seeds.r, seeds.r));
  add(trials.compare("T - S", "what the engine adds", seeds.t, seeds.s, seeds.r, true));
  return rows;
}

// Whether the seeds decide both answers, class and effect, so that no more are needed.
bool is_decided(const std::vector<TrajectoryRow>& rows) {
  const TrajectoryRow *sr = speaking(rows, "S - R"), *tr = speaking(rows, "T - R");
  const auto open = [](const TrajectoryRow* row) {
    return row != nullptr && effect_of(*row) == Effect::kUndecided;
  };
  const bool matters = is_significant(sr) && effect_of(*sr) != Effect::kWithinMargin;
  return matters || (!open(sr) && !open(tr));
}

// Trains paired seeds, one after the other, until the effect is decided.
Status judge_effect(DiagnosisState& diagnosis, bool wanted, Backend& cpu, Backend* engine) {
  Evidence& e = diagnosis.evidence;
  const Experiment& x = diagnosis.experiment;
  // What is known of single steps only (learning rates, how samples were dealt) does not define a
  // whole run.
  const bool explained = e.match && e.match->outcome == Identification::Outcome::kExplained;
  const bool scripted = explained && !is_read_from_steps(e.match->explanations.front().parts);
  const bool with_s = scripted || (diagnosis.sharded() && e.meaning.differs());
  diagnosis.seeds = {{final_evaluation(diagnosis.runs["R"])},
                     {final_evaluation(diagnosis.runs["S"])},
                     {final_evaluation(diagnosis.runs["T"])}};
  if (scripted && wanted) {
    RunOptions o;
    o.digest_states = false;
    TWINRUN_ASSIGN(const auto script, program_of_s(diagnosis, x, true));
    TWINRUN_RETURN_IF_ERROR(
        reference(diagnosis, "S#0", script.first, script.second, cpu, o, false));
    if (diagnosis.stopped()) return Ok{};
    diagnosis.seeds.s = {final_evaluation(diagnosis.runs["S#0"])};
    diagnosis.runs.erase("S#0");
  }
  const SeedTrials trials(x.scenario.diagnose, labels_are_classes(x), counted_labels(x.data->eval));
  for (const int look : trials.looks()) {
    while (wanted && diagnosis.seeds.r.size() < static_cast<size_t>(look)) {
      TWINRUN_RETURN_IF_ERROR(add_seed(diagnosis, with_s, scripted, cpu, *engine));
      if (diagnosis.stopped()) return Ok{};
    }
    e.trajectories = rows_of(trials, diagnosis.seeds, with_s, scripted, explained && !with_s);
    if (!wanted || is_decided(e.trajectories)) break;
  }
  if (diagnosis.seeds.r.size() < 2) return Ok{};
  diagnosis.loss_band.source =
      fmt::format("least and largest of {} seeds of the reference", diagnosis.seeds.r.size());
  Evaluator evaluator(x, diagnosis.options.threads);
  const Program whole = x.whole();
  TWINRUN_ASSIGN(const Evaluation initial, evaluator.evaluate(whole, initial_states(x, whole), 0));
  e.learning = judge_learning(x, initial, diagnosis.seeds.r);
  return Ok{};
}

}  // namespace

Status compare_trajectories(DiagnosisState& diagnosis) {
  Evidence& e = diagnosis.evidence;
  if (!diagnosis.runs.contains("T")) return Ok{};
  e.held_out = diagnosis.experiment.has_held_out();
  const bool broken = e.match && (e.match->outcome == Identification::Outcome::kUnexplained ||
                                  e.match->outcome == Identification::Outcome::kUnrepeatable);
  const bool wanted = !diagnosis.options.quick && e.violations.empty() && !broken && !e.identical;
  const Scenario& s = diagnosis.experiment.scenario;
  TWINRUN_ASSIGN(const auto cpu, baseline(diagnosis, diagnosis.options.threads));
  std::unique_ptr<Backend> engine;  // not started if no more runs of it are needed
  if (wanted) {
    TWINRUN_ASSIGN(engine, subject(diagnosis));
  }
  if (wanted && s.diagnose.ensemble > 0) {
    EnsembleOptions o;
    o.members = s.diagnose.ensemble;
    o.steps = std::min<int64_t>(o.steps, s.train.steps);
    o.threads = diagnosis.options.threads;
    o.seed = s.seed;
    if (e.level == 'C' && e.match)
      o.as = class_of(e.match->computes_as, e.match->computes, engine->capabilities(),
                      diagnosis.programs["T"]);
    if (diagnosis.progress != nullptr)
      diagnosis.progress->begin("ensemble: does the subject conform", 1);
    TWINRUN_ASSIGN(e.ensembles,
                   compare_ensemble(diagnosis.experiment, diagnosis.programs["T"], *engine, o));
    if (diagnosis.progress != nullptr)
      diagnosis.progress->end(
          fmt::format("p {:.2f}, {}", e.ensembles.back().p, to_string(e.ensembles.back().outcome)));
  }
  if (!e.held_out) return Ok{};
  TWINRUN_RETURN_IF_ERROR(judge_effect(diagnosis, wanted, *cpu, engine.get()));
  return Ok{};
}

}  // namespace twinrun
