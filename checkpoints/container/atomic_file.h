// Atomic writing of files: the destination holds either the whole new content or what it held
// before. The content goes to a temporary name in the same folder; then fsync, rename, and fsync of
// the folder.
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

// Errors: missing or unwritable folder, full disk, a destination that is not a regular file. After
// an error the temporary file is removed; only a killed process can leave one behind (temporary.h).
// A symbolic link at the destination is followed: the file it names is replaced, the
// link stays. Permissions of a replaced file are kept.
Status write_file_atomically(const std::string& path, std::span<const std::byte> content);
Status write_file_atomically(const std::string& path, std::string_view content);

// The same where an unnamed file in the destination's folder (open_file.h) begins with `content`
// already: it is cut to it and gets the name, and nothing is written twice. Where that is not
// possible, the content is written as above.
Status write_file_atomically(const std::string& path, std::span<const std::byte> content,
                             int unnamed);

}  // namespace twinrun
