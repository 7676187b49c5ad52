// Two small models for the tests of programs and of the device model, and helpers for both.
#pragma once

#include "program/graph/layers.h"

namespace twinrun::models {

// [batch, 12] -> 5 -> relu -> 3 classes.
inline Program mlp(int64_t batch = 8, OptimizerSpec optimizer = {}) {
  return build_forward(Mode::kTraining, batch, {{12}}, 7, optimizer, [=](Layers& net) {
    net.dense("dense1", 5);
    net.end_layer("dense1");
    net.relu("relu1");
    net.end_layer("relu1");
    net.dense("dense2", 3);
    net.end_layer("dense2");
    net.softmax_cross_entropy(3, {Reducer::kMean});
  });
}

// Convolution, batch norm over images, pooling, batch norm over features, dropout.
inline Program cnn(int64_t batch = 16, OptimizerSpec optimizer = {}, Mode mode = Mode::kTraining) {
  return build_forward(mode, batch, {{6, 6, 2}}, 7, optimizer, [=](Layers& net) {
    net.conv2d("conv1", {.filters = 4, .kernel = 3, .weights = {.bias = false}});
    net.end_layer("conv1");
    net.batch_norm("bn1", {.epsilon = 1e-3, .momentum = 0.9});
    net.end_layer("bn1");
    net.relu("relu1");
    net.end_layer("relu1");
    net.pool("pool1", {2, 2, {Padding::Kind::kValid}}, Reducer::kMax);
    net.end_layer("pool1");
    net.flatten("flatten1");
    net.end_layer("flatten1");
    net.dense("dense1", 8);
    net.end_layer("dense1");
    net.batch_norm("bn2", {.epsilon = 1e-3, .momentum = 0.9});
    net.end_layer("bn2");
    net.dropout("dropout1", {.rate = 0.25});
    net.end_layer("dropout1");
    net.dense("dense2", 3);
    net.end_layer("dense2");
    net.softmax_cross_entropy(3, {Reducer::kMean});
  });
}

inline OptimizerSpec momentum() { return {OptimizerSpec::Kind::kMomentum}; }
inline OptimizerSpec adam() { return {OptimizerSpec::Kind::kAdam}; }

inline int count(const Program& p, OpKind kind) {
  int n = 0;
  for (const Op& op : p.graph.ops()) n += op.kind == kind;
  return n;
}

}  // namespace twinrun::models
