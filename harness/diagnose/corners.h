// What the stages share: engines by their part in the experiment, and the runs of its corners.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "harness/diagnose/stages.h"

namespace twinrun {

Result<std::unique_ptr<Backend>> baseline(const Stage& stage, int threads, bool poison = false);
// Everything that judges it knows of it what any engine declares.
Result<std::unique_ptr<Backend>> subject(const Stage& stage);
Result<std::unique_ptr<Backend>> subject(const Stage& stage, const Scenario& scenario);

// Runs one corner; kept ones are written, and found in stage.runs and stage.programs.
Status corner(Stage& stage, const std::string& name, const Experiment& experiment, Program program,
              Backend& backend, RunOptions options, bool keep = true);
// A corner of the baseline, from the cache if it is there.
Status reference(Stage& stage, const std::string& name, const Experiment& experiment,
                 Program program, Backend& backend, RunOptions options, bool keep = true);

// |a - b| / |b|, over all parameters of replica 0.
double relative_distance(const Program& program, const States& a, const States& b);

}  // namespace twinrun
