// Tests the data source cifar10: records of CIFAR-10's binary version.
#include "tests/scenarios/source_test.h"

namespace twinrun {
namespace {

// Records of the binary version: a label, then planes of red, green and blue.
std::string records(int first, int count) {
  std::string out;
  for (int i = first; i < first + count; ++i) {
    out += static_cast<char>(i % 10);
    for (int plane = 0; plane < 3; ++plane) {
      for (int at = 0; at < 1024; ++at) out += static_cast<char>(i + 50 * plane + at);
    }
  }
  return out;
}

class Cifar10Test : public SourceTest {
 protected:
  DataRequest request_{.source = "cifar10"};
};

TEST_F(Cifar10Test, PlanesBecomeChannels) {
  write("data_batch_1.bin", records(0, 20));
  write("data_batch_2.bin", records(20, 5));
  write("test_batch.bin", records(100, 7));
  const Dataset data = opened(request_);
  EXPECT_EQ(data.description,
            "cifar10 (2 data_batch files and test_batch): 25 + 7 of f32[32,32,3], 10 classes");
  EXPECT_EQ(data.vocabulary, 0);
  const auto value = [](const Samples& s, int64_t n, int64_t y, int64_t x, int64_t c) {
    return s.features.as<const float>()[static_cast<size_t>(((n * 32 + y) * 32 + x) * 3 + c)];
  };
  for (const int64_t n : {0, 3, 19, 20, 24}) {
    EXPECT_EQ(data.train.labels.as<int32_t>()[static_cast<size_t>(n)], n % 10);
    for (int64_t c = 0; c < 3; ++c) {
      for (const int64_t y : {0, 1, 31}) {
        for (const int64_t x : {0, 1, 31}) {
          EXPECT_EQ(value(data.train, n, y, x, c),
                    static_cast<float>((n + 50 * c + 32 * y + x) % 256) / 255.0f);
        }
      }
    }
  }
  EXPECT_EQ(value(data.eval, 6, 0, 0, 0), 106.0f / 255.0f);
}

TEST_F(Cifar10Test, OneKindOfFileIsSplit) {
  write("test_batch.bin", records(0, 20));
  EXPECT_EQ(opened(request_).description,
            "cifar10 (test_batch.bin split 9:1): 18 + 2 of f32[32,32,3], 10 classes");
}

TEST_F(Cifar10Test, WrongFiles) {
  EXPECT_EQ(error(request_),
            "DIR: no CIFAR-10 files in this folder; looked for data_batch_1.bin[.gz] to "
            "data_batch_5.bin[.gz] and test_batch.bin[.gz]");
  const auto with = [&](const std::string& bytes) {
    write("test_batch.bin", bytes);
    return error(request_);
  };
  EXPECT_EQ(with(""),
            "DIR/test_batch.bin: record 0: truncated: found 0 of 3073 bytes (a label, then 3 x "
            "1024 pixels)");
  EXPECT_EQ(
      with(records(0, 3).substr(0, 9218)),
      "DIR/test_batch.bin: record 2: truncated: found 3072 of 3073 bytes (a label, then 3 x 1024 "
      "pixels)");
  std::string bad = records(0, 3);
  bad[3073] = 77;
  EXPECT_EQ(with(bad),
            "DIR/test_batch.bin: record 1: label 77; allowed: 0 to 9 (data.classes is 10)");
  EXPECT_EQ(with(records(0, 1)),
            "DIR/test_batch.bin: 1 sample cannot be split into train and eval");
  request_.shape = {28, 28, 1};
  EXPECT_EQ(error(request_), "data.shape is [28,28,1]; source cifar10 has [32,32,3]");
}

}  // namespace
}  // namespace twinrun
