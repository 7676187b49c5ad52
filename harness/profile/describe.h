// Ops in the words of a profile, whichever its source.
#pragma once

#include <string>

#include "program/graph/program.h"

namespace twinrun {

// "convolution", "dot", "pooling", "reduction", "random", "all-reduce", "elementwise", "data formatting": XProf's words.
std::string category_of(OpKind kind);
// What the framework would call it: the layer, or the op itself where it belongs to none.
std::string framework_op_of(const std::string& op);
// "dense1/dot_general = f32[8,4] dot_general(f32[8,2] x, f32[2,4] dense1/kernel)"
std::string expression_of(const Graph& graph, ValueId id);

}  // namespace twinrun
