// Samples, and the order in which training sees them. Batches are made here only, so that every
// engine gets the same bits: (source) -> dataset -> split -> shuffled order per epoch -> decoded ->
// batches.
//
//   auto data = open_dataset(request);               // errors name the file and the location in it
//   Feed feed(data->train, {.batch = 256, .seed = 7, ...});
//   auto batch = feed.batch(step);                   // a function of (seed, step); any order
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
  // f32[n, ...], in [0, 1] for u8 sources (u8 / 255 in binary32); or token ids, i32[n, T]; or u8
  // numbers not yet decoded, one byte each, with the dtype pred.
  Tensor features;
  Tensor labels;   // i32[n], or i32[n, T]: one per token
  Tensor weights;  // f32[n, T]: 1 for a token, 0 for padding; not valid() if there is no padding

  int64_t count() const { return labels.valid() ? labels.dims()[0] : 0; }
  // Samples [begin, end); shares storage.
  Samples rows(int64_t begin, int64_t end) const;
  // True for features that are bytes; Feed divides them by 255 per batch (data.cache = "none").
  bool encoded() const { return features.valid() && features.dtype() == DType::kPred; }
  // The features' type in a batch: f32 or i32.
  DType dtype() const { return encoded() ? DType::kF32 : features.dtype(); }
  // The same samples decoded; shares storage if they already are.
  Samples decoded() const;
};

struct Dataset {
  Samples train, eval;
  int64_t classes = 0;
  int64_t vocabulary = 0;          // token ids are 0..vocabulary-1; 0 where features are f32
  std::string description;         // "digits: 4096 + 1024 of f32[28,28,1], 10 classes"
  Digest digest;                   // of all tensors, decoded
  PipelineCounters opening;        // only `read` and `cache` are set
  std::vector<std::string> notes;  // what happened to the cache file, for people
};

// Mirrors [data] of the scenario (DataSpec); a struct of its own, so that data/ does not depend on
// scenario.h.
struct DataRequest {
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
  int64_t cycle_length = 1;  // files that are interleaved
  // "none": u8 samples stay encoded; "memory": decoded at once; else the path of a file of decoded
  // samples.
  std::string cache = "memory";
  std::string where;  // prefix of error locations, e.g. "mnist_quick.toml: [data]"
};

// Held-out samples are always decoded; training samples may stay encoded.
Result<Dataset> open_dataset(const DataRequest& request);

struct Batch {
  Tensor features;    // f32[batch, ...] or i32[batch, T]
  Tensor labels;      // i32[batch] or i32[batch, T]
  Tensor weights;     // f32[batch, T], or not valid()
  Tensor sample_ids;  // i32[batch]: position in the global batch, 0..batch-1; keys random ops

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

// Makes the batches. Not thread-safe. It prefetches and decodes on threads of its own, which does
// not change the batches.
class Feed {
 public:
  Feed(const Samples& samples, FeedOptions options);
  ~Feed();
  // The number of steps that the data is enough for without `repeat`; INT64_MAX with it.
  int64_t steps_available() const;
  // An error if the data ends before `step`; it suggests data.repeat = true.
  Result<Batch> batch(int64_t step);
  // Counters of the stages from shuffle to prefetch, up to now.
  PipelineCounters counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace twinrun
