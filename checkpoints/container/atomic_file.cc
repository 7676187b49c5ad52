// Writes a file under a temporary name and renames it into place.
#include "checkpoints/container/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace twinrun {
namespace {

std::string fix_for(int code, const std::string& folder) {
  switch (code) {
    case ENOSPC:
    case EDQUOT:
      return fmt::format("free space on the disk of '{}', or write elsewhere with -o", folder);
    case EFBIG:
      return "raise the file size limit (ulimit -f), or write elsewhere with -o";
    case EACCES:
    case EPERM:
    case EROFS:
      return fmt::format("make '{}' writable, or write elsewhere with -o", folder);
    case ENOENT:
      return fmt::format("create the folder: mkdir -p '{}'", folder);
    case ENOTDIR:
      return fmt::format("'{}' is not a folder: choose another path", folder);
    default:
      return "write elsewhere with -o";
  }
}

Error failure(const char* action, int code, const std::string& path, const std::string& folder) {
  return {fmt::format("cannot {}: {}", action, std::strerror(code)), path, fix_for(code, folder)};
}

// The file under its temporary name. The destructor removes it unless move_to has renamed it.
class TemporaryFile {
 public:
  TemporaryFile() = default;
  ~TemporaryFile() {
    if (fd_ >= 0) ::close(fd_);
    if (exists_) ::unlink(name_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  // Each returns 0 or an errno.
  int create(const std::string& folder) {
    static std::atomic<unsigned> counter{0};
    do {  // a killed process may have left a file of this name
      name_ = fmt::format("{}/.twinrun-{}-{}.tmp", folder, ::getpid(), counter++);
      fd_ = ::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (fd_ < 0 && errno == EEXIST);
    exists_ = fd_ >= 0;
    return exists_ ? 0 : errno;
  }
  // Failure is ignored: some file systems (FAT) have no permissions, and the content is unaffected.
  void take_permissions(mode_t mode) { (void)!::fchmod(fd_, mode & 0777); }
  int write(std::span<const std::byte> content) {
    constexpr size_t kPiece = size_t{1} << 30;  // Linux writes at most 2 GiB at once
    while (!content.empty()) {
      const ssize_t n = ::write(fd_, content.data(), std::min(content.size(), kPiece));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return errno;
      if (n == 0) return EIO;
      content = content.subspan(static_cast<size_t>(n));
    }
    return 0;
  }
  int sync_and_close() {
    if (::fsync(fd_) != 0) return errno;
    const int fd = fd_;
    fd_ = -1;
    return ::close(fd) == 0 ? 0 : errno;
  }
  int move_to(const std::string& destination) {
    if (::rename(name_.c_str(), destination.c_str()) != 0) return errno;
    exists_ = false;
    return 0;
  }

 private:
  std::string name_;
  int fd_ = -1;
  bool exists_ = false;
};

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Returns 0 or an errno. Some file systems cannot sync folders and return EINVAL; nothing more can
// be done there, so that counts as success.
int sync_folder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno == EACCES ? 0 : errno;  // writable but unreadable folders exist
  const int code = ::fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP ? 0 : errno;
  ::close(fd);
  return code;
}

// The path to write to, with a symbolic link resolved.
Result<std::string> destination_of(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0 || !S_ISLNK(info.st_mode)) return path;
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr),
                                                         &std::free);
  if (real == nullptr)
    return Error{"is a symbolic link to a file that does not exist", path, "remove the link"};
  return std::string(real.get());
}

}  // namespace

Status write_file_atomically(const std::string& path, std::span<const std::byte> content) {
  if (path.empty()) return Error{"the name of the file to write is empty", "", "give one with -o"};
  TWINRUN_ASSIGN(const std::string destination, destination_of(path));
  const std::string folder = folder_of(destination);

  struct stat old {};
  const bool replaces = ::stat(destination.c_str(), &old) == 0;
  if (replaces && S_ISDIR(old.st_mode)) {
    return Error{"is a folder; a file is to be written", path, "name a file inside it"};
  }
  if (replaces && !S_ISREG(old.st_mode)) {
    return Error{"is a device or a pipe; only a regular file can be replaced", path,
                 "name another file"};
  }

  TemporaryFile file;
  if (int code = file.create(folder)) return failure("create a file here", code, path, folder);
  if (replaces) file.take_permissions(old.st_mode);
  if (int code = file.write(content)) return failure("write", code, path, folder);
  if (int code = file.sync_and_close()) return failure("write to the disk", code, path, folder);
  if (int code = file.move_to(destination)) return failure("put in place", code, path, folder);
  if (int code = sync_folder(folder)) return failure("sync the folder", code, path, folder);
  return Ok{};
}

Status write_file_atomically(const std::string& path, std::string_view content) {
  return write_file_atomically(path, std::as_bytes(std::span(content)));
}

}  // namespace twinrun
