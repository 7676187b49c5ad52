// Rules that scale the step of a whole variable by norms:
//   lars  (tensorflow/tpu models, lars_optimizer.py)
//         rank >= 2: trust = (c |w|) / ((|g| + wd |w|) + epsilon), 1 where a norm is 0;
//         g' = (g + w wd)(lr trust).  Rank <= 1 (biases, batch norm: its skip list): g' = g lr.
//         a = a m + g';  w -= a;  Nesterov: w -= g' + a m
//   lamb  (tensorflow_addons/optimizers/lamb.py)
//         m = m b1 + g (1 - b1);  v = v b2 + g g (1 - b2);
//         u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon) + w wd;
//         ratio = |w| / |u|, 1 where a norm is 0;  w -= u (ratio lr)
#include "program/graph/optimizer_rules.h"

namespace twinrun {
namespace {

// `ratio` where both norms are positive, else 1.
ValueId trusted(GraphBuilder& b, ValueId w_norm, ValueId other_norm, ValueId ratio) {
  const ValueId zero = b.constant(0, DType::kF32, "zero");
  const ValueId one = b.constant(1, DType::kF32, "one");
  const ValueId inner = b.select(b.compare(CompareKind::kGt, other_norm, zero, "has_step"), ratio,
                                 one, "trust_of_step");
  return b.select(b.compare(CompareKind::kGt, w_norm, zero, "has_weight"), inner, one, "trust");
}

}  // namespace

void lars(const Update& u, int parameter, ValueId g) {
  const OptimizerSpec& spec = u.spec;
  const int slot = u.slot(parameter, "momentum");
  const ValueId w = u.var(parameter).id;
  GraphBuilder b = u.at(parameter);
  ValueId rate = u.lr;
  if (b.type(w).rank() >= 2) {
    const ValueId wn = norm(b, w, "weight_norm"), gn = norm(b, g, "gradient_norm");
    const ValueId decayed = b.add(
        gn, b.binary_scalar(OpKind::kMultiply, wn, spec.weight_decay, "decay_norm"), "step_norm");
    const ValueId above =
        b.binary_scalar(OpKind::kMultiply, wn, spec.trust_coefficient, "trust_numerator");
    const ValueId below = b.binary_scalar(OpKind::kAdd, decayed, spec.epsilon, "trust_denominator");
    const ValueId ratio = b.div(above, below, "trust_ratio");
    rate = b.mul(u.lr, trusted(b, wn, gn, ratio), "scaled_lr");
    g = b.add(g, b.binary_scalar(OpKind::kMultiply, w, spec.weight_decay, "weight_decay"),
              "decayed_gradient");
  }
  const ValueId scaled = with_scalar(b, OpKind::kMultiply, g, rate, "scaled_gradient");
  const ValueId decayed =
      b.binary_scalar(OpKind::kMultiply, u.var(slot).id, spec.momentum, "momentum_decay");
  const ValueId a = u.set(slot, b.add(decayed, scaled, "momentum.update"));
  ValueId step = a;
  if (spec.nesterov) {
    step = b.add(scaled, b.binary_scalar(OpKind::kMultiply, a, spec.momentum, "nesterov_ahead"),
                 "update_step");
  }
  u.set(parameter, b.sub(w, step, "update"));
}

LambPowers lamb_powers(const Update& u) {
  const int i1 = u.counter("lamb/beta1_power", u.spec.beta1);
  const int i2 = u.counter("lamb/beta2_power", u.spec.beta2);
  GraphBuilder b(u.program.graph, "lamb", Phase::kUpdate);
  const ValueId one = b.constant(1.0, DType::kF32, "one");
  const ValueId p1 = u.var(i1).id, p2 = u.var(i2).id;
  const bool stuck = u.spec.bias_correction == OptimizerSpec::Correction::kStuck;
  const ValueId first = stuck ? b.constant(u.spec.beta1, DType::kF32, "beta1") : p1;
  const ValueId second = stuck ? b.constant(u.spec.beta2, DType::kF32, "beta2") : p2;
  LambPowers powers;
  powers.rest1 = b.sub(one, first, "one_minus_beta1_power");
  powers.rest2 = b.sub(one, second, "one_minus_beta2_power");
  u.set(i1, b.binary_scalar(OpKind::kMultiply, p1, u.spec.beta1, "beta1_power.update"));
  u.set(i2, b.binary_scalar(OpKind::kMultiply, p2, u.spec.beta2, "beta2_power.update"));
  return powers;
}

void lamb(const Update& u, int parameter, ValueId g, const LambPowers& powers) {
  const OptimizerSpec& spec = u.spec;
  const int mi = u.slot(parameter, "lamb_m");
  const int vi = u.slot(parameter, "lamb_v");
  const ValueId w = u.var(parameter).id;
  GraphBuilder b = u.at(parameter);
  const ValueId m = u.mix(b, mi, g, spec.beta1, "lamb_m");
  const ValueId v = u.mix(b, vi, b.mul(g, g, "lamb_square"), spec.beta2, "lamb_v");
  using Correction = OptimizerSpec::Correction;
  const ValueId m_hat = spec.bias_correction == Correction::kNone
                            ? m
                            : with_scalar(b, OpKind::kDivide, m, powers.rest1, "lamb_m_hat");
  const bool first_alone =
      spec.bias_correction == Correction::kNone || spec.bias_correction == Correction::kFirst;
  const ValueId v_hat =
      first_alone ? v : with_scalar(b, OpKind::kDivide, v, powers.rest2, "lamb_v_hat");
  const auto add_epsilon = [&](ValueId x) {
    return b.binary_scalar(OpKind::kAdd, x, spec.epsilon, "lamb_denominator");
  };
  const ValueId root = spec.epsilon_form == OptimizerSpec::Epsilon::kInside
                           ? b.unary(OpKind::kSqrt, add_epsilon(v_hat), "lamb_sqrt")
                           : add_epsilon(b.unary(OpKind::kSqrt, v_hat, "lamb_sqrt"));
  ValueId change = b.div(m_hat, root, "lamb_change");
  const ValueId undecayed = change;
  if (spec.weight_decay > 0) {
    change = b.add(change, b.binary_scalar(OpKind::kMultiply, w, spec.weight_decay, "weight_decay"),
                   "decayed_change");
  }
  using Trust = OptimizerSpec::Trust;
  ValueId rate = u.lr;
  if (spec.trust != Trust::kOne) {
    const ValueId wn = norm(b, w, "weight_norm");
    const ValueId un = norm(b, spec.trust == Trust::kUndecayed ? undecayed : change, "change_norm");
    const ValueId trust = trusted(b, wn, un, b.div(wn, un, "trust_ratio"));
    rate = b.mul(trust, u.lr, "scaled_lr");
  }
  const ValueId step = with_scalar(b, OpKind::kMultiply, change, rate, "update_step");
  u.set(parameter, b.sub(w, step, "update"));
}

}  // namespace twinrun
