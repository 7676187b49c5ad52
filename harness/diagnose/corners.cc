// Makes the reference and the subject, and executes and stores the runs of the experiment.
#include "harness/diagnose/corners.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/experiment/engines.h"
#include "harness/run/reference_cache.h"
#include "harness/tensors/distance.h"

namespace twinrun {
namespace {

std::string run_path(const Stage& stage, const std::string& name) {
  return (std::filesystem::path(stage.options.directory) / "runs" / (name + ".h5")).string();
}

std::string title(const std::string& name, const Capabilities& engine, const Program& program) {
  return fmt::format("{:<4} {}{}", name, engine.name,
                     program.sharding.cores > 1
                         ? fmt::format(", {} cores x {}", program.sharding.cores, program.batch)
                         : fmt::format(", batch {}", program.batch));
}

// Stores a finished run; writes it if it is to be kept and was not interrupted.
Status take(Stage& stage, const std::string& name, Program program, RunResult result, bool keep) {
  if (keep) {
    if (result.file.ended != "interrupted")
      TWINRUN_RETURN_IF_ERROR(write_run(run_path(stage, name), result.file));
    stage.programs[name] = std::move(program);
  }
  stage.runs[name] = std::move(result);
  return Ok{};
}

}  // namespace

Status corner(Stage& stage, const std::string& name, const Experiment& experiment, Program program,
              Backend& backend, RunOptions options, bool keep) {
  options.name = title(name, backend.capabilities(), program);
  options.progress = stage.progress;
  options.stop = stage.stop;
  options.threads = stage.options.threads;
  stage.running = name;
  TWINRUN_ASSIGN(RunResult result, train(experiment, program, backend, options));
  return take(stage, name, std::move(program), std::move(result), keep);
}

Status reference(Stage& stage, const std::string& name, const Experiment& experiment,
                 Program program, Backend& backend, RunOptions options, bool keep) {
  const std::string& engine = stage.options.baseline;
  // Do not cache runs of an external command: it may have changed since.
  const bool others = is_foreign_engine(engine);
  const ReferenceCache cache(others ? "" : stage.options.cache, stage.options.fresh);
  auto kept = cache.find(experiment, program, engine, options);
  if (!kept) {
    TWINRUN_RETURN_IF_ERROR(corner(stage, name, experiment, program, backend, options, keep));
    cache.keep(experiment, program, engine, options, stage.runs[name]);
    return Ok{};
  }
  if (stage.progress != nullptr) {
    stage.progress->begin(title(name, backend.capabilities(), program), 0);
    stage.progress->end(outcome(kept->file, experiment.scenario.train.steps) + " (kept)");
  }
  return take(stage, name, std::move(program), std::move(*kept), keep);
}

Result<std::unique_ptr<Backend>> baseline(const Stage& stage, int threads, bool poison) {
  BackendOptions o = backend_options(stage.experiment.scenario, threads);
  o.poison_memory = poison;
  return make_engine(stage.options.baseline, stage.experiment.scenario, o, stage.progress);
}
Result<std::unique_ptr<Backend>> subject(const Stage& stage) {
  return subject(stage, stage.experiment.scenario);
}
Result<std::unique_ptr<Backend>> subject(const Stage& stage, const Scenario& s) {
  const BackendOptions o = backend_options(s, stage.options.threads);
  if (stage.options.make_subject) return stage.options.make_subject(o);
  TWINRUN_ASSIGN(auto engine, make_engine(stage.options.subject, s, o, stage.progress));
  return with_faults(std::move(engine), stage.faults, s.seed, stage.fault_log);
}

double relative_distance(const Program& program, const States& a, const States& b) {
  RelativeDistance distance;
  for (size_t i = 0; i < program.state.size(); ++i) {
    if (program.state[i].role == StateRole::kParameter) distance.add(a[0].vars[i], b[0].vars[i]);
  }
  return distance.value();
}

}  // namespace twinrun
