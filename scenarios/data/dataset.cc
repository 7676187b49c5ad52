// Opens a source or its cache and takes the number of samples that the scenario requests; helpers
// of the sources.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>

#include "scenarios/data/sample_cache.h"
#include "scenarios/data/source.h"

namespace twinrun {
namespace data {

std::string join_where(const std::string& prefix, const std::string& place) {
  if (prefix.empty() || place.empty()) return prefix + place;
  return prefix + ": " + place;
}

void normalize(const uint8_t* pixels, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(pixels[i]) / 255.0f;
}

Tensor pixel_features(const DataRequest& request, const std::vector<uint8_t>& pixels, Dims dims) {
  const bool encoded = request.cache == kNoCache;
  Tensor out = Tensor::empty({encoded ? DType::kPred : DType::kF32, std::move(dims)});
  if (encoded) {
    std::memcpy(out.raw(), pixels.data(), pixels.size());
  } else {
    normalize(pixels.data(), static_cast<int64_t>(pixels.size()), out.as<float>().data());
  }
  return out;
}

Result<Counts> procedural_counts(const DataRequest& request) {
  Counts counts;
  if (request.train != 0) counts.train = request.train;
  if (request.eval != 0) counts.eval = request.eval;
  const auto check = [&](const char* key, int64_t count) -> Status {
    if (count >= 1 && count <= kProceduralMax) return Ok{};
    return Error{fmt::format("data.{} is {}; allowed: 1 to {}", key, count, kProceduralMax),
                 request.where, fmt::format("set data.{} = {}", key, kProceduralMax)};
  };
  TWINRUN_RETURN_IF_ERROR(check("train", counts.train));
  TWINRUN_RETURN_IF_ERROR(check("eval", counts.eval));
  return counts;
}

Status check_classes(const DataRequest& request, int64_t least, int64_t most) {
  if (request.classes >= least && request.classes <= most) return Ok{};
  return Error{fmt::format("data.classes is {}; source {} has {} to {}", request.classes,
                           request.source, least, most),
               request.where, fmt::format("set data.classes = {}", most)};
}

Status check_shape(const DataRequest& request, const Dims& shape) {
  if (request.shape.empty() || request.shape == shape) return Ok{};
  return Error{fmt::format("data.shape is {}; source {} has {}", to_string(request.shape),
                           request.source, to_string(shape)),
               request.where, "leave data.shape out"};
}

std::string path_of(const DataRequest& request, const std::string& name) {
  return (std::filesystem::path(request.dir) / name).string();
}

Error placed(const DataRequest& request, Error error) {
  error.where = join_where(request.where, error.where);
  return error;
}

Status check_alike(const DataRequest& request, const Samples& train, const Samples& eval,
                   const std::string& place) {
  const bool labels = train.labels.dims().size() == eval.labels.dims().size();
  if (labels && train.weights.valid() == eval.weights.valid()) return Ok{};
  return Error{fmt::format("the held-out and the training samples have different kinds of {}",
                           labels ? "weights" : "labels"),
               join_where(request.where, place),
               labels ? "give weights to both, or to none"
                      : "give one label per sample in both, or one per token in both"};
}

Result<Pool> split_nine_to_one(const Samples& all, const DataRequest& request,
                               const std::string& place, std::string origin,
                               std::vector<int64_t> per_file) {
  const int64_t n = all.count(), train = n * 9 / 10;
  if (train == 0) {
    return Error{fmt::format("{} sample cannot be split into train and eval", n),
                 join_where(request.where, place), "give at least 2 samples"};
  }
  Pool pool{all.rows(0, train), all.rows(train, n), std::move(origin)};
  int64_t left = train;  // training samples left; the held-out ones are in the last files
  for (int64_t& count : per_file) left -= count = std::min(count, left);
  pool.train_files = std::move(per_file);
  return pool;
}

namespace {

struct SourceEntry {
  std::string_view name;
  Result<Pool> (*open)(const DataRequest&);
};
constexpr SourceEntry kSources[] = {
    {"digits", digits_pool},     {"idx", idx_pool},
    {"cifar10", cifar10_pool},   {"images32", images32_pool},
    {"tfrecord", tfrecord_pool}, {"npy", npy_pool},
    {"npz", npz_pool},           {"hdf5", hdf5_pool},
    {"text", text_pool},         {"text_synthetic", text_synthetic_pool},
    {"phrases", phrases_pool},
};

// The first `count` samples; 0: all.
Result<Samples> first(const Samples& pool, int64_t count, const char* key,
                      const DataRequest& request, const std::string& origin) {
  const int64_t have = pool.count();
  if (count == 0) return pool;
  if (count < 0 || count > have) {
    return Error{fmt::format("data.{} is {}; allowed: 1 to {}, or 0 for all of {}", key, count,
                             have, origin),
                 request.where, fmt::format("set data.{} = {}", key, have)};
  }
  return pool.rows(0, count);
}

// The samples and bytes of a data set in memory.
StageCounters held(const Dataset& data) {
  StageCounters out;
  for (const Samples* s : {&data.train, &data.eval}) {
    out.elements += s->count();
    out.bytes += static_cast<int64_t>(s->features.bytes() + s->labels.bytes() + s->weights.bytes());
  }
  return out;
}

// Equals digest(tensor) of the numbers that the bytes decode to, but decodes only a block at a
// time.
Digest digest_decoded(const Tensor& pixels) {
  DigestBuilder builder;
  const std::string type = to_string(TensorType{DType::kF32, pixels.dims()});
  builder.add_bytes(type.c_str(), type.size() + 1);
  float block[4096];
  const std::span<const uint8_t> bytes = pixels.as<uint8_t>();
  for (size_t at = 0; at < bytes.size(); at += std::size(block)) {
    const size_t count = std::min(std::size(block), bytes.size() - at);
    normalize(bytes.data() + at, static_cast<int64_t>(count), block);
    builder.add_bytes(block, count * sizeof *block);
  }
  return builder.finish();
}

// Reads the data set from the source, without a cache.
Result<Dataset> read_source(const DataRequest& request, const SourceEntry& source) {
  TWINRUN_ASSIGN(const Pool pool, source.open(request));
  Dataset out;
  out.classes = pool.classes > 0 ? pool.classes : request.classes;
  out.vocabulary = pool.vocabulary;
  const bool turns = request.cycle_length > 1 && pool.train_files.size() > 1;
  const Samples train =
      turns ? interleaved(pool.train, pool.train_files, request.cycle_length) : pool.train;
  TWINRUN_ASSIGN(out.train, first(train, request.train, "train", request, pool.origin));
  TWINRUN_ASSIGN(out.eval, first(pool.eval, request.eval, "eval", request, pool.origin));
  out.eval = out.eval.decoded();
  const Dims& dims = out.train.features.dims();
  out.description = fmt::format(
      "{}: {} + {} of {}, {} classes", pool.origin, dims[0], out.eval.count(),
      to_string(TensorType{out.train.dtype(), Dims(dims.begin() + 1, dims.end())}), out.classes);
  if (out.vocabulary > 0 && out.vocabulary != out.classes) {
    out.description += fmt::format(", vocabulary {}", out.vocabulary);
  }
  out.digest = digest_of(out);
  return out;
}

}  // namespace

Digest digest_of(const Dataset& data) {
  DigestBuilder builder;
  const auto add = [&builder](const char* name, const Tensor& tensor) {
    if (!tensor.valid()) return;
    builder.add(name);
    builder.add(tensor.dtype() == DType::kPred ? digest_decoded(tensor) : digest(tensor));
  };
  add("train/images", data.train.features);  // old name, so that digests stay the same
  add("train/labels", data.train.labels);
  add("train/weights", data.train.weights);
  add("eval/images", data.eval.features);
  add("eval/labels", data.eval.labels);
  add("eval/weights", data.eval.weights);
  return builder.finish();
}

}  // namespace data

Samples Samples::decoded() const {
  if (!encoded()) return *this;
  Samples out = *this;
  out.features = Tensor::empty({DType::kF32, features.dims()});
  data::normalize(features.as<uint8_t>().data(), features.elements(),
                  out.features.as<float>().data());
  return out;
}

Result<Dataset> open_dataset(const DataRequest& request) {
  const auto* source = std::ranges::find(data::kSources, request.source, &data::SourceEntry::name);
  if (source == std::end(data::kSources)) {
    std::vector<std::string_view> names;
    for (const auto& entry : data::kSources) names.push_back(entry.name);
    return Error{
        fmt::format("data.source is \"{}\"; allowed: {}", request.source, fmt::join(names, ", ")),
        request.where, "set data.source = \"digits\""};
  }
  const double begin = steady_seconds();
  if (!data::is_cache_file(request.cache)) {
    TWINRUN_ASSIGN(Dataset out, data::read_source(request, *source));
    out.opening.read = data::held(out);
    out.opening.read.busy = steady_seconds() - begin;
    return out;
  }
  TWINRUN_ASSIGN(data::Cached cached, data::read_cache(request));
  if (cached.data) {
    cached.data->opening.cache = data::held(*cached.data);
    cached.data->opening.cache.busy = steady_seconds() - begin;
    cached.data->notes = {std::move(cached.note)};
    return *std::move(cached.data);
  }
  const double looked = steady_seconds();
  TWINRUN_ASSIGN(Dataset out, data::read_source(request, *source));
  out.opening.read = data::held(out);
  out.opening.read.busy = steady_seconds() - looked;
  const double writing = steady_seconds();
  TWINRUN_RETURN_IF_ERROR(data::write_cache(request, out));
  out.opening.cache = data::held(out);
  out.opening.cache.busy = steady_seconds() - writing;
  out.notes = {std::move(cached.note)};
  return out;
}

}  // namespace twinrun
