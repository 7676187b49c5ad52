#include "harness/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

namespace twinrun {

Result<FolderLock> FolderLock::take(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    return Error{"cannot create the folder: " + error.message(), folder, "choose another with -o"};
  FolderLock lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock.file_ >= 0 && ::flock(lock.file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return Error{"another twinrun is at work in this folder", folder,
                 "wait for it, or choose another folder with -o"};
  }
  return lock;
}

FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
  std::swap(file_, other.file_);
  return *this;
}

FolderLock::~FolderLock() {
  if (file_ >= 0) ::close(file_);
}

}  // namespace twinrun
