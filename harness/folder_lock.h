// One process at a time in a folder of results. Two that write the same files there would each read the other's.
//
//   TWINRUN_ASSIGN(const FolderLock lock, FolderLock::take("twinrun-results/bisect-rev"));
#pragma once

#include <string>

#include "program/base/result.h"

namespace twinrun {

class FolderLock {
 public:
  // Makes the folder where it is not there. Errors: it cannot be made; another process holds it. A file system that knows no
  // locks gives none. Nothing is left in the folder: the lock is on itself, and ends with the process.
  static Result<FolderLock> take(const std::string& folder);
  FolderLock(FolderLock&& other) noexcept : file_(other.file_) { other.file_ = -1; }
  FolderLock& operator=(FolderLock&& other) noexcept;
  ~FolderLock();

 private:
  explicit FolderLock(int file) : file_(file) {}
  int file_;
};

}  // namespace twinrun
