// Samples and the order in which training sees them. What the engines get is decided here alone, so that every
// engine sees the same bits: (source) -> dataset -> split -> shuffled order per epoch -> batches.
//
//   auto data = open_dataset(spec, seed);              // DataSpec; errors name file and place
//   Feed feed(*data, {.batch = 256, .seed = 7, ...});
//   auto batch = feed.batch(step);                     // any step, in any order: a function of (seed, step)
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "program/base/digest.h"
#include "program/base/result.h"
#include "program/base/tensor.h"

namespace twinrun {

struct Samples {
  Tensor features;  // f32[n, ...], in [0, 1] for u8 sources (u8 / 255 in binary32); or
                    // i32[n, T]: token ids
  Tensor labels;    // i32[n], or i32[n, T]: one per token
  Tensor weights;   // f32[n, T]: 1 a real token, 0 padding; not valid() where all are real

  int64_t count() const { return labels.valid() ? labels.dims()[0] : 0; }
  // Samples [begin, end), sharing storage.
  Samples rows(int64_t begin, int64_t end) const;
};

struct Dataset {
  Samples train, eval;
  int64_t classes = 0;
  int64_t vocabulary = 0;   // token ids are 0..vocabulary-1; 0 where features are f32
  std::string description;  // "digits: 4096 + 1024 of f32[28,28,1], 10 classes"
  Digest digest;            // of all tensors
};

struct DataRequest {  // mirrors [data] of the scenario; kept apart so that data/ needs no scenario
  std::string source = "digits";
  std::string dir;
  std::vector<std::string> files, eval_files;
  std::string feature = "features", label = "labels", weight;
  std::string eval_feature, eval_label, eval_weight;
  std::string tokens = "bytes";
  int64_t window = 0;
  int64_t vocabulary = 0;
  Dims shape;
  int64_t classes = 10;
  int64_t train = 0, eval = 0;
  uint64_t seed = 0;
  std::string where;  // prefix of error locations, e.g. "mnist_quick.toml: [data]"
};

Result<Dataset> open_dataset(const DataRequest& request);

struct Batch {
  Tensor features;    // f32[batch, ...] or i32[batch, T]
  Tensor labels;      // i32[batch] or i32[batch, T]
  Tensor weights;     // f32[batch, T], or not valid()
  Tensor sample_ids;  // i32[batch]: position in the global batch, 0..batch-1 (random ops key on it)
};

struct FeedOptions {
  int64_t batch = 0;
  uint64_t seed = 0;
  bool shuffle = true;
  bool drop_remainder = true;
  bool repeat = true;
  int64_t prefetch = 2;
};

// Not thread-safe; prefetching is an inner matter that cannot change what is returned.
class Feed {
 public:
  Feed(const Samples& samples, FeedOptions options);
  ~Feed();
  // Steps that the data lasts without `repeat`; INT64_MAX with it.
  int64_t steps_available() const;
  // "data ends after step N-1; set data.repeat = true" when step is beyond it.
  Result<Batch> batch(int64_t step);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace twinrun
