// Runs one case of a drill and fills in its record.
#include "harness/drill/run_case.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <new>
#include <system_error>

#include "harness/drill/subject.h"
#include "program/base/os_error.h"

namespace twinrun::drill {
namespace {

// CPU seconds of this thread, unaffected by other cases that run in parallel.
double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

void take_report(const Report& report, CaseRecord& r) {
  r.verdict = report.verdict;
  r.effect = report.effect;
  r.not_learnt = report.effect_text.starts_with("the reference has not learnt");
  r.headline = report.headline;
  r.notes = report.notes;
  for (const Finding& f : report.findings)
    r.findings.push_back({f.verdict, f.cause, f.op, f.step.value_or(-1), f.core.value_or(-1)});
}

// Returns false if interrupted.
Result<bool> fill(CaseRecord& r, const CaseOptions& options, TruthCache& truths) {
  const DrillCase& c = r.injected;
  TWINRUN_ASSIGN(const Experiment experiment,
                 open_experiment({c.scenario, options.program}, c.overrides));
  const double begin = thread_seconds();
  TWINRUN_ASSIGN(r.truth, decide_truth(c, experiment, truths));
  const double decided = thread_seconds();
  r.truth_seconds = decided - begin;

  const auto log = std::make_shared<FaultLog>();
  const auto usage = std::make_shared<Usage>();
  DiagnoseOptions o;
  o.subject = "subject";
  o.directory = (std::filesystem::path(options.directory) / c.id).string();
  o.threads = 1;
  o.command = "twinrun_dev drill --case " + c.id;
  o.cache = options.cache;
  o.sabotage = options.sabotage;
  o.make_subject = [&](const BackendOptions& how) -> Result<std::unique_ptr<Backend>> {
    TWINRUN_ASSIGN(auto subject, injected_engine(c, experiment, how, log));
    if (c.level == 'C') subject = without_trace(std::move(subject));
    return counted(std::move(subject), usage);
  };
  TWINRUN_ASSIGN(const Diagnosis diagnosis, diagnose(experiment, o, nullptr, options.stop));
  if (diagnosis.interrupted) return false;
  r.seconds = thread_seconds() - decided;
  take_report(diagnosis.report, r);
  r.executions = usage->executions;
  r.run_lengths =
      static_cast<double>(usage->steps) / static_cast<double>(experiment.scenario.train.steps);
  for (const auto& run : log->runs) {
    if (!run.empty()) r.sealed.push_back(run.front().step);
  }
  return true;
}

// The machine, and not the case, is the reason of such an error.
bool of_machine(const Error& error) {
  return error.kind == Error::Kind::kMachine || error.kind == Error::Kind::kUnavailable;
}

}  // namespace

Result<std::optional<CaseRecord>> run_case(const std::string& id, const CaseOptions& options,
                                           TruthCache& truths) {
  const std::string folder = (std::filesystem::path(options.directory) / id).string();
  const auto stopped = [&](const std::string& why, const std::string& where) {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
    return Error{fmt::format("{}; the case {} could not be run", why, id), where, kFreeAndResume,
                 Error::Kind::kMachine};
  };
  CaseRecord r;
  r.injected.id = id;
  // An exception is a bug of ours, and must not abort the other cases.
  try {
    const auto drawn = draw_case(id, options.program);
    if (drawn) r.injected = *drawn;
    const auto done = drawn ? fill(r, options, truths) : Result<bool>(drawn.error());
    if (!done && of_machine(done.error())) return stopped(done.error().what, done.error().where);
    if (!done) r.error = done.error().message();
    if (done && !*done) return std::optional<CaseRecord>();
  } catch (const std::bad_alloc&) {
    return stopped("out of memory", "");
  } catch (const std::system_error& e) {
    if (kind_of_failure(e.code().value()) == Error::Kind::kMachine) return stopped(e.what(), "");
    r.error = std::string("internal error: ") + e.what();
  } catch (const std::exception& e) {
    r.error = std::string("internal error: ") + e.what();
  }
  std::error_code ignored;
  if (!options.keep_all && score(r).right) std::filesystem::remove_all(folder, ignored);
  return std::optional(std::move(r));
}

}  // namespace twinrun::drill
