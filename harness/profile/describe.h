// Descriptions of ops, shared by modelled and measured profiles.
#pragma once

#include <string>

#include "program/graph/program.h"

namespace twinrun {

// XProf's categories: "convolution", "dot", "pooling", "reduction", "random", "all-reduce",
// "elementwise", "data formatting".
std::string category_of(OpKind kind);
// The framework's name for an op: its layer, or the op itself where it belongs to none.
std::string framework_op_of(const std::string& op);
// "dense1/dot_general = f32[8,4] dot_general(f32[8,2] x, f32[2,4] dense1/kernel)"
std::string expression_of(const Graph& graph, ValueId id);

}  // namespace twinrun
