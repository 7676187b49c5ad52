// Opens and writes the files of a session folder, with checks of their names.
#include "backends/exec/session_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>

namespace twinrun::exec {
namespace {

namespace fs = std::filesystem;

bool is_of_the_folder(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
}

Error not_of_the_folder(const std::string& where) {
  return {"is not a file of the session folder", where,
          "give the name of a file directly in the folder"};
}

}  // namespace

Result<Descriptor> open_session_file(const std::string& folder, const std::string& name,
                                     const std::string& where) {
  if (!is_of_the_folder(name)) return not_of_the_folder(where);
  // Open first, then check the descriptor: the file behind a name may change in between.
  Descriptor file(
      ::open((fs::path(folder) / name).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  if (file.get() < 0 && errno == ENOENT) return Error{"there is no such file", where, ""};
  if (file.get() < 0 && errno == ELOOP) return Error{"is a link, not a plain file", where, ""};
  if (file.get() < 0)
    return Error{std::string("cannot be opened: ") + std::strerror(errno), where, ""};
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return Error{"is not a plain file", where, ""};
  return file;
}

Status write_session_file(const std::string& folder, const std::string& name,
                          std::string_view bytes) {
  if (!is_of_the_folder(name)) return not_of_the_folder(name);
  const std::string path = (fs::path(folder) / name).string();
  struct stat old {};
  if (::lstat(path.c_str(), &old) == 0) {
    if (!S_ISREG(old.st_mode))
      return Error{S_ISLNK(old.st_mode) ? "is a link, not a plain file" : "is not a plain file",
                   path, "remove it, or give another name"};
    ::unlink(path.c_str());
  }
  // O_EXCL never writes through a link, into a pipe or over a file that the other side has created
  // since.
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  int failed = fd < 0 ? errno : write_all(fd, std::as_bytes(std::span(bytes)));
  if (fd >= 0 && ::close(fd) != 0 && failed == 0) failed = errno;
  if (failed == 0) return Ok{};
  return Error{std::string("cannot write: ") + std::strerror(failed), path,
               "free space, or set TMPDIR", Error::Kind::kMachine};
}

}  // namespace twinrun::exec
