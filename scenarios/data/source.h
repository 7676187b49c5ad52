// The sources of samples; internal to data/. Each source fills a Pool, from which dataset.cc takes
// the number of samples that the scenario requests.
//
//   TWINRUN_ASSIGN(Pool pool, digits_pool(request));    // or idx_pool(request)
//   pool.train.features;                                // f32[n, h, w, c]
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/base/result.h"
#include "scenarios/data/feed.h"

namespace twinrun::data {

struct Pool {
  Samples train, eval;
  std::string origin;                // "digits", "idx (mnist/t10k-images-idx3-ubyte.gz, split 9:1)"
  int64_t classes = 0;               // 0: use data.classes
  int64_t vocabulary = 0;            // 0: features are numbers
  std::vector<int64_t> train_files;  // training samples per file, for sources of several files
};

Result<Pool> digits_pool(const DataRequest& request);
Result<Pool> idx_pool(const DataRequest& request);
Result<Pool> cifar10_pool(const DataRequest& request);
Result<Pool> images32_pool(const DataRequest& request);
Result<Pool> tfrecord_pool(const DataRequest& request);
Result<Pool> npy_pool(const DataRequest& request);
Result<Pool> npz_pool(const DataRequest& request);
Result<Pool> hdf5_pool(const DataRequest& request);
Result<Pool> text_pool(const DataRequest& request);
Result<Pool> text_synthetic_pool(const DataRequest& request);
int64_t letters_of_synthetic_text();  // the vocabulary of text_synthetic
Result<Pool> phrases_pool(const DataRequest& request);

// How many samples a procedural source makes: data.train and data.eval, where 0 means the default.
struct Counts {
  int64_t train = 4096, eval = 1024;
};
inline constexpr int64_t kProceduralMax = 1'000'000;  // that many digits take 3 GB
Result<Counts> procedural_counts(const DataRequest& request);

// An error if data.classes is outside least..most, the range of the source.
Status check_classes(const DataRequest& request, int64_t least, int64_t most);

// An error if data.shape is given and is not the source's `shape`.
Status check_shape(const DataRequest& request, const Dims& shape);

// path_of: "DIR/NAME". placed: the error of a file with the scenario's location before its own.
std::string path_of(const DataRequest& request, const std::string& name);
Error placed(const DataRequest& request, Error error);

// An error if the held-out samples have another kind of labels than the training samples (per
// sample, per token), or if only one of them has weights.
Status check_alike(const DataRequest& request, const Samples& train, const Samples& eval,
                   const std::string& place);

// Splits in file order: the first nine tenths are for training, the last is held out. `place` is
// for the error about too few samples; `per_file` is the number of samples per file, if there are
// several.
Result<Pool> split_nine_to_one(const Samples& all, const DataRequest& request,
                               const std::string& place, std::string origin,
                               std::vector<int64_t> per_file = {});

// out[i] = pixels[i] / 255 in binary32.
void normalize(const uint8_t* pixels, int64_t count, float* out);
// The features of a u8 source, dims [n, ...]: normalized, or with data.cache = "none" the bytes.
Tensor pixel_features(const DataRequest& request, const std::vector<uint8_t>& pixels, Dims dims);

// Reorders samples that are in file order, counts[i] from file i, into the order of an interleave:
// one sample from each of `cycle_length` files in turn; where a file ends, the next one replaces it
// (tf.data's `interleave` with block_length = 1).
Samples interleaved(const Samples& samples, const std::vector<int64_t>& counts,
                    int64_t cycle_length);
std::vector<int64_t> interleaved_order(const std::vector<int64_t>& counts, int64_t cycle_length);

// Draws the digit sample `id` of class `label` (0 to 9): 28 x 28 pixels, a function of (seed, id,
// label) only.
void draw_digit(uint64_t seed, uint32_t id, int label, uint8_t* pixels);

// "prefix: place", or the one that is not empty.
std::string join_where(const std::string& prefix, const std::string& place);

}  // namespace twinrun::data
