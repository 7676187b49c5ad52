// A step and its memory plan as an HLO module, for XProf's graph viewer and memory viewer.
//
//   write_xplane(profile, to_hlo_proto("digits_cnn", step, tpu::plan_hbm(step)), "out");
#pragma once

#include <string>

#include "device/hbm_plan.h"
#include "program/graph/program.h"

namespace twinrun {

// The bytes of an HloProto. Its instructions are the ops of the step, with their names. Opcodes are
// HLO's where an op needs no attributes, else "custom-call" with the kind of the op as its target:
// the module is to be looked at, not to be run.
std::string to_hlo_proto(const std::string& name, const Program& step, const tpu::HbmPlan& plan);

}  // namespace twinrun
