// `xla`: real XLA as an engine, through a PJRT plugin (docs/guides/import.md). The program is
// written as StableHLO, compiled once by the plugin, and run on its devices, replica r on device r.
//
//   auto backend = make_pjrt_backend({.plugin = "/usr/lib/xla_cpu_pjrt.so"});
//   (*backend)->capabilities().settings;       // "cpu (KIND), PJRT 0.81 of xla_cpu_pjrt.so"
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "backends/core/backend.h"

namespace twinrun {

// Names of such engines begin with this, followed by the plugin's path, and so does Error::where of
// their errors.
inline constexpr std::string_view kXlaPlace = "xla:";

struct PjrtOptions {
  std::string plugin;  // a path; "": found_plugin()
  int devices = 8;     // how many devices a CPU plugin makes; more if a program needs more
  int threads = 1;     // for the reference that draws random numbers; XLA sets its own
  // The precision requested for dots. What a device makes of it depends on the device.
  DotPrecision precision = DotPrecision::kBf16;
};

// Errors: no plugin found, the file is not a plugin, no device. Every error of the engine, from its
// start on, is Error::of_foreign_engine().
Result<std::unique_ptr<Backend>> make_pjrt_backend(const PjrtOptions& options);

// The plugin to use if the user names none: $TWINRUN_PJRT_PLUGIN, or one that pip or a
// distribution's package has installed in the usual folders. Error: there is none; it lists the
// folders.
Result<std::string> found_plugin();

}  // namespace twinrun
