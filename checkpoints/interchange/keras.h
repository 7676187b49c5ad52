// Keras's two weight formats to ForeignWeights and back; both are HDF5 trees. Legacy (.h5, Keras 1
// to 3): the attribute layer_names, and for each layer a group with the attribute weight_names; a
// whole model has them below model_weights. Keras 3 (.weights.h5): layers/CLASS[_k]/vars/0..n,
// where the attribute `name` of vars is the layer's name. Layouts are the same as ours: HWIO
// kernels, [in, out] dense.
// Source: keras/src/legacy/saving/legacy_h5_format.py, keras/src/saving/saving_lib.py (3.15).
//
//   if (is_keras(tree)) weights = from_keras(std::move(tree), path);
//   TWINRUN_RETURN_IF_ERROR(set_keras_names(weights, path));
//   TWINRUN_ASSIGN(auto bytes, keras_bytes(weights, path));
#pragma once

#include "checkpoints/container/hdf5_tree.h"
#include "checkpoints/interchange/weights.h"

namespace twinrun {

bool is_keras(const Hdf5Tree& tree);
Result<ForeignWeights> from_keras(Hdf5Tree tree, const std::string& where);
// Renames the arrays from our names ("conv1/kernel") to those of the format `weights.format`:
// "conv1/kernel:0" or "layers/conv2d/vars/0". For Keras 3 every layer needs its class.
Status set_keras_names(ForeignWeights& weights, const std::string& where);
// The file's bytes, legacy or Keras 3 by weights.format. bfloat16 is written as float32.
Result<std::vector<std::byte>> keras_bytes(const ForeignWeights& weights, const std::string& where);

}  // namespace twinrun
