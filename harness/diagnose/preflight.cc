// Checks that are possible before the first step is run and the first file is written, and the
// subject's declared formulas.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "harness/diagnose/runs.h"
#include "harness/experiment/engines.h"
#include "scenarios/conventions.h"
#include "scenarios/keys.h"
#include "scenarios/suggest.h"

namespace twinrun {

namespace {

// Parses diagnose.faults.
Result<std::vector<FaultSpec>> faults_of(const Scenario& scenario) {
  std::vector<FaultSpec> faults;
  for (const std::string& text : scenario.diagnose.faults) {
    auto fault = parse_fault(text);
    if (!fault) {
      const Error& e = fault.error();
      return Error{"'" + text + "': " + e.what, "diagnose.faults", e.fix};
    }
    faults.push_back(*std::move(fault));
  }
  return faults;
}

}  // namespace

Status adopt_conventions(DiagnosisState& diagnosis) {
  Scenario scenario = diagnosis.experiment.scenario;
  if (scenario.conventions != "auto" || diagnosis.experiment.imported) return Ok{};
  if (!is_foreign_engine(diagnosis.options.subject) && !diagnosis.options.make_subject) return Ok{};
  // If the engine cannot be started, the run of the subject fails later, when there is a report to
  // say so.
  const auto engine = subject(diagnosis);
  if (!engine) return Ok{};
  const std::string declared = (*engine)->capabilities().conventions;
  if (declared.empty()) return Ok{};
  if (!contains_name(convention_names(), declared)) {
    const auto names = split_names(convention_names());
    return Error{fmt::format("hello: 'conventions' is \"{}\"; allowed: {}", declared,
                             fmt::join(names, ", ")),
                 diagnosis.options.subject, suggested(declared, names),
                 Error::Kind::kForeignEngine};
  }
  scenario.conventions = declared;
  TWINRUN_ASSIGN(diagnosis.experiment, with_scenario(diagnosis.experiment, scenario));
  diagnosis.conventions_declared = true;
  return Ok{};
}

Status preflight(DiagnosisState& diagnosis) {
  const Experiment& e = diagnosis.experiment;
  if (diagnosis.options.subject == "cpu:f64") {
    return Error{"cpu:f64 is the oracle that judges others; it cannot be the subject", "--subject",
                 "give it as --baseline, or use `twinrun train --engine cpu:f64`"};
  }
  TWINRUN_RETURN_IF_ERROR(check_shares(e, e.sharding, /*alone=*/true));
  TWINRUN_RETURN_IF_ERROR(check_data_lasts(e));
  TWINRUN_ASSIGN(diagnosis.faults, faults_of(e.scenario));
  diagnosis.faults.insert(diagnosis.faults.end(), diagnosis.options.faults.begin(),
                          diagnosis.options.faults.end());
  if (diagnosis.faults.empty()) return Ok{};
  const Program program = diagnosis.subject_program(e);
  TWINRUN_RETURN_IF_ERROR(FaultHooks::make(program, diagnosis.faults, e.scenario.seed));
  return Ok{};
}

}  // namespace twinrun
