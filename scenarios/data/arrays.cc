// Checks the shapes and types of arrays and makes samples of them.
#include "scenarios/data/arrays.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>

#include "program/base/names.h"
#include "scenarios/data/raw_samples.h"

namespace twinrun::data {
namespace {

bool is_integer(ElementType type) {
  return type != ElementType::kF16 && type != ElementType::kBF16 && type != ElementType::kF32 &&
         type != ElementType::kF64;
}

template <typename T>
std::vector<int64_t> widen(const NamedArray& array) {
  std::vector<int64_t> out(static_cast<size_t>(array.elements()));
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, array.bytes.data() + i * sizeof(T), sizeof(T));
    // A u64 beyond int64 becomes the largest int64, which is out of every range that is accepted.
    out[i] = std::in_range<int64_t>(value) ? static_cast<int64_t>(value)
                                           : std::numeric_limits<int64_t>::max();
  }
  return out;
}

std::vector<int64_t> integers(const NamedArray& array) {
  switch (array.type) {
    case ElementType::kI8:
      return widen<int8_t>(array);
    case ElementType::kI16:
      return widen<int16_t>(array);
    case ElementType::kI32:
      return widen<int32_t>(array);
    case ElementType::kI64:
      return widen<int64_t>(array);
    case ElementType::kU16:
      return widen<uint16_t>(array);
    case ElementType::kU32:
      return widen<uint32_t>(array);
    case ElementType::kU64:
      return widen<uint64_t>(array);
    default:  // kBool, kU8
      return widen<uint8_t>(array);
  }
}

class Maker {
 public:
  Maker(const DataRequest& request, const SampleArrays& arrays)
      : request_(request), arrays_(arrays) {}

  Result<Samples> make() {
    TWINRUN_RETURN_IF_ERROR(shapes());
    TWINRUN_RETURN_IF_ERROR(features());
    const NamedArray& y = *arrays_.labels.array;
    if (!is_integer(y.type)) {
      return fail(arrays_.labels,
                  fmt::format("labels are {}; allowed: integers", to_string(y.type)),
                  "save them as int64");
    }
    raw_.labels = integers(y);
    if (arrays_.weights.array != nullptr) {
      TWINRUN_ASSIGN(raw_.weights, numbers(arrays_.weights));
    }
    return to_samples(request_, raw_, [this](Part part, int64_t i) {
      const PlacedArray& of = part == Part::kFeatures ? arrays_.features
                              : part == Part::kLabels ? arrays_.labels
                                                      : arrays_.weights;
      return fmt::format("{}: record {}", of.where, i);
    });
  }

 private:
  Error fail(const PlacedArray& at, std::string what, std::string fix = "") const {
    return {std::move(what), join_where(request_.where, at.where), std::move(fix)};
  }

  Status shapes() {
    const NamedArray &x = *arrays_.features.array, &y = *arrays_.labels.array;
    const bool tokens = request_.vocabulary > 0;
    if (x.dims.size() < 2 || x.dims.size() > 9 || x.elements() == 0) {
      return fail(arrays_.features,
                  fmt::format("features are {}; allowed: [n, ...], n at least 1", describe(x)));
    }
    if (x.elements() > kMaxElements) {
      return fail(arrays_.features, fmt::format("features have {} elements; allowed: up to {}",
                                                x.elements(), kMaxElements));
    }
    raw_.count = x.dims[0];
    raw_.sample.assign(x.dims.begin() + 1, x.dims.end());
    if (!request_.shape.empty() && request_.shape != raw_.sample) {
      return fail(arrays_.features,
                  fmt::format("a sample is {}, but data.shape is {}", to_string(raw_.sample),
                              to_string(request_.shape)),
                  fmt::format("set data.shape = [{}]", fmt::join(raw_.sample, ", ")));
    }
    if (tokens && (x.dims.size() != 2 || !is_integer(x.type))) {
      return fail(arrays_.features,
                  fmt::format("features are {}; expected token ids, integers [n, T], because "
                              "data.vocabulary is set",
                              describe(x)),
                  "set data.vocabulary = 0 for numbers");
    }
    const bool each = y.dims == Dims{raw_.count} || y.dims == Dims{raw_.count, 1};
    if (!each && !(tokens && y.dims == x.dims)) {
      return fail(arrays_.labels,
                  fmt::format("labels are {}; allowed: [{}], one for each sample{}", describe(y),
                              raw_.count, tokens ? ", or one per token " + to_string(x.dims) : ""),
                  y.dims.size() == 2 && !tokens ? "one-hot labels: save their argmax" : "");
    }
    const NamedArray* w = arrays_.weights.array;
    if (w != nullptr && (!tokens || w->dims != x.dims)) {
      return fail(arrays_.weights,
                  fmt::format("weights are {}; allowed: {}", describe(*w),
                              tokens ? to_string(x.dims) : "none without data.vocabulary"));
    }
    return Ok{};
  }

  Status features() {
    const NamedArray& x = *arrays_.features.array;
    if (request_.vocabulary > 0) {
      raw_.tokens = integers(x);
    } else if (x.type == ElementType::kU8) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(x.bytes.data());
      raw_.pixels.assign(bytes, bytes + x.elements());
    } else {
      TWINRUN_ASSIGN(raw_.numbers, numbers(arrays_.features));
    }
    return Ok{};
  }

  Result<std::vector<float>> numbers(const PlacedArray& at) const {
    const NamedArray& array = *at.array;
    std::vector<float> out(static_cast<size_t>(array.elements()));
    if (!is_integer(array.type)) {
      const auto tensor = to_tensor(array, DType::kF32, at.where);
      if (!tensor) return placed(request_, tensor.error());
      std::ranges::copy(tensor->as<float>(), out.begin());
      return out;
    }
    const std::vector<int64_t> values = integers(array);
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] < -kMaxExact || values[i] > kMaxExact) {
        return fail(at,
                    fmt::format("{} is not exactly representable in float32; allowed: -{} to {}",
                                values[i], kMaxExact, kMaxExact),
                    "save it as float32");
      }
      out[i] = static_cast<float>(values[i]);
    }
    return out;
  }

  const DataRequest& request_;
  const SampleArrays& arrays_;

  RawSamples raw_;
};

}  // namespace

Result<Samples> array_samples(const DataRequest& request, const SampleArrays& arrays) {
  return Maker(request, arrays).make();
}

std::vector<std::pair<std::string, std::string>> wanted_arrays(const DataRequest& request) {
  std::vector<std::pair<std::string, std::string>> out = {{request.feature, "feature"},
                                                          {request.label, "label"}};
  if (!request.weight.empty()) out.emplace_back(request.weight, "weight");
  if (!request.eval_feature.empty()) {
    out.emplace_back(request.eval_feature, "eval_feature");
    out.emplace_back(request.eval_label, "eval_label");
    if (!request.eval_weight.empty()) out.emplace_back(request.eval_weight, "eval_weight");
  }
  return out;
}

Result<Pool> pool_of_file(const DataRequest& request, const ArrayFile& file,
                          const std::string& path) {
  const auto find = [&](const std::string& name) -> PlacedArray {
    const auto found = std::ranges::find(file.arrays, name, &NamedArray::name);
    if (found == file.arrays.end()) return {};
    return {&*found, fmt::format("{}: {}", path, name)};
  };
  for (const auto& [name, key] : wanted_arrays(request)) {
    if (find(name).array != nullptr) continue;
    std::vector<std::string> names;
    for (const NamedArray& array : file.arrays) names.push_back(array.name);
    return Error{
        fmt::format("no array \"{}\" (data.{}); the file has: {}", name, key,
                    names.empty() ? "none" : join(names, ", ")),
        join_where(request.where, path),
        names.empty() ? "" : fmt::format("set data.{} = \"{}\"", key, nearest(name, names))};
  }
  const std::string origin =
      fmt::format("{} ({}", request.source, std::filesystem::path(path).filename().string());
  TWINRUN_ASSIGN(
      const Samples all,
      array_samples(request, {find(request.feature), find(request.label), find(request.weight)}));
  Pool pool;
  if (request.eval_feature.empty()) {
    TWINRUN_ASSIGN(pool, split_nine_to_one(all, request, path, origin + " split 9:1)"));
  } else {
    pool.train = all;
    DataRequest held_out = request;
    held_out.shape.assign(all.features.dims().begin() + 1, all.features.dims().end());
    TWINRUN_ASSIGN(pool.eval,
                   array_samples(held_out, {find(request.eval_feature), find(request.eval_label),
                                            find(request.eval_weight)}));
    TWINRUN_RETURN_IF_ERROR(check_alike(request, all, pool.eval, path));
    pool.origin = origin + ")";
  }
  pool.vocabulary = request.vocabulary;
  return pool;
}

}  // namespace twinrun::data
