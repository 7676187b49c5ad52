// Parses the framing of TFRecord files.
#include "scenarios/data/record_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/crc.hpp>

namespace twinrun::data {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{256} << 20;
constexpr size_t kHeader = 12, kPiece = 1 << 20;

uint64_t little_endian(const uint8_t* bytes, int count) {
  uint64_t out = 0;
  for (int i = count - 1; i >= 0; --i) out = out << 8 | bytes[i];
  return out;
}

bool good_header(const uint8_t* header) {
  return little_endian(header + 8, 4) == masked_crc(header, 8);
}

}  // namespace

uint32_t masked_crc(const void* bytes, size_t count) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(bytes, count);
  const uint32_t value = crc.checksum();
  return (value >> 15 | value << 17) + 0xa282ead8u;
}

Result<RecordReader> RecordReader::open(const std::string& path) {
  // The length of the first record can look like the magic bytes of gzip. If its CRC is right, the
  // file is raw.
  TWINRUN_ASSIGN(std::unique_ptr<ByteReader> raw, ByteReader::open(path, Packing::kRaw));
  std::array<uint8_t, kHeader> header{};
  TWINRUN_ASSIGN(const size_t got, raw->read(header.data(), kHeader));
  const bool is_raw = got == kHeader && good_header(header.data());
  TWINRUN_ASSIGN(std::unique_ptr<ByteReader> reader,
                 ByteReader::open(path, is_raw ? Packing::kRaw : Packing::kByContent));
  return RecordReader(std::move(reader), path);
}

std::string RecordReader::place() const { return fmt::format("{}: record {}", path_, index_); }

Error RecordReader::damaged(std::string what) const {
  return {std::move(what), place(), "the file is damaged: download or write it again"};
}

Result<bool> RecordReader::next(std::string& record) {
  ++index_;
  std::array<uint8_t, kHeader> header{};
  TWINRUN_ASSIGN(const size_t got, reader_->read(header.data(), kHeader));
  if (got == 0) return false;
  if (got < kHeader) {
    return damaged(
        fmt::format("truncated: found {} of the {} bytes before a record", got, kHeader));
  }
  if (!good_header(header.data())) {
    if (index_ > 0) return damaged("the CRC of the record's length is wrong");
    return Error{"not a TFRecord file: the CRC of the first length is wrong", place(),
                 "give TFRecord files, raw or gzip, as tf.io.TFRecordWriter makes them"};
  }
  const uint64_t length = little_endian(header.data(), 8);
  if (length > kMaxBytes) {
    return damaged(fmt::format("a record of {} bytes; allowed: up to {}", length, kMaxBytes));
  }
  // Read in pieces, so that a length greater than the file does not allocate that much memory.
  const size_t size = static_cast<size_t>(length) + 4;
  record.clear();
  while (record.size() < size) {
    const size_t have = record.size(), piece = std::min(kPiece, size - have);
    record.resize(have + piece);
    TWINRUN_ASSIGN(const size_t more,
                   reader_->read(reinterpret_cast<uint8_t*>(record.data()) + have, piece));
    if (more < piece) {
      return damaged(fmt::format("truncated: found {} bytes of a record of {} and its CRC",
                                 have + more, length));
    }
  }
  const auto* bytes = reinterpret_cast<const uint8_t*>(record.data());
  if (little_endian(bytes + length, 4) != masked_crc(bytes, length)) {
    return damaged("the CRC of the record is wrong");
  }
  record.resize(length);
  return true;
}

}  // namespace twinrun::data
