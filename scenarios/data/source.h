// Where samples come from, inside data/: each source fills the same struct; dataset.cc cuts it to
// what was asked.
//
//   TWINRUN_ASSIGN(Pool pool, digits_pool(request));    // or idx_pool(request)
//   pool.train.features;                                // f32[n, h, w, c]; n is at least what was
//   asked
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/base/result.h"
#include "scenarios/data/feed.h"

namespace twinrun::data {

struct Pool {
  Samples train, eval;
  std::string origin;  // "digits", "idx (mnist/t10k-images-idx3-ubyte.gz, split 9:1)"
};

inline constexpr int64_t kDigitsTrain = 4096;
inline constexpr int64_t kDigitsEval = 1024;
inline constexpr int64_t kDigitsMost = 1'000'000;  // 3 GB of pixels

Result<Pool> digits_pool(const DataRequest& request);
Result<Pool> idx_pool(const DataRequest& request);

// u8 -> u8 / 255 in binary32.
void normalize(const uint8_t* pixels, int64_t count, float* out);

// The digit sample `id` of class `label` (0 to 9): 28 x 28 pixels, a function of (seed, id, label)
// alone.
void draw_digit(uint64_t seed, uint32_t id, int label, uint8_t* pixels);

// "a: b", or the one that is not empty.
std::string join_where(const std::string& prefix, const std::string& place);

}  // namespace twinrun::data
