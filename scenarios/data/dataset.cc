// Source -> pool -> what the scenario asked for.
#include <fmt/format.h>

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

namespace {

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
  Result<data::Pool> opened = Error{};
  if (request.source == "digits") {
    opened = data::digits_pool(request);
  } else if (request.source == "idx") {
    opened = data::idx_pool(request);
  } else {
    return Error{fmt::format("data.source is \"{}\"; allowed: digits, idx", request.source),
                 request.where, "set data.source = \"digits\""};
  }
  if (!opened) return opened.error();
  const data::Pool& pool = *opened;

  Dataset out;
  out.classes = request.classes;
  TWINRUN_ASSIGN(out.train, data::first(pool.train, request.train, "train", request, pool.origin));
  TWINRUN_ASSIGN(out.eval, data::first(pool.eval, request.eval, "eval", request, pool.origin));
  const Dims& dims = out.train.features.dims();
  out.description = fmt::format(
      "{}: {} + {} of {}, {} classes", pool.origin, dims[0], out.eval.count(),
      to_string(TensorType{out.train.features.dtype(), Dims(dims.begin() + 1, dims.end())}),
      request.classes);
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
