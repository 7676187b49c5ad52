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
  std::string origin;                // "digits", "idx (mnist/t10k-images-idx3-ubyte.gz, split 9:1)"
  int64_t classes = 0;               // 0: data.classes
  int64_t vocabulary = 0;            // 0: features are numbers
  std::vector<int64_t> train_files;  // training samples of each file, where they come from several
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
int64_t letters_of_synthetic_text();  // its vocabulary
Result<Pool> phrases_pool(const DataRequest& request);

// How many samples a procedural source makes: data.train and data.eval, 0 meaning the default.
struct Counts {
  int64_t train = 4096, eval = 1024;
};
inline constexpr int64_t kProceduralMost = 1'000'000;  // of digits: 3 GB
Result<Counts> procedural_counts(const DataRequest& request);

// The error where data.classes lies outside what the source has.
Status check_classes(const DataRequest& request, int64_t least, int64_t most);

// The error where data.shape is given and is not what the source has.
Status check_shape(const DataRequest& request, const Dims& shape);

// "DIR/NAME"; an error of a file, told with the scenario's place before it.
std::string path_of(const DataRequest& request, const std::string& name);
Error placed(const DataRequest& request, Error error);

// The error where held-out samples have other kinds of labels or weights than the training samples.
Status check_alike(const DataRequest& request, const Samples& train, const Samples& eval,
                   const std::string& place);

// In file order: the first nine tenths train, the last is held out. `place` is for the error about
// a single sample; `per_file`: the samples of each file, where there are several.
Result<Pool> split_nine_to_one(const Samples& all, const DataRequest& request,
                               const std::string& place, std::string origin,
                               std::vector<int64_t> per_file = {});

// u8 -> u8 / 255 in binary32.
void normalize(const uint8_t* pixels, int64_t count, float* out);
// The features of a u8 source, dims [n, ...]: normalized, or with data.cache = "none" the bytes as they are.
Tensor pixel_features(const DataRequest& request, const std::vector<uint8_t>& pixels, Dims dims);

// Samples that stand file after file, `counts` of each, in the order of an interleave: one sample of each of
// `cycle_length` files in turn; where a file ends, the next one takes its place (tf.data's `interleave` with
// block_length = 1).
Samples interleaved(const Samples& samples, const std::vector<int64_t>& counts,
                    int64_t cycle_length);
std::vector<int64_t> interleaved_order(const std::vector<int64_t>& counts, int64_t cycle_length);

// The digit sample `id` of class `label` (0 to 9): 28 x 28 pixels, a function of (seed, id, label)
// alone.
void draw_digit(uint64_t seed, uint32_t id, int label, uint8_t* pixels);

// "a: b", or the one that is not empty.
std::string join_where(const std::string& prefix, const std::string& place);

}  // namespace twinrun::data
