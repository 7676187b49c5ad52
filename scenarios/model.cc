#include "scenarios/model.h"

#include <fmt/format.h>

#include "program/graph/layers.h"

namespace twinrun {
namespace {

OptimizerSpec optimizer_of(const OptimizerConfig& c) {
  OptimizerSpec spec;
  spec.kind = c.kind == "adam"       ? OptimizerSpec::Kind::kAdam
              : c.kind == "momentum" ? OptimizerSpec::Kind::kMomentum
                                     : OptimizerSpec::Kind::kSgd;
  spec.momentum = c.momentum;
  spec.nesterov = c.nesterov;
  spec.beta1 = c.beta1;
  spec.beta2 = c.beta2;
  spec.epsilon = c.epsilon;
  return spec;
}

void append(Layers& net, const LayerSpec& layer) {
  const bool same = layer.padding == "same";
  const int64_t pool_stride = layer.stride == 0 ? layer.window : layer.stride;
  if (layer.kind == "dense") {
    net.dense(layer.name, layer.units, layer.bias);
  } else if (layer.kind == "conv2d") {
    net.conv2d(layer.name, layer.filters, layer.kernel, layer.stride == 0 ? 1 : layer.stride, same,
               layer.bias);
  } else if (layer.kind == "max_pool") {
    net.pool(layer.name, layer.window, pool_stride, same, Reducer::kMax);
  } else if (layer.kind == "avg_pool") {
    net.pool(layer.name, layer.window, pool_stride, same, Reducer::kMean);
  } else if (layer.kind == "flatten") {
    net.flatten(layer.name);
  } else if (layer.kind == "relu") {
    net.relu(layer.name);
  } else if (layer.kind == "batch_norm") {
    net.batch_norm(layer.name, layer.momentum, layer.epsilon);
  } else if (layer.kind == "dropout") {
    net.dropout(layer.name, layer.rate);
  } else {
    throw GraphError(layer.name + ": unknown layer kind '" + layer.kind + "'");
  }
}

Result<Program> build(const Scenario& s, const Dims& sample, int64_t batch, Mode mode) {
  Layers net(mode, batch, sample, s.seed);
  int line = 0;
  try {
    for (const LayerSpec& layer : s.model.layers) {
      line = layer.line;
      append(net, layer);
    }
    const Reducer reduction =
        s.loss.reduction == LossReduction::kMean ? Reducer::kMean : Reducer::kSum;
    if (s.loss.kind == "mean_squared_error") {
      net.mean_squared_error(s.data.classes, reduction);
    } else {
      net.softmax_cross_entropy(s.data.classes, reduction);
    }
    return net.finish(optimizer_of(s.optimizer));
  } catch (const GraphError& e) {
    return Error{e.what(),
                 line > 0 ? fmt::format("{}:{}: [model]", s.file, line) : s.file + ": [model]",
                 "change the layer or the one before it; shapes are batch first"};
  }
}

}  // namespace

Result<Program> build_training(const Scenario& scenario, const Dims& sample) {
  return build(scenario, sample, scenario.train.batch, Mode::kTraining);
}
Result<Program> build_inference(const Scenario& scenario, const Dims& sample, int64_t batch) {
  return build(scenario, sample, batch, Mode::kInference);
}

Sharding sharding_of(const Scenario& s) {
  Sharding sharding;
  sharding.cores = s.tpu.cores;
  sharding.reduction = s.tpu.reduction == LossReduction::kMean ? Reduction::kMean : Reduction::kSum;
  sharding.batchnorm =
      s.tpu.batchnorm == "synced" ? BatchNormSync::kSynced : BatchNormSync::kPerCore;
  return sharding;
}

}  // namespace twinrun
