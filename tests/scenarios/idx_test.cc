// Tests the data source idx: files in the format of MNIST.
#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "scenarios/data/feed.h"
#include "tests/support/folder.h"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using Bytes = std::string;

Bytes big_endian(uint32_t x) {
  return {static_cast<char>(x >> 24), static_cast<char>(x >> 16), static_cast<char>(x >> 8),
          static_cast<char>(x)};
}

Bytes images(uint32_t n, uint32_t h = 2, uint32_t w = 3) {
  Bytes out = big_endian(0x0803) + big_endian(n) + big_endian(h) + big_endian(w);
  for (uint32_t i = 0; i < n * h * w; ++i) out += static_cast<char>(i);
  return out;
}

Bytes labels(uint32_t n) {
  Bytes out = big_endian(0x0801) + big_endian(n);
  for (uint32_t i = 0; i < n; ++i) out += static_cast<char>(i % 10);
  return out;
}

Bytes gzip(const Bytes& raw) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  Bytes out(deflateBound(&stream, raw.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(raw.data()));
  stream.avail_in = static_cast<uInt>(raw.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(out.size() - stream.avail_out);
  deflateEnd(&stream);
  return out;
}

class IdxTest : public testing::Test {
 protected:
  void write(const std::string& name, const Bytes& bytes) {
    std::ofstream(dir_ / name, std::ios::binary) << bytes;
  }
  Result<Dataset> open(DataRequest request = {}) {
    request.source = "idx";
    request.dir = dir_.string();
    request.where = "x.toml: [data]";
    return open_dataset(request);
  }
  // The error message, with the folder's name replaced by DIR and without the fix; or "accepted".
  std::string error(DataRequest request = {}) {
    const auto data = open(std::move(request));
    if (data.ok()) return "accepted";
    std::string text = data.error().message();
    for (size_t at; (at = text.find(dir_.string())) != std::string::npos;) {
      text.replace(at, dir_.string().size(), "DIR");
    }
    return text.substr(0, text.find("\n  fix: "));
  }
  // The error for ten images and ten labels with one of the files replaced.
  std::string error_with(const std::string& name, const Bytes& bytes) {
    write("t10k-images-idx3-ubyte", images(10));
    write("t10k-labels-idx1-ubyte", labels(10));
    write(name, bytes);
    return error();
  }

  const Folder folder_;
  const fs::path dir_ = folder_.path();
};

constexpr const char* kImages = "t10k-images-idx3-ubyte";
constexpr const char* kLabels = "t10k-labels-idx1-ubyte";

TEST_F(IdxTest, SplitsOnePairNineToOneInFileOrder) {
  write(kImages, images(20));
  write(kLabels, labels(20));
  const auto data = open();
  ASSERT_TRUE(data.ok()) << data.error().message();
  EXPECT_EQ(data->train.features.dims(), (Dims{18, 2, 3, 1}));
  EXPECT_EQ(data->eval.features.dims(), (Dims{2, 2, 3, 1}));
  EXPECT_EQ(data->train.features.as<float>()[7], 7.0f / 255.0f);
  EXPECT_EQ(data->eval.labels.as<int32_t>()[0], 8);
  EXPECT_EQ(data->description,
            "idx (t10k-images-idx3-ubyte split 9:1): 18 + 2 of f32[2,3,1], 10 classes");
}

TEST_F(IdxTest, GzipIsTheSame) {
  write(kImages, images(20));
  write(kLabels, labels(20));
  const auto raw = open();
  ASSERT_TRUE(raw.ok());
  fs::remove(dir_ / kImages);
  fs::remove(dir_ / kLabels);
  write("t10k-images-idx3-ubyte.gz", gzip(images(20)));
  write("t10k-labels-idx1-ubyte.gz", gzip(labels(20).substr(0, 9)) + gzip(labels(20).substr(9)));
  const auto packed = open();
  ASSERT_TRUE(packed.ok()) << packed.error().message();
  EXPECT_EQ(packed->digest, raw->digest);
}

TEST_F(IdxTest, TrainAndHeldOutFiles) {
  write("train-images-idx3-ubyte", images(30));
  write("train-labels-idx1-ubyte", labels(30));
  write(kImages, images(10));
  write(kLabels, labels(10));
  const auto data = open({.train = 12, .eval = 5});
  ASSERT_TRUE(data.ok()) << data.error().message();
  EXPECT_EQ(data->train.labels.elements(), 12);
  EXPECT_EQ(data->eval.labels.elements(), 5);
  EXPECT_EQ(error({.train = 31}),
            "x.toml: [data]: data.train is 31; allowed: 1 to 30, or 0 for all of idx (train and "
            "t10k files)");
  EXPECT_EQ(error({.eval = 11}),
            "x.toml: [data]: data.eval is 11; allowed: 1 to 10, or 0 for all of idx (train and "
            "t10k files)");
}

TEST_F(IdxTest, ExplicitFiles) {
  write("a", images(10));
  write("b", labels(10));
  EXPECT_TRUE(open({.files = {"a", "b"}}).ok());
  EXPECT_EQ(error({.files = {"b", "a"}}),
            "x.toml: [data]: DIR/b: this file holds labels; expected images (magic 00 00 08 01, "
            "not 00 00 08 03)");
  EXPECT_EQ(error({.files = {"a", "a"}}),
            "x.toml: [data]: DIR/a: this file holds images; expected labels (magic 00 00 08 03, "
            "not 00 00 08 01)");
  EXPECT_EQ(error({.files = {"a"}}), "x.toml: [data]: data.files names 1 files; allowed: 2");
  EXPECT_EQ(error({.files = {"a", "c"}}),
            "x.toml: [data]: DIR/c: cannot open: No such file or directory");
}

TEST_F(IdxTest, MissingFilesSayWhatWasLookedFor) {
  EXPECT_EQ(error(),
            "x.toml: [data]: DIR: no pair of IDX files in this folder; looked for "
            "train-images-idx3-ubyte[.gz] with train-labels-idx1-ubyte[.gz], then "
            "t10k-images-idx3-ubyte[.gz] with t10k-labels-idx1-ubyte[.gz]");
  fs::remove_all(dir_);
  EXPECT_NE(error().find("DIR: no such folder; looked for"), std::string::npos);
}

TEST_F(IdxTest, DamagedFiles) {
  const Bytes good = images(10);
  const std::string at = std::string("x.toml: [data]: DIR/") + kImages + ": ";
  EXPECT_EQ(error_with(kImages, good.substr(0, 3)),
            at + "truncated: 3 bytes, an IDX header has at least 8");
  EXPECT_EQ(error_with(kImages, good.substr(0, 9)),
            at + "truncated in the header: found 9 of 16 bytes");
  EXPECT_EQ(error_with(kImages, good.substr(0, 70)),
            at + "truncated: the header declares 60 bytes of elements; the file has 54");
  EXPECT_EQ(error_with(kImages, good + "x"),
            at + "trailing bytes after the 60 that the header declares");
  EXPECT_EQ(
      error_with(kImages, "PK\x03\x04zip"),
      at +
          "not an IDX file: it begins with 50 4b 03 04; images begin with 00 00 08 03, labels with "
          "00 00 08 01");
  EXPECT_EQ(error_with(kImages, big_endian(0x0D03) + Bytes(100, 'x')),
            at + "the elements are f32 (type 0d); allowed: u8 (08)");
  EXPECT_EQ(error_with(kImages, big_endian(0x0802) + Bytes(100, 'x')),
            at + "the array has 2 dimensions; allowed: 3 or 4 (images)");
  EXPECT_EQ(error_with(kImages, images(0)), at + "the header declares [0,2,3]: no samples");
}

TEST_F(IdxTest, ImagesAndLabelsMustAgree) {
  EXPECT_EQ(error_with(kLabels, labels(9)), std::string("x.toml: [data]: DIR/") + kLabels +
                                                ": 10 images in DIR/" + kImages + ", but 9 labels");
  Bytes wrong = labels(10);
  wrong[8 + 4] = 11;
  EXPECT_EQ(error_with(kLabels, wrong),
            std::string("x.toml: [data]: DIR/") + kLabels +
                ": record 4: label 11; allowed: 0 to 9 (data.classes is 10)");
  write(kLabels, labels(10));
  EXPECT_EQ(error({.shape = {28, 28, 1}}),
            std::string("x.toml: [data]: DIR/") + kImages +
                ": the images are [2,3,1], but data.shape is [28,28,1]");
}

TEST_F(IdxTest, DamagedGzip) {
  const Bytes good = gzip(images(10));
  const std::string at = std::string("x.toml: [data]: DIR/") + kImages + ": damaged gzip file: ";
  EXPECT_EQ(error_with(kImages, good.substr(0, good.size() / 2)),
            at + "the gzip stream is cut short");
  EXPECT_EQ(error_with(kImages, good.substr(0, good.size() - 3)),
            at + "the gzip stream is cut short");
  Bytes crc = good;
  crc[crc.size() - 6] ^= 1;
  EXPECT_EQ(error_with(kImages, crc), at + "incorrect data check");
}

// A header that declares a huge size, and a small file that inflates to a huge one, must cost
// neither memory nor time.
TEST_F(IdxTest, Bombs) {
  const std::string at = std::string("x.toml: [data]: DIR/") + kImages + ": ";
  const Bytes huge =
      big_endian(0x0803) + big_endian(0xFFFFFFFF) + big_endian(0xFFFFFFFF) + big_endian(28);
  EXPECT_EQ(
      error_with(kImages, huge + "x"),
      at + "the header declares [4294967295,4294967295,28]; allowed: at most 2147483648 bytes");
  EXPECT_EQ(error_with(kImages,
                       big_endian(0x0803) + big_endian(2000000) + big_endian(28) + big_endian(28)),
            at + "truncated: the header declares 1568000000 bytes of elements; the file has 0");
  EXPECT_EQ(error_with(kImages, gzip(images(10) + Bytes(50 << 20, 'x'))),
            at + "trailing bytes after the 60 that the header declares");
}

TEST_F(IdxTest, RealMnist) {
  const char* set = std::getenv("TWINRUN_DATA");
  const fs::path dir = set != nullptr ? set : TWINRUN_SOURCE_DIR "/../shared/data/mnist";
  if (!fs::exists(dir / "t10k-images-idx3-ubyte.gz")) {
    GTEST_SKIP() << "no MNIST in " << dir
                 << ": set TWINRUN_DATA to the folder of t10k-images-idx3-ubyte.gz";
  }
  const auto data = open_dataset({.source = "idx", .dir = dir.string()});
  ASSERT_TRUE(data.ok()) << data.error().message();
  EXPECT_EQ(data->eval.features.dims().back(), 1);
  EXPECT_EQ(data->train.features.dims()[1], 28);
  if (!fs::exists(dir / "train-images-idx3-ubyte.gz") &&
      !fs::exists(dir / "train-images-idx3-ubyte")) {
    EXPECT_EQ(data->train.labels.elements(), 9000);
    EXPECT_EQ(data->eval.labels.elements(), 1000);
    EXPECT_EQ(data->train.labels.as<int32_t>()[0], 7);  // the well-known first test digit
  }
}

}  // namespace
}  // namespace twinrun
