// `cifar10`: the binary version of CIFAR-10 (Krizhevsky 2009; cs.toronto.edu/~kriz/cifar.html):
// records of 3073 bytes, the label and then 32 x 32 pixels, all red, all green, all blue, row by
// row. data_batch_1.bin to data_batch_5.bin are for training, test_batch.bin is held out.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "scenarios/data/byte_reader.h"
#include "scenarios/data/source.h"

namespace twinrun::data {
namespace {

constexpr size_t kPlane = 32 * 32, kPixels = 3 * kPlane, kRecord = 1 + kPixels;
constexpr int64_t kMax = 1'000'000;  // records; CIFAR-10 has 60,000

// The path of `name` in the folder, raw or gzip (.gz); "" if there is none.
std::string find(const std::filesystem::path& dir, const std::string& name) {
  for (const char* packed : {"", ".gz"}) {
    std::error_code ignored;
    const auto path = dir / (name + packed);
    if (std::filesystem::exists(path, ignored)) return path.string();
  }
  return "";
}

class Reader {
 public:
  explicit Reader(const DataRequest& request) : request_(request) {}

  Status read(const std::string& path) {
    const size_t before = labels_.size();
    auto opened = ByteReader::open(path);
    if (!opened) return placed(request_, opened.error());
    std::array<uint8_t, kRecord> record;
    for (int64_t index = 0;; ++index) {
      const auto got = (*opened)->read(record.data(), kRecord);
      if (!got) return placed(request_, got.error());
      if (*got == 0 && index > 0) {
        per_file_.push_back(static_cast<int64_t>(labels_.size() - before));
        return Ok{};
      }
      const std::string place =
          join_where(request_.where, fmt::format("{}: record {}", path, index));
      if (*got < kRecord) {
        return Error{fmt::format("truncated: found {} of {} bytes (a label, then 3 x 1024 pixels)",
                                 *got, kRecord),
                     place, "give the files of the binary version of CIFAR-10"};
      }
      if (record[0] >= request_.classes) {
        return Error{fmt::format("label {}; allowed: 0 to {} (data.classes is {})", record[0],
                                 request_.classes - 1, request_.classes),
                     place,
                     record[0] < 10 ? "set data.classes = 10"
                                    : "give the files of the binary version of CIFAR-10"};
      }
      if (static_cast<int64_t>(labels_.size()) == kMax) {
        return Error{fmt::format("more than {} records", kMax), place, "give fewer files"};
      }
      labels_.push_back(record[0]);
      for (size_t i = 0; i < kPlane; ++i) {
        for (size_t c = 0; c < 3; ++c) pixels_.push_back(record[1 + c * kPlane + i]);
      }
    }
  }

  const std::vector<int64_t>& per_file() const { return per_file_; }

  Samples samples() const {
    const auto n = static_cast<int64_t>(labels_.size());
    Samples out{
        pixel_features(request_, pixels_, {n, 32, 32, 3}), Tensor::empty({DType::kI32, {n}}), {}};
    std::copy(labels_.begin(), labels_.end(), out.labels.as<int32_t>().begin());
    return out;
  }

 private:
  const DataRequest& request_;
  std::vector<uint8_t> pixels_, labels_;
  std::vector<int64_t> per_file_;
};

}  // namespace

Result<Pool> cifar10_pool(const DataRequest& request) {
  TWINRUN_RETURN_IF_ERROR(check_classes(request, 2, 10));
  TWINRUN_RETURN_IF_ERROR(check_shape(request, {32, 32, 3}));
  std::vector<std::string> train;
  for (int i = 1; i <= 5; ++i) {
    const std::string path = find(request.dir, fmt::format("data_batch_{}.bin", i));
    if (!path.empty()) train.push_back(path);
  }
  const std::string held_out = find(request.dir, "test_batch.bin");
  if (train.empty() && held_out.empty()) {
    std::error_code ignored;
    const bool folder = std::filesystem::is_directory(request.dir, ignored);
    return Error{fmt::format("{}; looked for data_batch_1.bin[.gz] to data_batch_5.bin[.gz] and "
                             "test_batch.bin[.gz]",
                             request.dir.empty() ? "data.dir is not set"
                             : folder            ? "no CIFAR-10 files in this folder"
                                                 : "no such folder"),
                 join_where(request.where, request.dir),
                 "set data.dir to cifar-10-batches-bin (--set data.dir=PATH)"};
  }
  Reader for_training(request), for_evaluation(request);
  for (const std::string& path : train) TWINRUN_RETURN_IF_ERROR(for_training.read(path));
  if (!held_out.empty()) TWINRUN_RETURN_IF_ERROR(for_evaluation.read(held_out));
  if (train.empty() || held_out.empty()) {
    const bool tests = train.empty();
    const Reader& only = tests ? for_evaluation : for_training;
    return split_nine_to_one(
        only.samples(), request, tests ? held_out : train.front(),
        fmt::format("cifar10 ({} split 9:1)", tests ? "test_batch.bin" : "data_batch files"),
        only.per_file());
  }
  Pool pool{for_training.samples(), for_evaluation.samples(),
            fmt::format("cifar10 ({} data_batch files and test_batch)", train.size())};
  pool.train_files = for_training.per_file();
  return pool;
}

}  // namespace twinrun::data
