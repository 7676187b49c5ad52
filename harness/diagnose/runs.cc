// Makes the reference and the subject, and executes and stores the runs of the experiment.
#include "harness/diagnose/runs.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/experiment/engines.h"
#include "harness/run/reference_cache.h"
#include "harness/tensors/distance.h"
#include "reports/run_names.h"

namespace twinrun {
namespace {

std::string run_path(const DiagnosisState& diagnosis, const std::string& name) {
  return (std::filesystem::path(diagnosis.options.directory) / "runs" / (name + ".h5")).string();
}

std::string title(const std::string& name, const Capabilities& engine, const Program& program) {
  return fmt::format("{}: {}{}", text::called(name), engine.name,
                     program.sharding.cores > 1
                         ? fmt::format(", {} cores x {}", program.sharding.cores, program.batch)
                         : fmt::format(", batch {}", program.batch));
}

// Stores the result of a run. With `keep`, also stores its program and, unless the run was
// interrupted, writes the run file.
Status take(DiagnosisState& diagnosis, const std::string& name, Program program, RunResult result,
            bool keep) {
  if (keep) {
    if (!result.file.ended.interrupted())
      TWINRUN_RETURN_IF_ERROR(write_run(run_path(diagnosis, name), result.file));
    diagnosis.programs[name] = std::move(program);
  }
  diagnosis.runs[name] = std::move(result);
  return Ok{};
}

}  // namespace

Status train_run(DiagnosisState& diagnosis, const std::string& name, const Experiment& experiment,
                 Program program, Backend& backend, RunOptions options, bool keep) {
  options.name = title(name, backend.capabilities(), program);
  options.progress = diagnosis.progress;
  options.stop = diagnosis.stop;
  options.threads = diagnosis.options.threads;
  options.ranks = diagnosis.options.ranks;
  options.all_record = true;
  diagnosis.running = name;
  TWINRUN_ASSIGN(RunResult result, train(experiment, program, backend, options));
  return take(diagnosis, name, std::move(program), std::move(result), keep);
}

Status reference(DiagnosisState& diagnosis, const std::string& name, const Experiment& experiment,
                 Program program, Backend& backend, RunOptions options, bool keep) {
  const std::string& engine = diagnosis.options.baseline;
  // Do not cache runs of an external command: it may have changed since.
  const bool others = is_foreign_engine(engine);
  const ReferenceCache cache(others ? "" : diagnosis.options.cache, diagnosis.options.fresh);
  auto kept = cache.find(experiment, program, engine, options);
  if (any_rank(diagnosis.options.ranks, !kept)) {
    TWINRUN_RETURN_IF_ERROR(
        train_run(diagnosis, name, experiment, program, backend, options, keep));
    cache.keep(experiment, program, engine, options, diagnosis.runs[name]);
    return Ok{};
  }
  if (diagnosis.progress != nullptr) {
    diagnosis.progress->begin(title(name, backend.capabilities(), program), 0);
    diagnosis.progress->end(outcome(kept->file, experiment.scenario.train.steps) + " (kept)");
  }
  return take(diagnosis, name, std::move(program), std::move(*kept), keep);
}

BackendOptions split_options(const DiagnosisState& diagnosis, const Scenario& s, int threads) {
  BackendOptions o = backend_options(s, threads);
  o.ranks = diagnosis.options.ranks;
  if (threads == diagnosis.pool.threads()) o.pool = &diagnosis.pool;
  return o;
}

Result<std::unique_ptr<Backend>> baseline(const DiagnosisState& diagnosis, int threads,
                                          bool poison) {
  BackendOptions o = split_options(diagnosis, diagnosis.experiment.scenario, threads);
  o.poison_memory = poison;
  return make_engine(diagnosis.options.baseline, diagnosis.experiment.scenario, o,
                     diagnosis.progress);
}
Result<std::unique_ptr<Backend>> subject(const DiagnosisState& diagnosis) {
  return subject(diagnosis, diagnosis.experiment.scenario);
}
Result<std::unique_ptr<Backend>> subject(const DiagnosisState& diagnosis, const Scenario& s) {
  const BackendOptions o = split_options(diagnosis, s, diagnosis.options.threads);
  if (diagnosis.options.make_subject) return diagnosis.options.make_subject(o);
  TWINRUN_ASSIGN(auto engine, make_engine(diagnosis.options.subject, s, o, diagnosis.progress));
  return with_faults(std::move(engine), diagnosis.faults, s.seed, diagnosis.fault_log);
}

double relative_distance(const Program& program, const States& a, const States& b) {
  RelativeDistance distance;
  for (size_t i = 0; i < program.state.size(); ++i) {
    if (program.state[i].role == StateRole::kParameter) distance.add(a[0].vars[i], b[0].vars[i]);
  }
  return distance.value();
}

}  // namespace twinrun
