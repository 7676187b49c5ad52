// Tests the data source tfrecord. TensorFlow wrote the good files (fixtures/make_fixtures.py). The
// bad ones are damaged copies, or records written here with a valid CRC and wrong content.
#include <limits>

#include "scenarios/data/record_reader.h"
#include "tests/scenarios/source_test.h"

namespace twinrun {
namespace {

std::string little_endian(uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> 8 * i);
  return out;
}

std::string framed(const std::string& record, uint64_t length) {
  const std::string head = little_endian(length, 8);
  return head + little_endian(data::masked_crc(head.data(), 8), 4) + record +
         little_endian(data::masked_crc(record.data(), record.size()), 4);
}
std::string framed(const std::string& record) { return framed(record, record.size()); }

// The part of Protocol Buffers' wire format that an Example needs.
std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 128; value >>= 7) out += static_cast<char>(value | 128);
  return out + static_cast<char>(value);
}
std::string field(int number, const std::string& content) {
  return varint(static_cast<uint64_t>(number) << 3 | 2) + varint(content.size()) + content;
}
std::string ints(const std::vector<int64_t>& values) {
  std::string packed;
  for (const int64_t value : values) packed += varint(static_cast<uint64_t>(value));
  return field(3, field(1, packed));
}
std::string floats(const std::vector<float>& values) {
  std::string packed(values.size() * 4, '\0');
  std::copy_n(reinterpret_cast<const char*>(values.data()), packed.size(), packed.data());
  return field(2, field(1, packed));
}
std::string bytes(const std::vector<std::string>& values) {
  std::string list;
  for (const std::string& value : values) list += field(1, value);
  return field(1, list);
}
std::string example(const std::vector<std::pair<std::string, std::string>>& features) {
  std::string map;
  for (const auto& [name, feature] : features) map += field(1, field(1, name) + field(2, feature));
  return field(1, map);
}
std::string pair(const std::string& features, const std::string& labels) {
  return framed(example({{"features", features}, {"labels", labels}}));
}

class TfrecordTest : public SourceTest {
 protected:
  static DataRequest fixture_request(const std::string& file) {
    return {.source = "tfrecord", .dir = kFixtures, .files = {file}, .classes = 3};
  }
  static DataRequest images(const std::string& file) {
    DataRequest r = fixture_request(file);
    r.feature = "image", r.label = "label", r.shape = {2, 2, 3};
    return r;
  }
  static DataRequest tokens(const std::string& file) {
    DataRequest r = fixture_request(file);
    r.vocabulary = 10, r.window = 5;
    return r;
  }
  // The error for a file with these bytes.
  std::string error_of(const std::string& content, DataRequest request) {
    write("a", content);
    request.dir = dir_.string();
    request.files = {"a"};
    return error(request);
  }
};

// Test vectors of CRC-32C in RFC 3720, B.4, masked as the TFRecord format specifies.
TEST(Crc, PublishedVectors) {
  const auto masked = [](uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8u; };
  EXPECT_EQ(data::masked_crc(std::string(32, '\0').data(), 32), masked(0x8a9136aa));
  EXPECT_EQ(data::masked_crc(std::string(32, '\xff').data(), 32), masked(0x62a8ab43));
  std::string rising;
  for (int i = 0; i < 32; ++i) rising += static_cast<char>(i);
  EXPECT_EQ(data::masked_crc(rising.data(), 32), masked(0x46dd794e));
}

TEST_F(TfrecordTest, BytesOfTensorFlow) {
  const Dataset raw = opened(images("images.tfrecord"));
  EXPECT_EQ(raw.description,
            "tfrecord (images.tfrecord split 9:1): 18 + 2 of f32[2,2,3], 3 classes");
  expect_samples(raw.train, 0, {2, 2, 3});
  expect_samples(raw.eval, 18, {2, 2, 3});
  EXPECT_EQ(opened(images("images.tfrecord.gz")).digest, raw.digest);
}

TEST_F(TfrecordTest, SeveralFilesAndHeldOutOnes) {
  DataRequest request = images("images.tfrecord");
  request.files = {"images.tfrecord", "images.tfrecord.gz"};
  request.eval_files = {"images.tfrecord"};
  const Dataset data = opened(request);
  EXPECT_EQ(data.train.count(), 40);
  expect_samples(data.train.rows(0, 20), 0, {2, 2, 3});
  expect_samples(data.train.rows(20, 40), 0, {2, 2, 3});
  expect_samples(data.eval, 0, {2, 2, 3});
  // Record numbers in errors count from the start of their own file.
  write("first", fixture("images.tfrecord"));
  write("second",
        framed(example({{"image", bytes({std::string(12, 'x')})}, {"label", ints({0})}})) +
            framed(example({{"image", bytes({std::string(12, 'x')})}, {"label", ints({7})}})));
  request = images("");
  request.dir = dir_.string();
  request.files = {"first", "second"};
  EXPECT_EQ(error(request), "DIR/second: record 1: label 7; allowed: 0 to 2 (data.classes is 3)");
}

TEST_F(TfrecordTest, FloatsOfTensorFlow) {
  const Dataset data = opened(fixture_request("numbers.tfrecord"));
  EXPECT_EQ(data.description, "tfrecord (numbers.tfrecord split 9:1): 18 + 2 of f32[3], 3 classes");
  expect_samples(data.train, 0, {3}, fixture_number);
}

TEST_F(TfrecordTest, TokensArePaddedAndWeighted) {
  const Dataset data = opened(tokens("tokens.tfrecord"));
  EXPECT_EQ(data.description,
            "tfrecord (tokens.tfrecord split 9:1): 18 + 2 of i32[5], 3 classes, vocabulary 10");
  expect_tokens(data.train, 0, false);
  expect_tokens(data.eval, 18, false);
  const Dataset tagged = opened(tokens("tagged.tfrecord"));
  // Record 0 has one token and one label, so a longer record must show that labels are per token.
  expect_tokens(tagged.train, 0, true);
}

TEST_F(TfrecordTest, UnequalLengthsNeedAWindow) {
  DataRequest request = tokens("tokens.tfrecord");
  request.window = 0;
  EXPECT_EQ(error(request),
            "DIR/tokens.tfrecord: record 1: feature \"features\" has 2 tokens; allowed: 1, because "
            "a sample is [1] like record 0");
  request.window = 4;
  EXPECT_EQ(error(request),
            "DIR/tokens.tfrecord: record 4: 5 tokens; allowed: up to 4 (data.window)");
  request.window = 5;
  request.vocabulary = 9;
  EXPECT_EQ(error(request),
            "DIR/tokens.tfrecord: record 1, element 1: token 9; allowed: 0 to 8 "
            "(data.vocabulary is 9)");
}

TEST_F(TfrecordTest, WrongFeatures) {
  DataRequest request = images("images.tfrecord");
  request.feature = "imag";
  EXPECT_EQ(error(request),
            "DIR/images.tfrecord: record 0: no feature \"imag\" (data.feature); the "
            "record has: id, image, label");
  request = images("images.tfrecord");
  request.label = "id";
  EXPECT_EQ(error(request),
            "DIR/images.tfrecord: record 0: label \"id\" is a bytes_list; allowed: "
            "an int64_list with one class");
  request = images("images.tfrecord");
  request.shape = {2, 2, 1};
  EXPECT_EQ(error(request),
            "DIR/images.tfrecord: record 0: feature \"image\" has 12 bytes; allowed: 4, because a "
            "sample is [2,2,1] (data.shape)");
  request.shape = {};
  EXPECT_EQ(error(request),
            "DIR/images.tfrecord: record 0: data.shape is not set, and raw bytes have no shape");
  request = images("png.tfrecord");
  EXPECT_EQ(error(request),
            "DIR/png.tfrecord: record 0: feature \"image\" is a PNG image; allowed: raw u8");
  request = images("images.tfrecord");
  request.vocabulary = 10;
  request.shape = {};
  EXPECT_EQ(error(request),
            "DIR/images.tfrecord: record 0: feature \"image\" is a bytes_list; expected token ids, "
            "an int64_list of at least one, because data.vocabulary is set");
}

TEST_F(TfrecordTest, WrongNumbers) {
  const DataRequest request = fixture_request("");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(error_of(pair(floats({1, 2}), ints({0})) + pair(floats({1, nan}), ints({0})), request),
            "DIR/a: record 1, element 1: nan is not a finite number");
  EXPECT_EQ(error_of(pair(ints({1, 1 << 25}), ints({0})), request),
            "DIR/a: record 0: 33554432 is not exactly representable in float32; allowed: -16777216 "
            "to 16777216");
  EXPECT_EQ(error_of(pair(floats({1}), ints({-1})), request),
            "DIR/a: record 0: label -1; allowed: 0 to 2 (data.classes is 3)");
  EXPECT_EQ(error_of(pair(floats({1}), ints({int64_t{1} << 32})), request),
            "DIR/a: record 0: label 4294967296; allowed: 0 to 2 (data.classes is 3)");
  EXPECT_EQ(
      error_of(pair(floats({1}), ints({0, 1})), request),
      "DIR/a: record 0: label \"labels\" is an int64_list of 2 values; allowed: an int64_list "
      "with one class");
  EXPECT_EQ(error_of(pair(floats({1}), ints({0})) + pair(floats({1, 2}), ints({0})), request),
            "DIR/a: record 1: feature \"features\" has 2 numbers; allowed: 1, because a sample is "
            "[1] like "
            "record 0");
  EXPECT_EQ(error_of(pair(floats({}), ints({0})), request),
            "DIR/a: record 0: feature \"features\" has 0 numbers; allowed: 0, because a sample is "
            "[0] like "
            "record 0");
  EXPECT_EQ(error_of(pair(floats({1}), ints({0})), request),
            "DIR/a: 1 sample cannot be split into train and eval");
  EXPECT_EQ(error_of(pair(ints({}), ints({0})), tokens("")),
            "DIR/a: record 0: feature \"features\" is an int64_list of no values; expected token "
            "ids, an int64_list of at least one, because data.vocabulary is set");
}

TEST_F(TfrecordTest, NotTfrecords) {
  const DataRequest request = fixture_request("");
  EXPECT_EQ(error_of("", request), "DIR/a: no records in this file");
  EXPECT_EQ(error_of("PK\x03\x04 this is a zip", request),
            "DIR/a: record 0: not a TFRecord file: the CRC of the first length is wrong");
  EXPECT_EQ(error_of("short", request),
            "DIR/a: record 0: truncated: found 5 of the 12 bytes before a record");
  EXPECT_EQ(error_of(framed("\x0a\xff\xff\xff\xff\x0f"), request),
            "DIR/a: record 0: the record is not a tf.train.Example");
  EXPECT_EQ(error_of(framed(""), request), "DIR/a: record 0: the record has no features");
}

// A record length beyond the end of the file must cost neither memory nor time, even with a valid
// CRC.
TEST_F(TfrecordTest, AbsurdLengths) {
  const DataRequest request = fixture_request("");
  EXPECT_EQ(error_of(framed("x", ~uint64_t{0}), request),
            "DIR/a: record 0: a record of 18446744073709551615 bytes; allowed: up to 268435456");
  EXPECT_EQ(error_of(framed("x", 200'000'000), request),
            "DIR/a: record 0: truncated: found 5 bytes of a record of 200000000 and its CRC");
}

// Every bit of a record is either covered by one of its two CRCs or part of one, so all damage
// shows.
TEST_F(TfrecordTest, NoDamagedBytePasses) {
  const std::string good = fixture("tokens.tfrecord");
  ASSERT_GT(good.size(), 1000u);
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
    const std::string message = error_of(bad, tokens(""));
    ASSERT_NE(message.find("DIR/a: record "), std::string::npos) << at << ": " << message;
    ASSERT_NE(message.find("CRC"), std::string::npos) << at << ": " << message;
  }
  std::string bad = good;
  bad.back() = static_cast<char>(bad.back() ^ 1);
  EXPECT_EQ(error_of(bad, tokens("")), "DIR/a: record 19: the CRC of the record is wrong");
}

TEST_F(TfrecordTest, CutShort) {
  const std::string good = fixture("tokens.tfrecord");
  int whole = 0;
  for (size_t size = 1; size < good.size(); ++size) {
    const std::string message = error_of(good.substr(0, size), tokens(""));
    if (message.find("truncated") != std::string::npos) continue;
    ++whole;  // the cut fell between two records, so the file is only shorter
    EXPECT_TRUE(message == "accepted" || message.find("cannot be split") != std::string::npos)
        << size << ": " << message;
  }
  EXPECT_EQ(whole, kFixtureSamples - 1);
}

// Some bytes of gzip's header have no meaning here. All other damage is found by gzip's CRC, its
// length or the CRCs of the records.
TEST_F(TfrecordTest, DamagedGzip) {
  const std::string good = fixture("images.tfrecord.gz");
  const Digest digest = opened(images("images.tfrecord")).digest;
  size_t harmless = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
    write("a", bad);
    DataRequest request = images("a");
    request.dir = dir_.string();
    const auto data = open(request);
    if (data.ok()) {
      EXPECT_EQ(data->digest, digest) << at;
      ++harmless;
    }
  }
  EXPECT_LE(harmless, 10u) << "a header has ten bytes";
}

// The length 0x88b1f makes an uncompressed file begin with the magic number of gzip.
TEST_F(TfrecordTest, ALengthThatLooksLikeGzip) {
  constexpr size_t kLength = 0x88b1f;
  const std::string label = ints({1});
  // Pixels pad the record to that length.
  size_t pixels = kLength - 100;
  const auto record = [&] {
    return example({{"features", bytes({std::string(pixels, 'p')})}, {"labels", label}});
  };
  pixels += kLength - record().size();
  ASSERT_EQ(record().size(), kLength);
  write("a", framed(record()) + framed(record()));
  DataRequest request = fixture_request("a");
  request.dir = dir_.string();
  request.shape = {static_cast<int64_t>(pixels)};
  EXPECT_EQ(opened(request).train.count(), 1);
}

}  // namespace
}  // namespace twinrun
