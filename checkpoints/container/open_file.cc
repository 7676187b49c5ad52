// Reads a regular file through its descriptor, and writes.
#include "checkpoints/container/open_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "program/base/os_error.h"

namespace twinrun {

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Result<std::vector<std::byte>> read_open_file(int fd, uint64_t most, const std::string& where) {
  struct stat info {};
  std::vector<std::byte> bytes;
  int code = ::fstat(fd, &info) != 0 ? errno : 0;
  if (code == 0 && !S_ISREG(info.st_mode))
    return Error{"is not a regular file", where, "name a file"};
  if (code == 0) {
    bytes.resize(std::min(static_cast<uint64_t>(info.st_size), most));
    size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t n =
          ::pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) code = errno;
      if (n <= 0) break;
      done += static_cast<size_t>(n);
    }
    bytes.resize(done);  // shorter if the file was truncated meanwhile; the parser reports that
  }
  if (code != 0)
    return Error{std::string("cannot read: ") + std::strerror(code), where, "",
                 kind_of_failure(code)};
  return bytes;
}

Descriptor unnamed_file(const std::string& folder) {
  const char* const place = folder.empty() ? "." : folder.c_str();
  return Descriptor(::open(place, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666));
}

int write_all(int fd, std::span<const std::byte> content) {
  constexpr size_t kPiece = size_t{1} << 30;  // Linux writes at most 2 GiB at once
  while (!content.empty()) {
    const ssize_t n = ::write(fd, content.data(), std::min(content.size(), kPiece));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return EIO;
    content = content.subspan(static_cast<size_t>(n));
  }
  return 0;
}

}  // namespace twinrun
