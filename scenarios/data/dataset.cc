// Source -> pool -> what the scenario asked for.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

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

Result<Counts> procedural_counts(const DataRequest& request) {
  Counts counts;
  if (request.train != 0) counts.train = request.train;
  if (request.eval != 0) counts.eval = request.eval;
  const auto check = [&](const char* key, int64_t count) -> Status {
    if (count >= 1 && count <= kProceduralMost) return Ok{};
    return Error{fmt::format("data.{} is {}; allowed: 1 to {}", key, count, kProceduralMost),
                 request.where, fmt::format("set data.{} = {}", key, kProceduralMost)};
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
  return Error{
      fmt::format("the held-out samples have other {} than the training samples",
                  labels ? "weights" : "labels"),
      join_where(request.where, place),
      labels ? "give weights to both, or to none" : "one label, or one per token, in both"};
}

Result<Pool> split_nine_to_one(const Samples& all, const DataRequest& request,
                               const std::string& place, std::string origin) {
  const int64_t n = all.count(), train = n * 9 / 10;
  if (train == 0) {
    return Error{fmt::format("{} sample cannot be split into train and eval", n),
                 join_where(request.where, place), "give at least 2 samples"};
  }
  return Pool{all.rows(0, train), all.rows(train, n), std::move(origin)};
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

}  // namespace
}  // namespace data

Result<Dataset> open_dataset(const DataRequest& request) {
  const auto* source = std::ranges::find(data::kSources, request.source, &data::SourceEntry::name);
  if (source == std::end(data::kSources)) {
    std::vector<std::string_view> names;
    for (const auto& entry : data::kSources) names.push_back(entry.name);
    return Error{
        fmt::format("data.source is \"{}\"; allowed: {}", request.source, fmt::join(names, ", ")),
        request.where, "set data.source = \"digits\""};
  }
  TWINRUN_ASSIGN(const data::Pool pool, source->open(request));

  Dataset out;
  out.classes = pool.classes > 0 ? pool.classes : request.classes;
  out.vocabulary = pool.vocabulary;
  TWINRUN_ASSIGN(out.train, data::first(pool.train, request.train, "train", request, pool.origin));
  TWINRUN_ASSIGN(out.eval, data::first(pool.eval, request.eval, "eval", request, pool.origin));
  const Dims& dims = out.train.features.dims();
  out.description = fmt::format(
      "{}: {} + {} of {}, {} classes", pool.origin, dims[0], out.eval.count(),
      to_string(TensorType{out.train.features.dtype(), Dims(dims.begin() + 1, dims.end())}),
      out.classes);
  if (out.vocabulary > 0 && out.vocabulary != out.classes) {
    out.description += fmt::format(", vocabulary {}", out.vocabulary);
  }
  DigestBuilder builder;
  const auto add = [&builder](const char* name, const Tensor& tensor) {
    if (!tensor.valid()) return;
    builder.add(name);
    builder.add(digest(tensor));
  };
  add("train/images", out.train.features);  // the names of old: digests stay
  add("train/labels", out.train.labels);
  add("train/weights", out.train.weights);
  add("eval/images", out.eval.features);
  add("eval/labels", out.eval.labels);
  add("eval/weights", out.eval.weights);
  out.digest = builder.finish();
  return out;
}

}  // namespace twinrun
