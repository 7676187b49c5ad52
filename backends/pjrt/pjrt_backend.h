// `xla`: real XLA as an engine, through a PJRT plugin (docs/guides/xla.md). The program is written
// as StableHLO, compiled once by the plugin, and run on its devices, replica r on device r.
//
//   auto backend = make_pjrt_backend({.plugin = "/usr/lib/xla_cpu_pjrt.so"});
//   (*backend)->capabilities().settings;       // "cpu (KIND), PJRT 0.81 of xla_cpu_pjrt.so"
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "backends/core/backend.h"

namespace twinrun {

// The place of every error of such an engine begins with this, followed by the plugin's path.
inline constexpr std::string_view kXlaPlace = "xla:";

struct PjrtOptions {
  std::string plugin;  // a path; "": found_plugin()
  int devices = 8;     // how many devices a CPU plugin makes; more if a program needs more
  int threads = 1;     // for the reference that draws random numbers; XLA sets its own
  // The precision requested for dots. What a device makes of it depends on the device.
  DotPrecision precision = DotPrecision::kBf16;
};

// Errors: no plugin found, the file is not a plugin, no device.
Result<std::unique_ptr<Backend>> make_pjrt_backend(const PjrtOptions& options);

// The plugin to use if the user names none: $TWINRUN_PJRT_PLUGIN, or one that pip or a
// distribution's package has installed in the usual folders. Error: there is none; it lists the
// folders.
Result<std::string> found_plugin();

}  // namespace twinrun
