// Reading a file through its descriptor. The file under a name may be replaced between two uses; an
// open descriptor keeps referring to the same file.
//
//   const Descriptor file(::open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
//   TWINRUN_ASSIGN(const auto bytes, read_open_file(file.get(), limit, path));
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "program/base/result.h"

namespace twinrun {

// Owns a file descriptor and closes it when destroyed; -1: none.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }  // the caller closes it

 private:
  int fd_;
};

// The whole of a regular file from its beginning, or its first `most` bytes.
Result<std::vector<std::byte>> read_open_file(int fd, uint64_t most, const std::string& where);

// Writes all of it at the descriptor's position. Returns 0 or an errno.
int write_all(int fd, std::span<const std::byte> content);

// A file without a name in this folder ("": the current one), to be written and read, which is gone
// when it is closed, unless it gets a name. get() is -1 if the file system has none.
Descriptor unnamed_file(const std::string& folder);

}  // namespace twinrun
