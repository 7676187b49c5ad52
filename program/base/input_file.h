// Whether a named file can be read to its end.
#pragma once

#include <string>

#include "program/base/result.h"

namespace twinrun {

// An error for a folder, and for a pipe or a socket that has a name: nobody may ever write it. What
// a shell has opened (/dev/stdin, /dev/fd/63) is fine, and what does not exist is left to who opens it.
Status check_input(const std::string& path);

}  // namespace twinrun
