// A lock on a folder of results, for one process at a time: two processes that write the same files
// there would read each other's.
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
  // Creates the folder if it is missing. The lock is on the folder itself and ends with the object
  // or the process. A folder that was created here is removed again if nothing was written into it,
  // so that a run that fails early leaves nothing. On a file system without locks nothing is
  // locked. Errors: the folder cannot be created or opened; another process holds the lock.
  static Result<FolderLock> take(const std::string& folder);
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;
  ~FolderLock();

 private:
  FolderLock() = default;
  int file_ = -1;
  std::vector<std::filesystem::path> made_;  // folders created here, the innermost first
};

}  // namespace twinrun
