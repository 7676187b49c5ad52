// What the stages share: the reference and the subject as engines, and the runs of the experiment
// (R, R2, R1, E1, S, T), executed and stored.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "harness/diagnose/stages.h"

namespace twinrun {

// Options of our own engines, whose cores the ranks of the diagnosis split.
BackendOptions split_options(const DiagnosisState& diagnosis, const Scenario& scenario,
                             int threads);

// The reference engine. `poison`: its results start as NaN patterns, so that unwritten elements
// show.
Result<std::unique_ptr<Backend>> baseline(const DiagnosisState& diagnosis, int threads,
                                          bool poison = false);
// The subject, with the faults that are to be injected. The code that judges it uses only the
// capabilities that it declares.
Result<std::unique_ptr<Backend>> subject(const DiagnosisState& diagnosis);
Result<std::unique_ptr<Backend>> subject(const DiagnosisState& diagnosis, const Scenario& scenario);

// Executes one run and stores it in stage.runs. With `keep`, also stores its program in
// stage.programs and, unless it was interrupted, writes runs/NAME.h5.
Status train_run(DiagnosisState& diagnosis, const std::string& name, const Experiment& experiment,
                 Program program, Backend& backend, RunOptions options, bool keep = true);
// The same for a run of the reference engine, which is read from the cache if it is there.
Status reference(DiagnosisState& diagnosis, const std::string& name, const Experiment& experiment,
                 Program program, Backend& backend, RunOptions options, bool keep = true);

// |a - b| / |b|, over all parameters of replica 0.
double relative_distance(const Program& program, const States& a, const States& b);

}  // namespace twinrun
