// Optimizers as graph code: the last part of a training step. Formulas, their sources and the table
// of slots: docs/reference/formulas.md.
//
//   append_update(program, parameters, grads, learning_rate);      // training_step() calls it
//   slot_bytes({.kind = OptimizerSpec::Kind::kAdam}, weight_type); // 8 per f32 weight
//
// sgd, momentum, adam, adagrad, adadelta, rmsprop, adamax: tensorflow core/kernels/training_ops.cc,
// and tf2xla's kernel where it differs (OptimizerSpec::Algebra). adamw: Keras. lamb: TensorFlow
// Addons. adafactor: Tensor2Tensor. lars: the TPU models.
#pragma once

#include "program/graph/program.h"

namespace twinrun {

// Whether a list of names of parameters and layers contains this parameter or its layer.
bool is_among(const std::vector<std::string>& names, const std::string& parameter);

// Appends the update of parameter state[parameters[i]] by gradient grads[i] (kNoValue: no update)
// for every i. Adds slots to the state, and "<parameter>.ema" where the optimizer averages weights.
void append_update(Program& program, const std::vector<int>& parameters,
                   const std::vector<ValueId>& grads, ValueId learning_rate);

// Bytes of the slots of one parameter of this type: the rule's, the gradient sum of accumulation,
// the averaged weights. Scalars that a program has once (beta powers, step counts) are not
// included.
int64_t slot_bytes(const OptimizerSpec& spec, const TensorType& parameter);

// Whether TensorFlow's CPU kernel and XLA compute the update by different formulas with the same
// meaning.
bool has_two_algebras(const OptimizerSpec& spec);

}  // namespace twinrun
