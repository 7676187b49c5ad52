// The checks that every file source needs, and the conversion to tensors.
#include "scenarios/data/raw_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>

#include "scenarios/data/source.h"

namespace twinrun::data {
namespace {

class Check {
 public:
  Check(const DataRequest& request, const Place& place) : request_(request), place_(place) {}

  // An error about element `at` of a part that has `per_sample` elements in each sample.
  Error fail(Part part, size_t at, size_t per_sample, std::string what,
             std::string fix = "") const {
    std::string where = place_(part, static_cast<int64_t>(at / per_sample));
    if (per_sample > 1) where += fmt::format(", element {}", at % per_sample);
    return {std::move(what), join_where(request_.where, where), std::move(fix)};
  }

  Status finite(const std::vector<float>& numbers, size_t per_sample) const {
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (std::isfinite(numbers[i])) continue;
      return fail(Part::kFeatures, i, per_sample,
                  fmt::format("{} is not a finite number", numbers[i]),
                  "correct the sample or leave it out");
    }
    return Ok{};
  }

  Status below(Part part, const std::vector<int64_t>& values, size_t per_sample, int64_t limit,
               const char* what, const char* key) const {
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] >= 0 && values[i] < limit) continue;
      const int64_t most = *std::max_element(values.begin(), values.end());
      const bool few = values[i] >= 0 && most < (1 << 24);
      return fail(part, i, per_sample,
                  fmt::format("{} {}; allowed: 0 to {} (data.{} is {})", what, values[i], limit - 1,
                              key, limit),
                  few ? fmt::format("set data.{} = {} or correct the file", key, most + 1)
                      : "correct the file");
    }
    return Ok{};
  }

  Status zero_or_one(const std::vector<float>& weights, size_t per_sample) const {
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] == 0.0f || weights[i] == 1.0f) continue;
      return fail(Part::kWeights, i, per_sample,
                  fmt::format("weight {}; allowed: 1 (a token), 0 (padding)", weights[i]));
    }
    for (size_t i = 0; i < weights.size(); i += per_sample) {
      const auto begin = weights.begin() + static_cast<int64_t>(i);
      if (std::find(begin, begin + static_cast<int64_t>(per_sample), 1.0f) ==
          begin + static_cast<int64_t>(per_sample)) {
        return fail(Part::kWeights, i / per_sample, 1,
                    "the sample has no token: all its weights are 0", "leave out the sample");
      }
    }
    return Ok{};
  }

 private:
  const DataRequest& request_;
  const Place& place_;
};

Tensor narrow(const std::vector<int64_t>& values, Dims dims) {
  Tensor out = Tensor::empty({DType::kI32, std::move(dims)});
  std::transform(values.begin(), values.end(), out.as<int32_t>().begin(),
                 [](int64_t x) { return static_cast<int32_t>(x); });
  return out;
}

Tensor as_f32(const std::vector<float>& values, Dims dims) {
  Tensor out = Tensor::empty({DType::kF32, std::move(dims)});
  std::copy(values.begin(), values.end(), out.as<float>().begin());
  return out;
}

}  // namespace

Result<Samples> to_samples(const DataRequest& request, const RawSamples& raw, const Place& place) {
  const auto count = static_cast<size_t>(raw.count);
  const bool tokens = request.vocabulary > 0;
  const bool pixels = !raw.pixels.empty();
  const size_t per_sample = (tokens   ? raw.tokens.size()
                             : pixels ? raw.pixels.size()
                                      : raw.numbers.size()) /
                            count;
  const size_t labels_each = raw.labels.size() / count;
  assert(labels_each == 1 || labels_each == per_sample);
  const Check check(request, place);
  TWINRUN_RETURN_IF_ERROR(check.finite(raw.numbers, per_sample));
  TWINRUN_RETURN_IF_ERROR(check.below(Part::kFeatures, raw.tokens, per_sample, request.vocabulary,
                                      "token", "vocabulary"));
  TWINRUN_RETURN_IF_ERROR(
      check.below(Part::kLabels, raw.labels, labels_each, request.classes, "label", "classes"));
  TWINRUN_RETURN_IF_ERROR(check.zero_or_one(raw.weights, per_sample));

  Dims dims = raw.sample;
  dims.insert(dims.begin(), raw.count);
  Samples out;
  out.features = tokens   ? narrow(raw.tokens, dims)
                 : pixels ? pixel_features(request, raw.pixels, dims)
                          : as_f32(raw.numbers, dims);
  out.labels = narrow(raw.labels, labels_each == 1 ? Dims{raw.count} : dims);
  if (!raw.weights.empty()) out.weights = as_f32(raw.weights, dims);
  return out;
}

}  // namespace twinrun::data
