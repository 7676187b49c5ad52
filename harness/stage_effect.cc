// Does it matter: instrument 3, paired seeds and, where asked for, the ensemble of honest engines.
#include <fmt/format.h>

#include <algorithm>

#include "harness/corners.h"
#include "harness/ensemble.h"
#include "harness/trajectory.h"

namespace twinrun {
namespace {

// The band of R's training loss takes in another seed of it.
void widen(Stage& stage, const RunFile& run) {
  LossBand& band = stage.loss_band;
  if (band.low.empty()) {
    for (const StepScalars& step : stage.runs["R"].file.steps) band.low.push_back(step.loss);
    band.high = band.low;
  }
  for (size_t i = 0; i < std::min(band.low.size(), run.steps.size()); ++i) {
    band.low[i] = std::min(band.low[i], run.steps[i].loss);
    band.high[i] = std::max(band.high[i], run.steps[i].loss);
  }
}

}  // namespace

Status compare_trajectories(Stage& stage) {
  Evidence& e = stage.evidence;
  if (!stage.runs.contains("T")) return Ok{};
  e.held_out = !stage.experiment.imported;
  const bool broken = e.match && (e.match->outcome == MatchResult::Outcome::kUnexplained ||
                                  e.match->outcome == MatchResult::Outcome::kUnrepeatable);
  const bool wanted = !stage.options.quick && e.violations.empty() && !broken && !e.identical;
  const Scenario& s = stage.experiment.scenario;
  TWINRUN_ASSIGN(const auto cpu, baseline(stage, stage.options.threads));
  std::unique_ptr<Backend> engine;  // an engine that nothing more is asked of need not be started
  if (wanted) {
    TWINRUN_ASSIGN(engine, subject(stage));
  }
  if (wanted && s.diagnose.ensemble > 0) {
    EnsembleOptions o;
    o.members = s.diagnose.ensemble;
    o.steps = std::min<int64_t>(o.steps, s.train.steps);
    o.threads = stage.options.threads;
    o.seed = s.seed;
    if (e.level == 'C' && e.match)
      o.as = class_of(e.match->computes_as, e.match->computes, engine->capabilities(),
                      stage.programs["T"]);
    if (stage.progress != nullptr) stage.progress->begin("ensemble: is it one of the honest", 1);
    TWINRUN_ASSIGN(e.ensembles,
                   compare_ensemble(stage.experiment, stage.programs["T"], *engine, o));
    if (stage.progress != nullptr)
      stage.progress->end(
          fmt::format("p {:.2f}, {}", e.ensembles.back().p, e.ensembles.back().outcome));
  }
  if (!e.held_out) return Ok{};
  stage.r_losses = {final_loss(stage.runs["R"])};
  stage.s_losses = {final_loss(stage.runs["S"])};
  stage.t_losses = {final_loss(stage.runs["T"])};
  // What the subject's script runs, on the reference: its effect without the engine's.
  // Rates that were seen at single steps make no whole run.
  const bool scripted = e.match && e.match->outcome == MatchResult::Outcome::kExplained &&
                        !is_read_from_steps(e.match->explanations.front().parts);
  const auto scripts = [&](const Experiment& own) -> Result<std::pair<Experiment, Program>> {
    if (!scripted) return std::pair{own, own.sharded(own.sharding)};
    TWINRUN_ASSIGN(const ChangedProgram changed,
                   changed_by(own, own.sharding, e.match->explanations.front().parts));
    const Experiment& meant = changed.experiment ? *changed.experiment : own;
    return std::pair{meant, stage.sharded() ? meant.sharded(changed.sharding) : meant.whole()};
  };
  if (scripted) {
    if (wanted) {
      RunOptions o;
      o.digest_states = false;
      TWINRUN_ASSIGN(const auto script, scripts(stage.experiment));
      TWINRUN_RETURN_IF_ERROR(reference(stage, "S#0", script.first, script.second, *cpu, o, false));
      stage.s_losses = {final_loss(stage.runs["S#0"])};
      stage.runs.erase("S#0");
      if (stage.stopped()) return Ok{};
    }
  }
  for (int i = 1; wanted && i < s.diagnose.seeds; ++i) {
    TWINRUN_ASSIGN(const Experiment other,
                   with_seed(stage.experiment, s.seed + static_cast<uint64_t>(i)));
    const auto loss_of = [&](const std::string& name, Program program, Backend& backend,
                             const Experiment& fed) -> Result<double> {
      RunOptions o;
      o.digest_states = false;
      const std::string key = fmt::format("{}#{}", name, i);
      const auto run = name == "T" ? corner : reference;
      TWINRUN_RETURN_IF_ERROR(run(stage, key, fed, std::move(program), backend, o, false));
      const double loss = final_loss(stage.runs[key]);
      if (name == "R") widen(stage, stage.runs[key].file);
      stage.runs.erase(key);
      return loss;
    };
    TWINRUN_ASSIGN(const double r, loss_of("R", other.whole(), *cpu, other));
    if (stage.stopped()) return Ok{};
    double sharded = r;
    if (scripted || (stage.sharded() && e.meaning.differs())) {
      TWINRUN_ASSIGN(const auto script, scripts(other));
      TWINRUN_ASSIGN(sharded, loss_of("S", script.second, *cpu, script.first));
      if (stage.stopped()) return Ok{};
    }
    TWINRUN_ASSIGN(
        const double t,
        loss_of("T", as_computed_by(engine->capabilities(), stage.subject_program(other)), *engine,
                other));
    if (stage.stopped()) return Ok{};
    stage.r_losses.push_back(r);
    stage.s_losses.push_back(sharded);
    stage.t_losses.push_back(t);
  }
  if (!stage.loss_band.low.empty())
    stage.loss_band.source =
        fmt::format("least and largest of {} seeds of R", stage.r_losses.size());
  const Margin margin = choose_margin(s.diagnose.margin, stage.r_losses);
  e.trajectories.push_back(
      compare_paired("T - R", "what the user sees", stage.t_losses, stage.r_losses, margin));
  if (scripted || (stage.sharded() && e.meaning.differs())) {
    e.trajectories.push_back(compare_paired("S - R",
                                            scripted
                                                ? "what the script's program alone does, on cpu"
                                                : "what sharding alone does, on cpu",
                                            stage.s_losses, stage.r_losses, margin));
    e.trajectories.push_back(
        compare_paired("T - S", "what the engine adds", stage.t_losses, stage.s_losses, margin));
  }
  return Ok{};
}

}  // namespace twinrun
