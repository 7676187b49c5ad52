// Samples as read from a file, before any check. to_samples checks them, in the same way for all
// file sources, and makes Samples of them.
//
//   RawSamples raw{.count = n, .sample = {28, 28, 1}, .numbers = ..., .labels = ...};
//   const Place place = [&](Part, int64_t i) { return fmt::format("a: record {}", i); };
//   TWINRUN_ASSIGN(Samples s, to_samples(request, raw, place));
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "program/base/result.h"
#include "scenarios/data/feed.h"

namespace twinrun::data {

inline constexpr int64_t kMaxElements = int64_t{1} << 28;  // of one tensor: 1 GiB

struct RawSamples {
  int64_t count = 0;
  Dims sample;                  // one sample's shape; [T] for tokens
  std::vector<float> numbers;   // count x sample, or
  std::vector<uint8_t> pixels;  // u8 numbers, to be divided by 255, or
  std::vector<int64_t> tokens;  // count x T
  std::vector<int64_t> labels;  // count, or count x T
  std::vector<float> weights;   // count x T, or none
};

enum class Part : uint8_t { kFeatures, kLabels, kWeights };
// The location of that part of sample i in the file, for messages.
using Place = std::function<std::string(Part, int64_t)>;

// Asserts that the sizes agree, which the caller must ensure. Checks that numbers are finite,
// tokens in 0..data.vocabulary-1, labels in 0..data.classes-1, and weights 0 or 1 with at least one
// 1 in every sample. The error names the sample by `place`. Labels of padding must be valid too.
Result<Samples> to_samples(const DataRequest& request, const RawSamples& raw, const Place& place);

// Sources accept integers other than u8 as numbers up to this magnitude: binary32 holds them
// exactly.
constexpr int64_t kMaxExact = int64_t{1} << 24;

}  // namespace twinrun::data
