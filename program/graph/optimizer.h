// Optimizers as graph code, TF's definitions (tensorflow/core/kernels/training_ops.cc):
//   sgd       w -= lr g
//   momentum  a = a m + g;  w -= lr a;  Nesterov: w -= lr g + lr m a (as g*lr + a*m*lr)
//   adam      alpha = lr sqrt(1 - b2^t) / (1 - b1^t);  m += (g - m)(1 - b1);  v += (g^2 - v)(1 - b2);
//             w -= (m alpha) / (sqrt(v) + epsilon): epsilon outside the bias correction ("epsilon hat");
//             b1^t, b2^t are state, multiplied after each step
#pragma once

#include "program/graph/program.h"

namespace twinrun {

// Appends the update of parameter state[i] by gradient grads[i] (kNoValue: no update) for every i; adds slots to the state.
void append_update(Program& program, const std::vector<int>& parameters,
                   const std::vector<ValueId>& grads, ValueId learning_rate);

}  // namespace twinrun
