// A file by its descriptor: what lies under a name may change, what is open stays.
//
//   const Descriptor file(::open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
//   TWINRUN_ASSIGN(const auto bytes, read_open_file(file.get(), limit, path));
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "program/base/result.h"

namespace twinrun {

// Owned, closed on the way out; -1: none.
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

 private:
  int fd_;
};

// The whole of a regular file from its beginning, or its first `most` bytes.
Result<std::vector<std::byte>> read_open_file(int fd, uint64_t most, const std::string& where);

}  // namespace twinrun
