// Raw and gzip (zlib) readers behind one interface.
#include "scenarios/data/byte_reader.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "program/base/input_file.h"
#include "program/base/os_error.h"

namespace twinrun::data {
namespace {

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

Result<size_t> read_file(std::FILE* file, const std::string& path, uint8_t* out, size_t wanted) {
  const size_t got = std::fread(out, 1, wanted, file);
  if (got < wanted && std::ferror(file)) {
    return Error{fmt::format("cannot read: {}", std::strerror(errno)), path, "",
                 kind_of_failure(errno)};
  }
  return got;
}

class RawReader : public ByteReader {
 public:
  RawReader(File file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}
  Result<size_t> read(uint8_t* out, size_t wanted) override {
    return read_file(file_.get(), path_, out, wanted);
  }
  bool gzip() const override { return false; }

 private:
  File file_;
  std::string path_;
};

class GzipReader : public ByteReader {
 public:
  GzipReader(File file, std::string path) : file_(std::move(file)), path_(std::move(path)) {
    ready_ = inflateInit2(&stream_, 15 + 16) == Z_OK;  // gzip framing only
  }
  ~GzipReader() override {
    if (ready_) inflateEnd(&stream_);
  }
  bool gzip() const override { return true; }

  Result<size_t> read(uint8_t* out, size_t wanted) override {
    if (!ready_) return Error{"zlib could not be initialised", path_, ""};
    size_t got = 0;
    while (got < wanted) {
      TWINRUN_RETURN_IF_ERROR(refill());
      if (ended_) {
        if (stream_.avail_in == 0) break;
        if (inflateReset(&stream_) != Z_OK) return damaged("a second member cannot be read");
        ended_ = false;  // a gzip file may be several members in a row
      }
      if (stream_.avail_in == 0) return damaged("the gzip stream is cut short");
      const size_t room = std::min<size_t>(wanted - got, 1u << 20);
      stream_.next_out = out + got;
      stream_.avail_out = static_cast<uInt>(room);
      const int status = inflate(&stream_, Z_NO_FLUSH);
      got += room - stream_.avail_out;
      if (status == Z_STREAM_END) {
        ended_ = true;
      } else if (status != Z_OK && status != Z_BUF_ERROR) {
        return damaged(stream_.msg != nullptr ? stream_.msg : "the gzip stream is damaged");
      }
    }
    return got;
  }

 private:
  Status refill() {
    if (stream_.avail_in > 0) return Ok{};
    TWINRUN_ASSIGN(const size_t got, read_file(file_.get(), path_, buffer_.data(), buffer_.size()));
    stream_.next_in = buffer_.data();
    stream_.avail_in = static_cast<uInt>(got);
    return Ok{};
  }
  Error damaged(std::string_view how) const {
    return {fmt::format("damaged gzip file: {}", how), path_, "download the file again"};
  }

  File file_;
  std::string path_;
  z_stream stream_{};
  std::array<uint8_t, 1 << 16> buffer_;
  bool ready_ = false, ended_ = false;
};

}  // namespace

Result<std::unique_ptr<ByteReader>> ByteReader::open(const std::string& path, Packing packing) {
  TWINRUN_RETURN_IF_ERROR(check_input(path));
  File file(std::fopen(path.c_str(), "rb"));
  if (!file)
    return Error{fmt::format("cannot open: {}", std::strerror(errno)), path, "",
                 kind_of_failure(errno)};
  uint8_t magic[2] = {};
  const size_t got = std::fread(magic, 1, 2, file.get());
  std::rewind(file.get());
  if (packing == Packing::kByContent && got == 2 && magic[0] == 0x1f && magic[1] == 0x8b) {
    return std::unique_ptr<ByteReader>(new GzipReader(std::move(file), path));
  }
  return std::unique_ptr<ByteReader>(new RawReader(std::move(file), path));
}

Result<std::string> ByteReader::read_whole(const std::string& path, size_t most) {
  TWINRUN_ASSIGN(const std::unique_ptr<ByteReader> reader, open(path));
  constexpr size_t kPiece = 1 << 20;
  std::string all;
  while (true) {
    const size_t have = all.size();
    all.resize(have + kPiece);
    TWINRUN_ASSIGN(const size_t got,
                   reader->read(reinterpret_cast<uint8_t*>(all.data()) + have, kPiece));
    all.resize(have + got);
    if (all.size() > most) {
      return Error{fmt::format("larger than {} bytes", most), path, "give a smaller file"};
    }
    if (got < kPiece) return all;
  }
}

}  // namespace twinrun::data
