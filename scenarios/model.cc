#include "scenarios/model.h"

#include <fmt/format.h>

#include "program/graph/layers.h"

namespace twinrun {
namespace {

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
    return net.finish(optimizer_of(s));
  } catch (const GraphError& e) {
    return Error{e.what(),
                 line > 0 ? fmt::format("{}:{}: [model]", s.file, line) : s.file + ": [model]",
                 "change the layer or the one before it; shapes are batch first"};
  }
}

// 2^x and log2(x) in binary64 without libm: their last bits may not depend on a C library (numerics.md rule 5). Errors stay
// below 2^-45, far under binary32's rounding; series in the order written.
double log2_of(double x) {
  int exponent = 0;
  while (x >= 1.5) {
    x *= 0.5;
    ++exponent;
  }
  while (x < 0.75) {
    x *= 2.0;
    --exponent;
  }
  const double t = (x - 1.0) / (x + 1.0), t2 = t * t;  // ln x = 2 atanh t
  double sum = 0;
  for (int k = 33; k >= 1; k -= 2) sum = sum * t2 + 1.0 / k;
  return exponent + 2.0 * t * sum * 1.4426950408889634;
}
double exp2_of(double x) {
  int exponent = static_cast<int>(x);
  if (exponent > x) --exponent;
  const double r = (x - exponent) * 0.6931471805599453;
  double sum = 1;
  for (int k = 20; k >= 1; --k) sum = 1.0 + sum * r / k;
  for (; exponent > 0; --exponent) sum *= 2.0;
  for (; exponent < 0; ++exponent) sum *= 0.5;
  return sum;
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
  sharding.clipping = s.tpu.clipping == "before_all_reduce" ? Clipping::kBeforeAllReduce
                                                            : Clipping::kAfterAllReduce;
  return sharding;
}

float learning_rate(const OptimizerConfig& c, int64_t step) {
  if (c.schedule != "exponential") return static_cast<float>(c.lr);
  const double periods = static_cast<double>(step) / static_cast<double>(c.decay_steps);
  return static_cast<float>(c.lr * exp2_of(periods * log2_of(c.decay_rate)));
}

}  // namespace twinrun
