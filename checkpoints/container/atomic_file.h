// The one way in which twinrun puts a file in its place: all of it, or nothing.
// A temporary name in the same folder, fsync, rename, fsync of the folder. Whatever stood at the
// destination stays intact until the new content is whole on the disk.
//
//   TWINRUN_RETURN_IF_ERROR(write_file_atomically("run.h5", bytes));
//   TWINRUN_RETURN_IF_ERROR(write_file_atomically("report.json", text));
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "program/base/result.h"

namespace twinrun {

// Errors: missing or unwritable folder, full disk, a destination that is no regular file. Then the
// temporary file (".twinrun-PID-N.tmp") is gone; only a killed process can leave one behind.
// A symbolic link at the destination is followed: the file it names is replaced, the link stays.
// Permissions of a replaced file are kept.
Status write_file_atomically(const std::string& path, std::span<const std::byte> content);
Status write_file_atomically(const std::string& path, std::string_view content);

}  // namespace twinrun
