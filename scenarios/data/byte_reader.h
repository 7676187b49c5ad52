// Reads a file from front to back, raw or gzip (told by its first bytes, not its name). Nothing is
// read that was not asked for, so a small file that inflates to a huge one costs only what its
// header promised.
//
//   TWINRUN_ASSIGN(auto reader, ByteReader::open(path));
//   TWINRUN_ASSIGN(size_t got, reader->read(buffer, wanted));   // less than wanted: the file ended
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "program/base/result.h"

namespace twinrun::data {

enum class Packing : uint8_t { kByContent, kRaw };

class ByteReader {
 public:
  virtual ~ByteReader() = default;
  // Fills up to `wanted` bytes. For gzip the end is reached only with a right CRC-32 and length.
  virtual Result<size_t> read(uint8_t* out, size_t wanted) = 0;
  virtual bool gzip() const = 0;

  // kRaw: the file's own bytes, whatever they look like.
  static Result<std::unique_ptr<ByteReader>> open(const std::string& path,
                                                  Packing packing = Packing::kByContent);
  // The whole file, which may not have more than `most` bytes (of what a gzip file holds).
  static Result<std::string> read_whole(const std::string& path, size_t most);
};

}  // namespace twinrun::data
