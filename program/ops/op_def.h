// The definition of each op kind: how to infer its result type, how to build its gradient, and its
// FLOPs.
// op_def(kind) finds it; each family of ops has a file in this folder. Graph construction and
// autodiff use it.
//
//   TensorType t = op_def(op.kind).infer(op, operand_types);  // throws GraphError with the reason
#pragma once

#include <span>
#include <vector>

#include "program/ops/graph.h"

namespace twinrun {

// Arguments of a gradient function: `op` (with result id `self`), the cotangent `dy`, and a builder
// that names the ops it emits "<op name>.<local>". The function sets d[i] for each operand that has
// a gradient; the others stay kNoValue.
struct GradientArgs {
  GraphBuilder b;
  const Op& op;  // a copy owned by the caller, since emitting ops may reallocate the graph's ops
  ValueId self;
  ValueId dy;
  std::vector<ValueId>& d;
};

using InferFn = TensorType (*)(const Op& op, std::span<const TensorType> in);
using GradientFn = void (*)(GradientArgs& g);
using FlopsFn = double (*)(const Graph& graph, const Op& op);

struct OpDef {
  InferFn infer = nullptr;
  GradientFn gradient = nullptr;  // nullptr: no gradient flows through
  // nullptr: one per result element, or none for sources and moves
  FlopsFn flops = nullptr;
};

const OpDef& op_def(OpKind kind);

// Floating-point operations of an op. A multiply-add counts as two, an elementwise op
// (transcendental or not) as one per result element.
double flops(const Graph& graph, ValueId id);

// The families, each in its own file.
OpDef source_def(OpKind kind);
OpDef movement_def(OpKind kind);
OpDef elementwise_def(OpKind kind);
OpDef dot_def(OpKind kind);
OpDef reduce_def(OpKind kind);
OpDef window_def(OpKind kind);
OpDef random_def(OpKind kind);
OpDef collective_def(OpKind kind);

}  // namespace twinrun
