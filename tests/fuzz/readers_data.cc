// Readers of training data. A checksum in the input is made right first, so that mutations reach
// what lies behind it.
#include <cstring>

#include "scenarios/data/record_reader.h"
#include "scenarios/data/sample_cache.h"
#include "tests/fuzz/reader.h"
#include "tests/fuzz/repair.h"

namespace twinrun::fuzz {
namespace {

std::string data_fixture(const std::string& name) { return fixture("scenarios/fixtures/" + name); }

// Opens the data in folder() and requires what every source must keep.
void check_data(DataRequest request) {
  request.dir = folder_path();
  request.where = "x.toml: [data]";
  const auto data = open_dataset(request);
  if (!accepted(data)) return;
  require(data->train.count() > 0 && data->eval.count() > 0, "no samples");
  for (const Samples* samples : {&data->train, &data->eval}) {
    require(samples->features.dims()[0] == samples->count(), "not one label for each sample");
    for (const int32_t label : samples->labels.as<int32_t>())
      require(label >= 0 && label < data->classes, "a label outside of the classes");
    if (data->vocabulary == 0) continue;
    for (const int32_t token : samples->features.as<int32_t>())
      require(token >= 0 && token < data->vocabulary, "a token outside of the vocabulary");
  }
}

std::string big_endian(uint32_t x) {
  return {static_cast<char>(x >> 24), static_cast<char>(x >> 16), static_cast<char>(x >> 8),
          static_cast<char>(x)};
}
std::string idx_images() {
  return big_endian(0x0803) + big_endian(10) + big_endian(2) + big_endian(3) + std::string(60, 'p');
}
std::string idx_labels() { return big_endian(0x0801) + big_endian(10) + std::string(10, '\3'); }

void add_file(const std::string& name, std::string_view bytes) {
  std::string all(bytes);
  write_text(folder_path() + "/" + name, all);
}

void check_idx(std::string_view bytes) {
  const bool labels = bytes.size() > 3 && bytes[3] == 1;
  (void)as_file(labels ? "t10k-labels-idx1-ubyte" : "t10k-images-idx3-ubyte", bytes);
  add_file(labels ? "t10k-images-idx3-ubyte" : "t10k-labels-idx1-ubyte",
           labels ? idx_images() : idx_labels());
  check_data({.source = "idx"});
}

void check_tfrecord(std::string_view bytes) {
  (void)as_file("x.tfrecord", with_record_checksums(bytes));
  DataRequest request{.source = "tfrecord", .files = {"x.tfrecord"}, .classes = 3};
  check_data(request);
  request.vocabulary = 10, request.window = 5;
  check_data(request);
  request = {.source = "tfrecord",
             .files = {"x.tfrecord"},
             .feature = "image",
             .label = "label",
             .shape = {2, 2, 3},
             .classes = 3};
  check_data(request);
}

DataRequest cached() {
  DataRequest request{.source = "digits", .train = 4, .eval = 2, .cache = "x.cache"};
  request.cache = folder_path() + "/x.cache";
  return request;
}

std::vector<std::string> cache_seeds() {
  (void)folder();
  DataRequest request = cached();
  request.cache = "memory";
  const Dataset data = must(open_dataset(request), "the seed cannot be made");
  must(data::write_cache(cached(), data), "the seed cannot be written");
  return {file_text(cached().cache)};
}

void check_cache(std::string_view bytes) {
  (void)as_file("x.cache", bytes);
  const auto found = data::read_cache(cached());
  if (!accepted(found) || !found->data) return;
  require(found->data->digest == data::digest_of(*found->data), "a cache with a wrong digest");
}

}  // namespace

std::vector<Reader> data_readers() {
  return {
      {"hdf5_data", Kind::kHdf5, "HDF5 data sets", 32768,
       [] { return std::vector<std::string>{data_fixture("arrays.h5")}; },
       [](std::string_view bytes) {
         (void)as_file("x.h5", bytes);
         check_data({.source = "hdf5",
                     .files = {"x.h5"},
                     .feature = "x_train",
                     .label = "y_train",
                     .classes = 3});
       }},
      {"idx", Kind::kBinary, "IDX (MNIST)", 1024,
       [] {
         return std::vector<std::string>{idx_images(), idx_labels()};
       },
       &check_idx},
      {"cifar10", Kind::kBinary, "CIFAR-10's binary version", 16384,
       [] { return std::vector<std::string>{std::string(3073 * 2, '\2')}; },
       [](std::string_view bytes) {
         (void)as_file("test_batch.bin", bytes);
         check_data({.source = "cifar10"});
       }},
      {"tfrecord", Kind::kBinary, "TFRecord files of tf.train.Example", 2048,
       [] {
         return std::vector<std::string>{
             data_fixture("images.tfrecord"), data_fixture("images.tfrecord.gz"),
             data_fixture("numbers.tfrecord"), data_fixture("tokens.tfrecord")};
       },
       &check_tfrecord},
      {"npy_data", Kind::kBinary, "data in .npy and .npz", 2048,
       [] {
         return std::vector<std::string>{data_fixture("pixels_u8.npy"),
                                         data_fixture("tokens_i64.npy")};
       },
       [](std::string_view bytes) {
         static const std::string labels = data_fixture("labels_i64.npy");
         (void)as_file("x.npy", bytes);
         add_file("y.npy", labels);
         DataRequest request{.source = "npy", .files = {"x.npy", "y.npy"}, .classes = 3};
         check_data(request);
         request.vocabulary = 10;
         check_data(request);
       }},
      {"text", Kind::kText, "plain text as training data", 1024,
       [] {
         return std::vector<std::string>{
             "The quick brown fox jumps over the lazy dog, gr\xC3\xBCn "
             "and \xE2\x82\xAC and on and on it goes."};
       },
       [](std::string_view bytes) {
         (void)as_file("a.txt", bytes);
         DataRequest request{.source = "text", .files = {"a.txt"}, .window = 4};
         check_data(request);
         request.tokens = "characters";
         check_data(request);
       }},
      {"sample_cache", Kind::kBinary, "cache files of decoded samples", 65536, &cache_seeds,
       &check_cache},
  };
}

}  // namespace twinrun::fuzz
