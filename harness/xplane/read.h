// Reads the profile that JAX, XProf or TensorBoard recorded of a real device.
//
//   TWINRUN_ASSIGN(Capture capture, read_xplane("logs"));   // a file, or a folder with one capture
//   to_capture_text(capture, 80);
#pragma once

#include <string>
#include <string_view>

#include "program/base/result.h"
#include "reports/capture.h"

namespace twinrun {

// A file, or a folder below which there is one *.xplane.pb. Errors name the file: too large, not an
// XSpace, cut short, no events of a device or of XLA's ops on the CPU.
Result<Capture> read_xplane(const std::string& path);

// The same of the bytes of a file. `where` names it in errors.
Result<Capture> read_xplane_bytes(std::string_view bytes, const std::string& where);

}  // namespace twinrun
