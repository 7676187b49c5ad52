// What each op knows of itself: result type, gradient. One row per kind, found by op_def(kind); one file per family here.
//
//   TensorType t = op_def(op.kind).infer(op, operand_types);      // throws GraphError with the reason
#pragma once

#include <span>
#include <vector>

#include "program/ops/graph.h"

namespace twinrun {

// What a gradient function gets: `op` (result id `self`), the cotangent `dy`, and a builder that names what it emits
// "<op name>.<local>". It sets d[i] for each operand that has a gradient; kNoValue elsewhere.
struct GradientArgs {
  GraphBuilder b;
  const Op& op;  // a copy owned by the caller: emitting ops may move the graph's own
  ValueId self;
  ValueId dy;
  std::vector<ValueId>& d;
};

using InferFn = TensorType (*)(const Op& op, std::span<const TensorType> in);
using GradientFn = void (*)(GradientArgs& g);

struct OpDef {
  InferFn infer = nullptr;
  GradientFn gradient = nullptr;  // nullptr: no gradient flows through
};

const OpDef& op_def(OpKind kind);

// Multiply-adds count as two; elementwise ops as one per result element (transcendentals too).
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
