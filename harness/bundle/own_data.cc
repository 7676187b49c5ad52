// Writes the batches of a scenario's steps, or noise of the same shapes, to an .npz file.
#include "harness/bundle/own_data.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <vector>

#include "checkpoints/container/atomic_file.h"
#include "checkpoints/container/npy.h"
#include "harness/experiment/experiment.h"
#include "program/base/philox.h"

namespace twinrun {
namespace {

constexpr uint64_t kNoise = 0x6e6f697365;

// Concatenates tensors along the sample axis.
Tensor concatenated(const std::vector<Tensor>& parts) {
  Dims dims = parts.front().dims();
  dims[0] = 0;
  for (const Tensor& part : parts) dims[0] += part.dims()[0];
  Tensor out = Tensor::empty({parts.front().dtype(), dims});
  std::byte* at = out.raw();
  for (const Tensor& part : parts) {
    std::memcpy(at, part.raw(), part.bytes());
    at += part.bytes();
  }
  return out;
}

// A tensor of the same shape with random elements: reals between the smallest and the largest of
// `like`, integers below `count`.
Tensor drawn(const Tensor& like, int64_t count, uint32_t stream) {
  Tensor out = like.clone();
  const RandomKey key{kNoise, kStreamData + stream};
  if (like.dtype() == DType::kF32) {
    const auto [least, most] = std::ranges::minmax(like.as<float>());
    for (size_t i = 0; i < out.as<float>().size(); ++i)
      out.as<float>()[i] = least + (most - least) * uniform(draw(key, 0, 0, i));
  } else {
    for (size_t i = 0; i < out.as<int32_t>().size(); ++i)
      out.as<int32_t>()[i] =
          static_cast<int32_t>(bounded(draw(key, 0, 0, i), static_cast<uint32_t>(count)));
  }
  return out;
}

Samples made_noise(const Samples& s, const Dataset& data, uint32_t stream) {
  return {drawn(s.features, data.vocabulary, stream), drawn(s.labels, data.classes, stream + 1),
          s.weights};
}

void add(const Samples& s, const std::string& prefix, std::vector<NamedArray>& arrays) {
  arrays.push_back(to_array(prefix + "features", s.features));
  arrays.push_back(to_array(prefix + "labels", s.labels));
  if (s.weights.valid()) arrays.push_back(to_array(prefix + "weights", s.weights));
}

}  // namespace

Result<Scenario> with_own_data(const Scenario& scenario, const std::string& folder,
                               const OwnDataOptions& options) {
  TWINRUN_ASSIGN(const Experiment e, make_experiment(scenario));
  const Dataset& data = *e.data;
  Feed feed(data.train, e.feed_options(scenario.train.batch));
  std::vector<Tensor> features, labels, weights;
  for (int64_t step = 0; step < scenario.train.steps; ++step) {
    TWINRUN_ASSIGN(const Batch batch, feed.batch(step));
    features.push_back(batch.features);
    labels.push_back(batch.labels);
    if (batch.weights.valid()) weights.push_back(batch.weights);
  }
  Samples train{concatenated(features), concatenated(labels),
                weights.empty() ? Tensor() : concatenated(weights)};
  Samples eval = data.eval.rows(0, std::min(data.eval.count(), scenario.train.batch));
  if (options.noise) {
    train = made_noise(train, data, 0);
    eval = made_noise(eval, data, 2);
  }
  std::vector<NamedArray> arrays;
  add(train, "", arrays);
  add(eval, "eval_", arrays);
  const std::string path = (std::filesystem::path(folder) / kOwnData).string();
  TWINRUN_ASSIGN(const auto bytes, to_npz(arrays, path));
  TWINRUN_RETURN_IF_ERROR(write_file_atomically(path, bytes));

  Scenario own = scenario;
  own.data = DataSpec{};
  own.data.source = "npz";
  own.data.dir = folder;
  own.data.files = {kOwnData};
  own.data.eval_feature = "eval_features";
  own.data.eval_label = "eval_labels";
  if (train.weights.valid()) {
    own.data.weight = "weights";
    own.data.eval_weight = "eval_weights";
  }
  own.data.vocabulary = data.vocabulary;
  own.data.classes = data.classes;
  own.data.train = train.count();
  own.data.eval = eval.count();
  own.data.shuffle = false;
  return own;
}

}  // namespace twinrun
