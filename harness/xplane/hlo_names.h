// Names of ops in HLO, and where they come from in the user's source: HLO's metadata, which
// captures hold for each compiled program.
//
//   places_of("jit(step)/transpose(jvp(dense1))/dot_general")   // {"dense1/dot_general.grad"}
//   add_hlo_names(hlo_proto, {{"fusion.12", &op}});
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "reports/capture.h"

namespace twinrun {

// The name of an op as HLO accepts it: letters, digits and "_.-" (NameUniquer of openxla/xla).
std::string hlo_name(std::string_view op);

inline constexpr size_t kMaxPlaces = 64;  // of one op that are kept

// A framework's name for an op as the importer of programs would name it (program/import/names.h),
// without its number. XLA joins the names of ops that it has merged by semicolons.
std::vector<std::string> places_of(std::string_view framework_op);

// Sets the opcode and the places of the ops that the module has, by name; of a fusion, the places
// of the ops in it as well. A broken module is read up to where it breaks.
void add_hlo_names(std::string_view hlo_proto, const std::map<std::string, CaptureOp*>& ops);

}  // namespace twinrun
