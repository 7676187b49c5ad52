// Layers as graph code: each appends ops under its own scope and declares its state with how to initialise it.
//
//   Layers net(Mode::kTraining, /*batch=*/256, {28, 28, 1}, /*seed=*/7);
//   net.conv2d("conv1", 16, 3, 1, /*same=*/true, /*bias=*/true);
//   net.relu("relu1");  net.flatten("flatten1");  net.dense("dense1", 10, true);
//   net.softmax_cross_entropy(10, Reducer::kMean);
//   Program forward = net.finish(optimizer);
#pragma once

#include <string>

#include "program/graph/program.h"

namespace twinrun {

enum class Mode : uint8_t { kTraining, kInference };

class Layers {
 public:
  // sample: sizes of one sample, [h, w, c] or [features]. Throws GraphError from any layer that does not fit.
  Layers(Mode mode, int64_t batch, Dims sample, uint64_t seed);

  void dense(const std::string& name, int64_t units, bool bias);  // needs [batch, features]
  void conv2d(const std::string& name, int64_t filters, int64_t kernel, int64_t stride, bool same,
              bool bias);
  void pool(const std::string& name, int64_t window, int64_t stride, bool same, Reducer reducer);
  void flatten(const std::string& name);
  void relu(const std::string& name);
  // Training: statistics of the batch (biased variance); running statistics moving -= (moving - batch) * (1 - momentum), their
  // variance Bessel corrected for images as TF's fused kernel does (tf2xla/kernels/batch_norm_op.cc), not for [batch, features].
  // Inference: running statistics.
  void batch_norm(const std::string& name, double momentum, double epsilon);
  // Training: keeps x / (1 - rate) where uniform >= rate, else +0. Inference: identity.
  void dropout(const std::string& name, double rate);

  // Losses over the batch; labels are i32 classes.
  void softmax_cross_entropy(int64_t classes, Reducer reduction);
  void mean_squared_error(int64_t classes,
                          Reducer reduction);  // against one-hot; mean over classes per sample

  const Dims& shape() const;  // of the current value, batch first
  Program finish(const OptimizerSpec& optimizer);

 private:
  ValueId state(const std::string& name, Dims dims, StateRole role, Initializer init);
  void update_statistic(const std::string& name, ValueId batch_value, double momentum);
  ValueId one_hot(GraphBuilder b, int64_t classes);
  void check_logits(const char* loss, int64_t classes);

  Mode mode_;
  uint64_t seed_;
  uint32_t streams_ = 0;
  Program program_;
  GraphBuilder root_;
  ValueId x_, labels_, sample_ids_, step_;
};

}  // namespace twinrun
