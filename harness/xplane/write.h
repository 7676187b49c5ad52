// Writes a profile as an XSpace, which XProf (TensorBoard's profiler) opens.
//
//   TWINRUN_RETURN_IF_ERROR(write_xplane(profile, to_hlo_proto("step", step, plan), "out"));
//   // xprof --logdir out, or tensorboard --logdir out
#pragma once

#include <string>

#include "program/base/result.h"
#include "reports/profile.h"

namespace twinrun {

// The bytes of an XSpace. Each core is a TPU to XProf, whatever was measured, because its TPU views
// are those that the profile has figures for. `hlo_proto`: of the step (hlo_module.h), "" without
// one.
std::string to_xplane(const Profile& profile, const std::string& hlo_proto = "");

// Where XProf looks for it below a folder: "plugins/profile/modelled/twinrun.xplane.pb".
std::string xplane_path(const Profile& profile);
Status write_xplane(const Profile& profile, const std::string& hlo_proto, const std::string& dir);

}  // namespace twinrun
