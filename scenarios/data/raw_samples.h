// Samples as a file gave them, before anything is believed; one check for every file source.
//
//   RawSamples raw{.count = n, .sample = {28, 28, 1}, .numbers = ..., .labels = ...};
//   TWINRUN_ASSIGN(Samples s, to_samples(request, raw, [&](Part, int64_t i) { return "a: record 7"; }));
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "program/base/result.h"
#include "scenarios/data/feed.h"

namespace twinrun::data {

inline constexpr int64_t kMostElements = int64_t{1} << 28;  // of one tensor: 1 GiB

struct RawSamples {
  int64_t count = 0;
  Dims sample;                  // one sample's shape; of tokens [T]
  std::vector<float> numbers;   // count x sample, or
  std::vector<uint8_t> pixels;  // u8 numbers, to be divided by 255, or
  std::vector<int64_t> tokens;  // count x T
  std::vector<int64_t> labels;  // count, or count x T
  std::vector<float> weights;   // count x T, or none
};

enum class Part : uint8_t { kFeatures, kLabels, kWeights };
// Where the file has that part of sample i.
using Place = std::function<std::string(Part, int64_t)>;

// Checks the sizes' agreement (an assertion of the caller's), that numbers are finite, tokens in
// 0..data.vocabulary-1, labels in 0..data.classes-1, weights 0 or 1 with some 1 in every sample.
// The error names the sample by `place`. Labels of padding must be valid too.
Result<Samples> to_samples(const DataRequest& request, const RawSamples& raw, const Place& place);

// u8 / 255; other integers where binary32 holds them.
constexpr int64_t kMostExact = int64_t{1} << 24;

}  // namespace twinrun::data
