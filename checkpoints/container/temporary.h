// Temporary files and folders: the one place where their names are made and where leftovers are
// removed. A file lies in the folder of the file that it is going to replace,
// ".twinrun-PID-N.tmp"; a folder lies below TMPDIR, "twinrun-PURPOSE-XXXXXX".
//
//   TemporaryFile file;  if (int code = file.create("results")) ...;  write(file.fd(), ...);
//   TWINRUN_ASSIGN(const TemporaryFolder work, TemporaryFolder::make("bundle"));
//   work.path();                              // "/tmp/twinrun-bundle-Ab12Cd"
//
// Both are removed with their object; only a process that was killed leaves them. The next process
// that makes one in the same folder sweeps what was left there. A leftover has such a name, belongs
// to this user, has not changed for some time, and no process holds its lock: that of the owner
// (flock) ends with the process, whichever container it runs in.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "program/base/result.h"

namespace twinrun {

class TemporaryFile {
 public:
  TemporaryFile() = default;
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  // Each returns 0 or an errno.
  int create(const std::string& folder);
  int name(int unnamed, const std::string& folder);  // a file of the same file system (O_TMPFILE)
  int sync_and_close();
  int move_to(const std::string& destination);  // then nothing is left to be removed

  int fd() const { return fd_; }

 private:
  int make(const std::string& folder, const std::function<int(const char*)>& open);

  std::string name_;
  int fd_ = -1;
  bool exists_ = false;
};

class TemporaryFolder {
 public:
  // `purpose` is a row of kPurposes in temporary.cc, by which leftovers are known.
  static Result<TemporaryFolder> make(std::string_view purpose);
  ~TemporaryFolder();
  TemporaryFolder(TemporaryFolder&& other) noexcept;
  TemporaryFolder& operator=(TemporaryFolder&& other) noexcept;
  const std::string& path() const { return path_; }

 private:
  TemporaryFolder() = default;
  std::string path_;
  int lock_ = -1;
};

// Removes the leftovers of killed processes in a folder: files that have not changed for
// kFileLeftover, folders for kFolderLeftover. Looks at no more than kMaxLooked entries, and only
// once in a process for each folder. Where the file system has no locks, nothing is removed.
inline constexpr auto kFileLeftover = std::chrono::minutes(10);
inline constexpr auto kFolderLeftover = std::chrono::hours(24);
inline constexpr int kMaxLooked = 10'000;
void sweep_leftovers(const std::string& folder);

}  // namespace twinrun
