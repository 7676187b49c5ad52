// Tests the data sources text (bytes and characters of files) and text_synthetic.
#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <set>

#include "scenarios/data/windows.h"
#include "tests/scenarios/source_test.h"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

class TextTest : public SourceTest {
 protected:
  DataRequest request_{.source = "text", .files = {"a.txt"}, .window = 4};
};

std::vector<int32_t> values(const Tensor& t) {
  const auto span = t.as<const int32_t>();
  return {span.begin(), span.end()};
}

// Every label is the next token, windows do not overlap, and the held-out tenth begins where the
// training part ends.
TEST_F(TextTest, WindowsOfBytes) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += static_cast<char>(i * 37);
  write("a.txt", text);
  const Dataset data = opened(request_);
  EXPECT_EQ(data.description, "text (a.txt, bytes): 22 + 2 of i32[4], 256 classes");
  EXPECT_EQ(data.vocabulary, 256);
  EXPECT_EQ(data.classes, 256);
  EXPECT_FALSE(data.train.weights.valid());
  EXPECT_EQ(data.train.labels.type(), (TensorType{DType::kI32, {22, 4}}));
  for (size_t i = 0; i < 88; ++i) {
    EXPECT_EQ(data.train.features.as<int32_t>()[i], static_cast<uint8_t>(i * 37));
    EXPECT_EQ(data.train.labels.as<int32_t>()[i], static_cast<uint8_t>((i + 1) * 37));
  }
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(data.eval.features.as<int32_t>()[i], static_cast<uint8_t>((90 + i) * 37));
    EXPECT_EQ(data.eval.labels.as<int32_t>()[i], static_cast<uint8_t>((91 + i) * 37));
  }
}

TEST_F(TextTest, CharactersAreRankedByCodePoint) {
  std::string text;
  for (int i = 0; i < 20; ++i) text += "z\u00e9a\U0001F600";  // 20 times z e-acute a, an emoji
  write("a.txt", text);
  request_.tokens = "characters";
  const Dataset data = opened(request_);
  EXPECT_EQ(data.description, "text (a.txt, characters): 17 + 1 of i32[4], 4 classes");
  EXPECT_EQ(values(data.train.features.rows(0, 1).clone()), (std::vector<int32_t>{1, 2, 0, 3}));
  EXPECT_EQ(values(data.train.labels.rows(0, 1).clone()), (std::vector<int32_t>{2, 0, 3, 1}));
}

TEST_F(TextTest, Refused) {
  write("a.txt", std::string(40, 'x'));
  EXPECT_EQ(
      error(request_),
      "DIR/a.txt: the held-out tenth: found 4 tokens; a window of 4 and the token after it need 5");
  write("a.txt", "");
  EXPECT_EQ(error(request_),
            "DIR/a.txt: the first nine tenths: found 0 tokens; a window of 4 and the token after "
            "it need 5");
  request_.window = 0;
  EXPECT_EQ(error(request_), "data.window is 0; allowed: at least 1");
  request_ = {.source = "text", .files = {"b.txt"}, .window = 4};
  EXPECT_EQ(error(request_), "DIR/b.txt: cannot open: No such file or directory");
  request_.files = {};
  EXPECT_EQ(error(request_), "data.files names 0 files; allowed: 1");
}

TEST_F(TextTest, OnlyUtf8HasCharacters) {
  request_.tokens = "characters";
  const auto with = [&](const std::string& bytes) {
    write("a.txt", "line one\nl" + bytes);
    return error(request_);
  };
  const std::string at = "DIR/a.txt: line 2: byte 10 ";
  EXPECT_EQ(with("\xff"), at + "(ff) is not UTF-8");
  EXPECT_EQ(with("\x80"), at + "(80) is not UTF-8");              // a continuation alone
  EXPECT_EQ(with("\xc3"), at + "(c3) is not UTF-8");              // cut short
  EXPECT_EQ(with("\xc0\xaf"), at + "(c0) is not UTF-8");          // overlong
  EXPECT_EQ(with("\xe0\x80\xaf"), at + "(e0) is not UTF-8");      // overlong
  EXPECT_EQ(with("\xed\xa0\x80"), at + "(ed) is not UTF-8");      // a surrogate
  EXPECT_EQ(with("\xf4\x90\x80\x80"), at + "(f4) is not UTF-8");  // beyond U+10FFFF
  EXPECT_EQ(with("\xe2\x82(" + std::string(40, 'x')), at + "(e2) is not UTF-8");
}

// The first and last code points of each length of UTF-8 sequence.
TEST(CodePoints, BoundariesOfLengths) {
  const auto points = data::code_points(
      "\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f"
      "\xbf\xbf");
  ASSERT_TRUE(points.ok()) << points.error().message();
  EXPECT_EQ(*points, (std::vector<int32_t>{0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF,
                                           0x10000, 0x10FFFF}));
}

TEST(Text, TinyShakespeare) {
  const char* set = std::getenv("TWINRUN_TEXT");
  const fs::path path =
      set != nullptr ? set : TWINRUN_SOURCE_DIR "/../shared/data/tinyshakespeare/input.txt";
  if (!fs::exists(path)) {
    GTEST_SKIP() << "no tiny Shakespeare at " << path << ": set TWINRUN_TEXT to its input.txt";
  }
  const auto data = open_dataset({.source = "text",
                                  .dir = path.parent_path().string(),
                                  .files = {path.filename().string()},
                                  .tokens = "characters",
                                  .window = 64});
  ASSERT_TRUE(data.ok()) << data.error().message();
  EXPECT_EQ(data->vocabulary, 65) << "the well-known number of its characters";
  // Of 1,115,394 characters, 1,003,854 are for training and 111,540 are held out.
  EXPECT_EQ(data->train.count(), (1'003'854 - 1) / 64);
  EXPECT_EQ(data->eval.count(), (111'540 - 1) / 64);
  // "First" as ranks: upper-case letters begin at 13, lower-case letters at 39.
  EXPECT_EQ(values(data->train.features.at(0, {DType::kI32, {5}}).clone()),
            (std::vector<int32_t>{18, 47, 56, 57, 58}));
}

DataRequest synthetic(int64_t train, int64_t eval, int64_t window, uint64_t seed = 0) {
  return {.source = "text_synthetic", .window = window, .train = train, .eval = eval, .seed = seed};
}

// The characters must be the same on every machine. A change here changes every run on them.
// fixtures/procedural.py computes the digest independently.
TEST(TextSynthetic, GoldenDigest) {
  const auto data = open_dataset(synthetic(500, 100, 64));
  ASSERT_TRUE(data.ok()) << data.error().message();
  EXPECT_EQ(data->description, "text_synthetic: 500 + 100 of i32[64], 26 classes");
  EXPECT_EQ(data->vocabulary, 26);
  EXPECT_EQ(data->digest.hex(), "f93144b83275baa478a0c62a5605cea9");
  EXPECT_NE(open_dataset(synthetic(500, 100, 64, 1))->digest, data->digest);
}

TEST(TextSynthetic, OneTextWhateverTheWindows) {
  const auto large = open_dataset(synthetic(64, 32, 32)),
             small = open_dataset(synthetic(16, 8, 64));
  ASSERT_TRUE(large.ok() && small.ok());
  const auto a = values(large->train.features), b = values(small->train.features);
  EXPECT_TRUE(std::equal(b.begin(), b.end(), a.begin()));
  const auto c = values(large->eval.features), d = values(small->eval.features);
  EXPECT_TRUE(std::equal(d.begin(), d.end(), c.begin()));
  EXPECT_FALSE(std::equal(d.begin(), d.end(), a.begin())) << "held-out sentences are others";
  for (size_t i = 0; i + 1 < b.size(); ++i) {
    EXPECT_EQ(small->train.labels.as<int32_t>()[i], b[i + 1]);
  }
  EXPECT_EQ(std::set<int32_t>(a.begin(), a.end()).size(), 26u) << "every token occurs";
}

TEST(TextSynthetic, Refused) {
  EXPECT_EQ(open_dataset(synthetic(1'000'000, 1, 1 << 20)).error().what,
            "data.window is 1048576; allowed with so many samples: 1 to 268");
  EXPECT_FALSE(open_dataset(synthetic(10, 10, 0)).ok());
  EXPECT_FALSE(open_dataset(synthetic(1'000'001, 10, 4)).ok());
}

}  // namespace
}  // namespace twinrun
