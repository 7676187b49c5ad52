// The files of a session folder, which both sides of the engine protocol name in their messages. A
// name from a message is untrusted: it must be a plain file directly in the folder. Nothing is read
// or written through a link.
//
//   TWINRUN_ASSIGN(const Descriptor file, open_session_file(folder, name, name));
//   TWINRUN_RETURN_IF_ERROR(write_session_file(folder, "result-0.safetensors", bytes));
#pragma once

#include <string>
#include <string_view>

#include "checkpoints/container/open_file.h"
#include "program/base/result.h"

namespace twinrun::exec {

// Errors, which name `where`: a name that has a separator or is "..", a missing file, a link, a
// folder, device or pipe.
Result<Descriptor> open_session_file(const std::string& folder, const std::string& name,
                                     const std::string& where);

// Writes a new file. A plain file of that name is replaced; its other hard links keep their
// content. Errors: a name that is not of the folder, a link or anything else that is not a plain
// file, a full disk.
Status write_session_file(const std::string& folder, const std::string& name,
                          std::string_view bytes);

}  // namespace twinrun::exec
