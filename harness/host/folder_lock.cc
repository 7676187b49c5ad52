// Locks a folder with flock, and removes the folders that it created if they stay empty.
#include "harness/host/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "program/base/os_error.h"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

// The folders of the path that do not exist yet, the innermost first.
std::vector<fs::path> missing_of(fs::path folder) {
  std::vector<fs::path> missing;
  std::error_code ignored;
  for (; !folder.empty() && !fs::exists(folder, ignored); folder = folder.parent_path())
    missing.push_back(folder);
  return missing;
}

// Whether the path still leads to the open folder: the previous holder of the lock may have removed
// it.
bool still_there(const fs::path& folder, int file) {
  struct stat by_path = {}, open = {};
  return ::stat(folder.c_str(), &by_path) == 0 && ::fstat(file, &open) == 0 &&
         by_path.st_dev == open.st_dev && by_path.st_ino == open.st_ino;
}

}  // namespace

Result<FolderLock> FolderLock::take(const std::string& folder) {
  const fs::path path = (fs::path(folder) / "").lexically_normal().parent_path();
  FolderLock lock;
  do {
    if (lock.file_ >= 0) ::close(std::exchange(lock.file_, -1));
    for (fs::path& made : missing_of(path)) lock.made_.push_back(std::move(made));
    std::error_code error;
    fs::create_directories(path, error);
    if (error)
      return Error{"cannot create the folder: " + error.message(), folder, "choose another with -o",
                   kind_of_failure(error.value())};
    lock.file_ = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock.file_ < 0 && kind_of_failure(errno) == Error::Kind::kMachine)
      return Error{fmt::format("cannot lock the folder: {}", std::strerror(errno)), folder,
                   "close other programs, or raise the limits (ulimit -a)", Error::Kind::kMachine};
    if (lock.file_ >= 0 && ::flock(lock.file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      return Error{"another twinrun is running in this folder", folder,
                   "wait for it, or choose another folder with -o"};
    }
  } while (lock.file_ >= 0 && !still_there(path, lock.file_));
  return lock;
}

FolderLock::FolderLock(FolderLock&& other) noexcept
    : file_(std::exchange(other.file_, -1)), made_(std::exchange(other.made_, {})) {}

FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(made_, other.made_);
  return *this;
}

FolderLock::~FolderLock() {
  for (const fs::path& folder : made_) ::rmdir(folder.c_str());  // a folder that is not empty stays
  if (file_ >= 0) ::close(file_);
}

}  // namespace twinrun
