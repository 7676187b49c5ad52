// The model of fixtures/small.toml as a checkpoint of zeros, so that these tests need not link the
// code that reads scenarios.
#pragma once

#include "checkpoints/interchange/match.h"
#include "tests/checkpoints/fixtures.h"

namespace twinrun::samples {

struct SmallModel {
  ModelOutline outline;
  Checkpoint initial;
};

inline void add_tensor(SmallModel& model, const std::string& name, Dims dims,
                       const std::string& role) {
  model.outline.names.push_back(name);
  model.initial.tensors[name] = {Tensor::zeros({DType::kF32, std::move(dims)}), role, false};
}

// `layers` gives the names of conv1, bn1 and dense1; `adam` adds Adam's slots.
inline SmallModel small_model(bool adam = false,
                              const std::vector<std::string>& layers = {"conv1", "bn1", "dense1"}) {
  SmallModel model;
  add_tensor(model, layers[0] + "/kernel", {3, 3, 1, 2}, "parameter");
  add_tensor(model, layers[0] + "/bias", {2}, "parameter");
  add_tensor(model, layers[1] + "/gamma", {2}, "parameter");
  add_tensor(model, layers[1] + "/beta", {2}, "parameter");
  add_tensor(model, layers[1] + "/moving_mean", {2}, "statistic");
  add_tensor(model, layers[1] + "/moving_variance", {2}, "statistic");
  add_tensor(model, layers[2] + "/kernel", {32, 10}, "parameter");
  add_tensor(model, layers[2] + "/bias", {10}, "parameter");
  model.outline.classes = {
      {layers[0], "conv2d"}, {layers[1], "batch_normalization"}, {layers[2], "dense"}};
  if (!adam) return model;
  for (const std::string& name : std::vector<std::string>(model.outline.names)) {
    const CheckpointTensor& tensor = model.initial.tensors.at(name);
    if (tensor.role != "parameter") continue;
    const Dims dims = tensor.value.dims();
    add_tensor(model, name + ".adam_m", dims, "slot");
    add_tensor(model, name + ".adam_v", dims, "slot");
  }
  add_tensor(model, "adam/beta1_power", {}, "counter");
  add_tensor(model, "adam/beta2_power", {}, "counter");
  model.initial.tensors.at("adam/beta1_power").value = Tensor::scalar(0.9f);
  model.initial.tensors.at("adam/beta2_power").value = Tensor::scalar(0.999f);
  return model;
}

// Whether the model's variables have the values that make_keras.py gives them.
inline bool has_patterns(const Checkpoint& checkpoint, const ModelOutline& outline) {
  for (size_t v = 0; v < 8; ++v) {
    if (!is_pattern(checkpoint.tensors.at(outline.names[v]).value, static_cast<int>(v)))
      return false;
  }
  return true;
}

}  // namespace twinrun::samples
