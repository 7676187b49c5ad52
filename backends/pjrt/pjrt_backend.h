// `xla`: real XLA as an engine, through a PJRT plugin (docs/xla.md). The program is written as StableHLO, compiled by the plugin
// once, and run on its devices, replica r on device r.
//
//   auto backend = make_pjrt_backend({.plugin = "/usr/lib/xla_cpu_pjrt.so"});
//   (*backend)->capabilities().settings;       // "cpu, 8 devices, PJRT 0.81, precision=f32"
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "backends/core/backend.h"

namespace twinrun {

// What the place of every error of such an engine begins with; the plugin's path follows.
inline constexpr std::string_view kXlaPlace = "xla:";

struct PjrtOptions {
  std::string plugin;  // a path; "": found_plugin()
  int devices = 8;     // that a CPU is to make, at least
  int threads = 1;     // of the reference that draws random numbers; XLA's own are its own
  DotPrecision precision =
      DotPrecision::kBf16;  // asked of dots; what a device makes of it is its own
};

// Errors: no plugin, not one, no device.
Result<std::unique_ptr<Backend>> make_pjrt_backend(const PjrtOptions& options);

// The plugin that is meant where none is named: $TWINRUN_PJRT_PLUGIN, or one that pip or a package has put in the usual
// places. Error: none; the places are listed.
Result<std::string> found_plugin();

}  // namespace twinrun
