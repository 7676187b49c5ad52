// adafactor (tensor2tensor/utils/adafactor.py), t from 1:
//   decay = 1 - t^-0.8 (as exp(log t * -0.8));  mixing = 1 - decay;  q = g g + 1e-30
//   rank >= 2: vr = vr decay + mean(q over the last dimension) mixing;
//              vc likewise over the dimension before the last;
//              x = (g rsqrt(vr / mean(vr over its last dimension))) rsqrt(vc)
//   rank <= 1: v = v decay + q mixing;  x = g rsqrt(v)
//   x /= max(1, rms(x) / clipping_threshold);
//   step = x rate, times max(rms(w), 1e-3) with parameter_scale
//   rate = lr, or with relative_step min(rsqrt(t), 0.01), times 0.05 without parameter_scale
//   beta1 > 0: m = m beta1 + step (1 - beta1) is the step.  w -= step
// Not included: the terms of 1e-30 mean(q) that the original adds to decay and rate to prevent a
// rewrite by XLA.
#include "program/graph/optimizer_rules.h"

namespace twinrun {
namespace {

constexpr double kEpsilon1 = 1e-30, kEpsilon2 = 1e-3, kDecayExponent = 0.8;

ValueId rms(GraphBuilder& b, ValueId x, const std::string& local) {
  const ValueId squares = b.mul(x, x, local + "_squares");
  const Dims all = other_dims(b.type(x).rank());
  const ValueId mean =
      all.empty() ? squares : b.reduce(squares, all, Reducer::kMean, local + "_mean_square");
  return b.unary(OpKind::kSqrt, mean, local);
}

// slot' = slot decay + target mixing
ValueId blend(const Update& u, GraphBuilder& b, int slot, ValueId target, const AdafactorStep& step,
              const std::string& local) {
  const ValueId kept =
      with_scalar(b, OpKind::kMultiply, u.var(slot).id, step.decay, local + "_kept");
  const ValueId part = with_scalar(b, OpKind::kMultiply, target, step.mixing, local + "_part");
  return u.set(slot, b.add(kept, part, local + ".update"));
}

// g divided by the root of the second moment, which is the product of a row factor and a column
// factor.
ValueId factored(const Update& u, GraphBuilder& b, int parameter, ValueId g, ValueId q,
                 const AdafactorStep& step) {
  const Dims dims = b.type(g).dims;
  const auto rank = static_cast<int64_t>(dims.size());
  Dims row = dims, column = dims;
  row.pop_back();
  column.erase(column.end() - 2);
  const Dims row_map = other_dims(rank, {rank - 1}), column_map = other_dims(rank, {rank - 2});
  const Dims lead_map = other_dims(rank - 2);
  const int vri = u.slot(parameter, "vr", row, 0);
  const int vci = u.slot(parameter, "vc", column, 0);
  const ValueId vr =
      blend(u, b, vri, b.reduce(q, {rank - 1}, Reducer::kMean, "row_mean"), step, "vr");
  const ValueId vc =
      blend(u, b, vci, b.reduce(q, {rank - 2}, Reducer::kMean, "column_mean"), step, "vc");
  const ValueId long_term = b.reduce(vr, {rank - 2}, Reducer::kMean, "long_term_mean");
  const ValueId share =
      b.div(vr, b.broadcast(long_term, row, lead_map, "long_term_means"), "row_share");
  const ValueId row_factor = b.unary(OpKind::kRsqrt, share, "row_factor");
  const ValueId column_factor = b.unary(OpKind::kRsqrt, vc, "column_factor");
  const ValueId x = b.mul(g, b.broadcast(row_factor, dims, row_map, "row_factors"), "row_scaled");
  return b.mul(x, b.broadcast(column_factor, dims, column_map, "column_factors"), "normalized");
}

}  // namespace

AdafactorStep adafactor_step(const Update& u) {
  const int counter = u.counter("adafactor/step", 1);
  GraphBuilder b(u.program.graph, "adafactor", Phase::kUpdate);
  const ValueId t = u.var(counter).id;
  const ValueId one = b.constant(1.0, DType::kF32, "one");
  const ValueId power =
      b.unary(OpKind::kExponential,
              b.binary_scalar(OpKind::kMultiply, b.unary(OpKind::kLog, t, "log_step"),
                              -kDecayExponent, "exponent"),
              "power");
  AdafactorStep step;
  step.decay = b.sub(one, power, "decay");
  step.mixing = b.sub(one, step.decay, "mixing");
  step.rate = u.lr;
  if (u.spec.relative_step) {
    step.rate = b.binary_scalar(OpKind::kMinimum, b.unary(OpKind::kRsqrt, t, "rsqrt_step"), 0.01,
                                "relative_step");
    if (!u.spec.parameter_scale)
      step.rate = b.binary_scalar(OpKind::kMultiply, step.rate, 0.05, "unscaled_step");
  }
  u.set(counter, b.add(t, one, "step.update"));
  return step;
}

void adafactor(const Update& u, int parameter, ValueId g, const AdafactorStep& step) {
  const OptimizerSpec& spec = u.spec;
  const ValueId w = u.var(parameter).id;
  GraphBuilder b = u.at(parameter);
  const ValueId q =
      b.binary_scalar(OpKind::kAdd, b.mul(g, g, "gradient_square"), kEpsilon1, "square_epsilon");
  ValueId x = kNoValue;
  if (b.type(g).rank() >= 2) {
    x = factored(u, b, parameter, g, q, step);
  } else {
    const int slot = u.slot(parameter, "v");
    x = b.mul(g, b.unary(OpKind::kRsqrt, blend(u, b, slot, q, step, "v"), "rsqrt_v"), "normalized");
  }
  const ValueId excess = b.binary_scalar(OpKind::kDivide, rms(b, x, "rms"), spec.clipping_threshold,
                                         "rms_over_threshold");
  x = with_scalar(b, OpKind::kDivide, x,
                  b.binary_scalar(OpKind::kMaximum, excess, 1.0, "clipping_denominator"),
                  "clipped");
  ValueId rate = step.rate;
  if (spec.parameter_scale) {
    const ValueId scale =
        b.binary_scalar(OpKind::kMaximum, rms(b, w, "weight_rms"), kEpsilon2, "parameter_scale");
    rate = b.mul(rate, scale, "scaled_rate");
  }
  ValueId change = with_scalar(b, OpKind::kMultiply, x, rate, "update_step");
  if (spec.beta1 > 0) {
    const int slot = u.slot(parameter, "m");
    change = u.mix(b, slot, change, spec.beta1, "m");
  }
  u.set(parameter, b.sub(w, change, "update"));
}

}  // namespace twinrun
