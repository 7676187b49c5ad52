// Fixture for tests of data sources that read files: a temporary folder, files as bytes, a data set
// opened from it or its error as text, and the formulas of fixtures/make_fixtures.py.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "scenarios/data/feed.h"
#include "tests/support/folder.h"

namespace twinrun {

inline const std::string kFixtures = TWINRUN_SOURCE_DIR "/tests/scenarios/fixtures";
inline constexpr int kFixtureSamples = 20;

inline float fixture_pixel(int i, int k) {
  return static_cast<float>((7 * i + 13 * k) % 256) / 255.0f;
}
inline float fixture_number(int i, int k) { return static_cast<float>(i - k) / 8.0f; }
inline int fixture_length(int i) { return 1 + i % 5; }
inline int fixture_token(int i, int t) {
  return t < fixture_length(i) ? 1 + (5 * i + 3 * t) % 9 : 0;
}
inline int fixture_label(int i) { return i % 3; }

// Expects that `s` holds the fixtures' samples from number `first` on: their pixels (or numbers)
// and their labels.
inline void expect_samples(const Samples& s, int first, const Dims& shape,
                           float (*value)(int, int) = fixture_pixel) {
  Dims dims = shape;
  dims.insert(dims.begin(), s.count());
  ASSERT_EQ(s.features.type(), (TensorType{DType::kF32, dims}));
  const int each = static_cast<int>(s.features.elements() / s.count());
  for (int i = 0; i < static_cast<int>(s.count()); ++i) {
    for (int k = 0; k < each; ++k) {
      ASSERT_EQ(s.features.as<float>()[static_cast<size_t>(i * each + k)], value(first + i, k))
          << i << ", " << k;
    }
    ASSERT_EQ(s.labels.as<int32_t>()[static_cast<size_t>(i)], fixture_label(first + i)) << i;
  }
}

// Expects that `s` holds the fixtures' token sequences, padded to five tokens, with their weights.
// `label_each`: labels are per token.
inline void expect_tokens(const Samples& s, int first, bool label_each) {
  const TensorType type{DType::kI32, {s.count(), 5}};
  ASSERT_EQ(s.features.type(), type);
  ASSERT_EQ(s.labels.type(), label_each ? type : (TensorType{DType::kI32, {s.count()}}));
  ASSERT_EQ(s.weights.type(), (TensorType{DType::kF32, {s.count(), 5}}));
  for (int i = 0; i < static_cast<int>(s.count()); ++i) {
    for (int t = 0; t < 5; ++t) {
      const auto at = static_cast<size_t>(i * 5 + t);
      const int token = fixture_token(first + i, t);
      ASSERT_EQ(s.features.as<int32_t>()[at], token) << i << ", " << t;
      ASSERT_EQ(s.weights.as<float>()[at], t < fixture_length(first + i) ? 1.0f : 0.0f);
      if (label_each) {
        ASSERT_EQ(s.labels.as<int32_t>()[at], token % 3);
      }
    }
    if (!label_each) {
      ASSERT_EQ(s.labels.as<int32_t>()[static_cast<size_t>(i)], fixture_label(first + i));
    }
  }
}

class SourceTest : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& bytes) const {
    std::filesystem::remove(dir_ / name);  // overwriting a file would wait for the disk
    std::ofstream(dir_ / name, std::ios::binary | std::ios::trunc) << bytes;
  }
  static std::string fixture(const std::string& name) {
    std::ifstream in(std::filesystem::path(kFixtures) / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  // Opens from the temporary folder, or from request.dir if that is set.
  Result<Dataset> open(DataRequest request) const {
    if (request.dir.empty()) request.dir = dir_.string();
    request.where = "x.toml: [data]";
    return open_dataset(request);
  }
  Dataset opened(const DataRequest& request) const {
    auto data = open(request);
    EXPECT_TRUE(data.ok()) << data.error().message();
    return data.ok() ? *std::move(data) : Dataset{};
  }
  // The error as "where: what", without the scenario's location and with the folder as DIR; or
  // "accepted".
  std::string error(const DataRequest& request) const {
    const auto data = open(request);
    if (data.ok()) return "accepted";
    std::string text = data.error().where + ": " + data.error().what;
    for (const std::string& folder : {dir_.string(), kFixtures}) {
      for (size_t at; (at = text.find(folder)) != std::string::npos;) {
        text.replace(at, folder.size(), "DIR");
      }
    }
    const std::string scenario = "x.toml: [data]: ";
    EXPECT_TRUE(text.starts_with(scenario)) << text;
    return text.substr(std::min(scenario.size(), text.size()));
  }

  const Folder folder_;
  const std::filesystem::path dir_ = folder_.path();
};

}  // namespace twinrun
