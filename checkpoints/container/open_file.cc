// Reads a regular file through its descriptor.
#include "checkpoints/container/open_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

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
  if (code != 0) return Error{std::string("cannot read: ") + std::strerror(code), where, ""};
  return bytes;
}

}  // namespace twinrun
