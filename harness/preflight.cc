// What can be known to fail is said before the first step is run and before the first file is written.
#include "harness/stages.h"

namespace twinrun {

Status check_data_lasts(const Experiment& e) {
  Feed feed(e.data->train, e.feed_options(e.scenario.train.batch));
  TWINRUN_RETURN_IF_ERROR(feed.batch(e.scenario.train.steps - 1));
  return Ok{};
}

Status preflight(Stage& stage) {
  const Experiment& e = stage.experiment;
  if (stage.options.subject == "cpu:f64") {
    return Error{"cpu:f64 is the oracle that judges others; it cannot be the subject", "--subject",
                 "give it as --baseline, or use `twinrun train --engine cpu:f64`"};
  }
  TWINRUN_RETURN_IF_ERROR(check_data_lasts(e));
  if (stage.options.faults.empty()) return Ok{};
  const Program program = stage.subject_program(e);
  TWINRUN_RETURN_IF_ERROR(FaultHooks::make(program, stage.options.faults, e.scenario.seed));
  return Ok{};
}

}  // namespace twinrun
