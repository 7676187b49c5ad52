// Reads a file from front to back, raw or gzip (detected by its first bytes, not by its name). It
// inflates only as much as the caller requests, so a small file that would inflate to a huge one
// costs no more than the size that the caller expects from its header.
//
//   TWINRUN_ASSIGN(auto reader, ByteReader::open(path));
//   TWINRUN_ASSIGN(size_t got, reader->read(buffer, wanted));   // less than wanted: end of file
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
  // Reads up to `wanted` bytes; fewer only at the end of the file. For a gzip file, the end is
  // reported only after its CRC-32 and length have been verified.
  virtual Result<size_t> read(uint8_t* out, size_t wanted) = 0;
  virtual bool gzip() const = 0;

  // kRaw: never inflate, even if the file looks like gzip.
  static Result<std::unique_ptr<ByteReader>> open(const std::string& path,
                                                  Packing packing = Packing::kByContent);
  // The whole file, inflated if it is gzip. More than `most` bytes are an error.
  static Result<std::string> read_whole(const std::string& path, size_t most);
};

}  // namespace twinrun::data
