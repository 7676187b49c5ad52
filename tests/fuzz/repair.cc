// Walks over the records of a file and writes their checksums anew.
#include "tests/fuzz/repair.h"

#include <zlib.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "scenarios/data/record_reader.h"

namespace twinrun::fuzz {
namespace {

template <typename T>
T number_at(const std::string& bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

void put_at(std::string& bytes, size_t at, uint32_t value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

}  // namespace

std::string with_record_checksums(std::string_view bytes) {
  std::string out(bytes);
  for (size_t at = 0; out.size() - at >= 16;) {
    const auto length = number_at<uint64_t>(out, at);
    if (length > out.size() - at - 16) break;
    put_at(out, at + 8, data::masked_crc(&out[at], 8));
    put_at(out, at + 12 + length, data::masked_crc(&out[at + 12], length));
    at += 16 + length;
  }
  return out;
}

std::string with_trace_checksums(std::string_view bytes) {
  constexpr size_t kFile = 64, kRecord = 24;
  std::string out(bytes);
  for (size_t at = kFile; at < out.size() && out.size() - at >= kRecord;) {
    const auto length = number_at<uint64_t>(out, at + 8);
    if (length > out.size() - at - kRecord) break;
    const auto* header = reinterpret_cast<const Bytef*>(&out[at]);
    const uLong of_header = crc32(crc32(0, header, 4), header + 8, kRecord - 8);
    put_at(out, at + 4,
           static_cast<uint32_t>(crc32(of_header, header + kRecord, static_cast<uInt>(length))));
    at += kRecord + (length + 7) / 8 * 8;
  }
  return out;
}

std::string with_json_checksums(std::string_view text, bool by_line) {
  constexpr std::string_view kKey = "\"checksum\"", kKind = "crc32:";
  std::string out(text);
  for (size_t at = 0; (at = out.find(kKey, at)) != out.npos; at += kKey.size()) {
    const size_t digits = out.find(kKind, at) + kKind.size();
    if (digits < kKind.size() || digits > at + 24 || out.size() - digits < 8) continue;
    const size_t begin = by_line ? out.rfind('\n', at) + 1 : 0;
    const auto* bytes = reinterpret_cast<const Bytef*>(&out[begin]);
    char sum[9];
    std::snprintf(sum, sizeof sum, "%08lx", crc32(0, bytes, static_cast<uInt>(at - begin)));
    out.replace(digits, 8, sum);
  }
  return out;
}

void write_text(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary)
      .write(text.data(), static_cast<std::streamsize>(text.size()));
}

}  // namespace twinrun::fuzz
