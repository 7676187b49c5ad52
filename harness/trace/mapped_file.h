// A file as memory, whose bytes stay where they are until the last copy of the pointer is gone.
//
//   TWINRUN_ASSIGN(const auto file, MappedFile::open("trace.twin"));
//   file->bytes();
//   if (file->changed()) ...                // since it was opened: what was read may be of two files
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "program/base/result.h"

namespace twinrun {

class MappedFile {
 public:
  // Errors: it cannot be opened or mapped, or is empty or no file (a pipe, a folder, a device).
  static Result<std::shared_ptr<const MappedFile>> open(const std::string& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Whether the file was written, or became shorter, which would end other readers by SIGBUS: pages
  // that are gone read as zeros here.
  bool changed() const;
  bool shortened() const;

 private:
  MappedFile(int fd, const std::byte* data, size_t size, int64_t written);

  int fd_;
  const std::byte* data_;
  size_t size_;
  int64_t written_;  // when, in nanoseconds
  size_t watched_;   // its place in the table of the signal's handler
};

}  // namespace twinrun
