// Samples and the order in which training sees them. What the engines get is decided here alone, so that every
// engine sees the same bits: (source) -> dataset -> split -> shuffled order per epoch -> decoded -> batches.
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
#include "scenarios/data/pipeline_counters.h"

namespace twinrun {

struct Samples {
  Tensor features;  // f32[n, ...], in [0, 1] for u8 sources (u8 / 255 in binary32); or
                    // i32[n, T]: token ids; or, not yet decoded, a byte for each number (pred)
  Tensor labels;    // i32[n], or i32[n, T]: one per token
  Tensor weights;   // f32[n, T]: 1 a real token, 0 padding; not valid() where all are real

  int64_t count() const { return labels.valid() ? labels.dims()[0] : 0; }
  // Samples [begin, end), sharing storage.
  Samples rows(int64_t begin, int64_t end) const;
  // Bytes that a Feed divides by 255 as it takes them (data.cache = "none").
  bool encoded() const { return features.valid() && features.dtype() == DType::kPred; }
  // What a batch holds of them: f32 or i32.
  DType dtype() const { return encoded() ? DType::kF32 : features.dtype(); }
  // All of them decoded; themselves, sharing storage, where they are.
  Samples decoded() const;
};

struct Dataset {
  Samples train, eval;
  int64_t classes = 0;
  int64_t vocabulary = 0;          // token ids are 0..vocabulary-1; 0 where features are f32
  std::string description;         // "digits: 4096 + 1024 of f32[28,28,1], 10 classes"
  Digest digest;                   // of all tensors, decoded
  PipelineCounters opening;        // its read and cache
  std::vector<std::string> notes;  // what became of the cache file, for people
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
  int64_t cycle_length = 1;  // files whose samples take turns
  std::string cache =
      "memory";       // none: bytes stay as they are; memory: decoded; else a file of them
  std::string where;  // prefix of error locations, e.g. "mnist_quick.toml: [data]"
};

// Only training samples ever stay encoded.
Result<Dataset> open_dataset(const DataRequest& request);

struct Batch {
  Tensor features;    // f32[batch, ...] or i32[batch, T]
  Tensor labels;      // i32[batch] or i32[batch, T]
  Tensor weights;     // f32[batch, T], or not valid()
  Tensor sample_ids;  // i32[batch]: position in the global batch, 0..batch-1 (random ops key on it)

  size_t bytes() const {
    return features.bytes() + labels.bytes() + weights.bytes() + sample_ids.bytes();
  }
};

struct FeedOptions {
  int64_t batch = 0;
  uint64_t seed = 0;
  bool shuffle = true;
  bool repeat = true;
  int64_t prefetch = 2;
  int64_t parallel_calls = 1;  // threads that decode
};

// Not thread-safe; prefetching and decoding on several threads are inner matters that cannot change what is returned.
class Feed {
 public:
  Feed(const Samples& samples, FeedOptions options);
  ~Feed();
  // Steps that the data lasts without `repeat`; INT64_MAX with it.
  int64_t steps_available() const;
  // "data ends after step N-1; set data.repeat = true" when step is beyond it.
  Result<Batch> batch(int64_t step);
  // From shuffle to prefetch, so far.
  PipelineCounters counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace twinrun
