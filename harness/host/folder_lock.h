// One process at a time in a folder of results. Two that write the same files there would each read the other's.
//
//   TWINRUN_ASSIGN(const FolderLock lock, FolderLock::take("twinrun-results/bisect-rev"));
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "program/base/result.h"

namespace twinrun {

class FolderLock {
 public:
  // Makes the folder where it is not there. Errors: it cannot be made; another process holds it. A file system that knows no
  // locks gives none. The lock is on the folder itself and ends with the process; a folder it made goes again when nothing
  // was written into it, so that a run that is refused leaves nothing.
  static Result<FolderLock> take(const std::string& folder);
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;
  ~FolderLock();

 private:
  FolderLock() = default;
  int file_ = -1;
  std::vector<std::filesystem::path> made_;  // the innermost first
};

}  // namespace twinrun
