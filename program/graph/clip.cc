// Clipping of gradients by value, by norm and by global norm, as graph code.
#include "program/graph/clip.h"

#include "program/graph/optimizer_rules.h"

namespace twinrun {
namespace {

ValueId clip_by_value(GraphBuilder& b, ValueId g, double c) {
  const ValueId below = b.binary_scalar(OpKind::kMinimum, g, c, "clip_high");
  return b.binary_scalar(OpKind::kMaximum, below, -c, "clipped");
}

// torch.nn.utils.clip_grad_norm_: min(c / (n + 1e-6), 1).
ValueId scale_with_slack(GraphBuilder& b, ValueId n, double c) {
  const ValueId below = b.binary_scalar(OpKind::kAdd, n, 1e-6, "norm_with_slack");
  const ValueId share = b.div(b.constant(c, DType::kF32, "clip_at"), below, "clip_share");
  return b.binary_scalar(OpKind::kMinimum, share, 1, "scale");
}

ValueId clip_by_norm(GraphBuilder& b, ValueId g, double c) {
  const ValueId bound = b.binary_scalar(OpKind::kMaximum, norm(b, g, "norm"), c, "clip_divisor");
  const ValueId scaled = b.binary_scalar(OpKind::kMultiply, g, c, "clip_scaled");
  return with_scalar(b, OpKind::kDivide, scaled, bound, "clipped");
}

// The factor of every gradient under clipping by global norm.
ValueId global_scale(GraphBuilder& b, const std::vector<ValueId>& grads, double c, bool slack) {
  ValueId total = kNoValue;
  for (ValueId g : grads) {
    if (g == kNoValue) continue;
    const ValueId squares = square_sum(b, g, "gradient");
    total = total == kNoValue ? squares : b.add(total, squares, "square_sum");
  }
  if (total == kNoValue) return kNoValue;
  const ValueId n = b.unary(OpKind::kSqrt, total, "global_norm");
  if (slack) return scale_with_slack(b, n, c);
  const ValueId inverse = b.div(b.constant(1, DType::kF32, "one"), n, "inverse_norm");
  const ValueId smaller = b.binary_scalar(OpKind::kMinimum, inverse, 1 / c, "inverse");
  const ValueId finite = b.binary_scalar(OpKind::kMultiply, smaller, c, "scale_if_finite");
  return b.add(finite, b.sub(n, n, "zero_if_finite"), "scale");
}

}  // namespace

void clip_gradients(Program& program, const std::vector<std::string>& names,
                    std::vector<ValueId>& grads, Phase phase) {
  const OptimizerSpec& spec = program.optimizer;
  if (spec.clip == OptimizerSpec::Clip::kNone) return;
  ValueId scale = kNoValue;
  if (spec.clip == OptimizerSpec::Clip::kGlobalNorm) {
    GraphBuilder b(program.graph, "clip", phase);
    scale = global_scale(b, grads, spec.clip_at, spec.clip_slack);
  }
  for (size_t i = 0; i < grads.size(); ++i) {
    if (grads[i] == kNoValue) continue;
    GraphBuilder b = GraphBuilder(program.graph).derived(names[i] + ".grad", phase);
    switch (spec.clip) {
      case OptimizerSpec::Clip::kNone:
        break;
      case OptimizerSpec::Clip::kValue:
        grads[i] = clip_by_value(b, grads[i], spec.clip_at);
        break;
      case OptimizerSpec::Clip::kNorm:
        grads[i] = spec.clip_slack
                       ? with_scalar(b, OpKind::kMultiply, grads[i],
                                     scale_with_slack(b, norm(b, grads[i], "norm"), spec.clip_at),
                                     "clipped")
                       : clip_by_norm(b, grads[i], spec.clip_at);
        break;
      case OptimizerSpec::Clip::kGlobalNorm:
        grads[i] = with_scalar(b, OpKind::kMultiply, grads[i], scale, "clipped");
        break;
    }
  }
}

}  // namespace twinrun
