// Asks the file system what a name stands for.
#include "program/base/input_file.h"

#include <sys/stat.h>

namespace twinrun {

Status check_input(const std::string& path) {
  struct stat facts {};
  if (path.starts_with("/dev/") || path.starts_with("/proc/") || ::stat(path.c_str(), &facts) != 0)
    return Ok{};
  if (S_ISDIR(facts.st_mode)) return Error{"this is a folder, not a file", path, ""};
  if (S_ISFIFO(facts.st_mode) || S_ISSOCK(facts.st_mode))
    return Error{"this is a pipe or a socket, not a file", path, "write it to a file first"};
  return Ok{};
}

}  // namespace twinrun
