// Writes a file under a temporary name and renames it into place.
#include "checkpoints/container/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "checkpoints/container/open_file.h"
#include "checkpoints/container/temporary.h"
#include "program/base/os_error.h"

namespace twinrun {
namespace {

std::string fix_for(int code, const std::string& folder) {
  switch (code) {
    case ENOSPC:
    case EDQUOT:
      return fmt::format("free space on the disk of '{}', or write elsewhere with -o", folder);
    case EMFILE:
    case ENFILE:
      return "raise the limit of open files (ulimit -n)";
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
  return {fmt::format("cannot {}: {}", action, std::strerror(code)), path, fix_for(code, folder),
          kind_of_failure(code)};
}

// Failure is ignored: some file systems (FAT) have no permissions, and the content is unaffected.
void take_permissions(int fd, mode_t mode) { (void)!::fchmod(fd, mode & 0777); }

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
  return write_file_atomically(path, content, -1);
}

Status write_file_atomically(const std::string& path, std::span<const std::byte> content,
                             int unnamed) {
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
  const bool holds = unnamed >= 0 &&
                     ::ftruncate(unnamed, static_cast<off_t>(content.size())) == 0 &&
                     file.name(unnamed, folder) == 0;
  if (!holds) {
    if (int code = file.create(folder)) return failure("create a file here", code, path, folder);
    if (int code = write_all(file.fd(), content)) return failure("write", code, path, folder);
  }
  if (replaces) take_permissions(file.fd(), old.st_mode);
  if (int code = file.sync_and_close()) return failure("write to the disk", code, path, folder);
  if (int code = file.move_to(destination)) return failure("put in place", code, path, folder);
  if (int code = sync_folder(folder)) return failure("sync the folder", code, path, folder);
  return Ok{};
}

Status write_file_atomically(const std::string& path, std::string_view content) {
  return write_file_atomically(path, std::as_bytes(std::span(content)));
}

}  // namespace twinrun
