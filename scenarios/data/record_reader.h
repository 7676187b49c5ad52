// Reads the records of a TFRecord file, raw or gzip, and checks the CRC-32C of each.
// Format (tensorflow.org, "TFRecords Format Details"): u64 length, u32 masked CRC of the length,
// the bytes, u32 masked CRC of the bytes; little-endian; masked = rotate right by 15, + 0xa282ead8.
//
//   TWINRUN_ASSIGN(auto reader, RecordReader::open("train.tfrecord"));
//   TWINRUN_ASSIGN(bool more, reader.next(record));       // false: end of file
//   reader.place();                                       // "train.tfrecord: record 0"
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "program/base/result.h"
#include "scenarios/data/byte_reader.h"

namespace twinrun::data {

// CRC-32C (Castagnoli), masked as in TFRecord files.
uint32_t masked_crc(const void* bytes, size_t count);

class RecordReader {
 public:
  static Result<RecordReader> open(const std::string& path);
  // Reads the next record. A truncated file, a wrong CRC and a record of more than 256 MiB are
  // errors, which name file and record.
  Result<bool> next(std::string& record);
  int64_t index() const { return index_; }  // of the record that next() read last, from 0
  std::string place() const;

 private:
  RecordReader(std::unique_ptr<ByteReader> reader, std::string path)
      : reader_(std::move(reader)), path_(std::move(path)) {}
  Error damaged(std::string what) const;

  std::unique_ptr<ByteReader> reader_;
  std::string path_;
  int64_t index_ = -1;
};

}  // namespace twinrun::data
