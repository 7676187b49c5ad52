// Rules that scale each weight's step by the history of its gradients (tensorflow
// core/kernels/training_ops.cc and compiler/tf2xla/kernels/training_ops.cc):
//   adam      alpha = (lr sqrt(1 - b2^t)) / (1 - b1^t);
//             m += (g - m)(1 - b1);  v += (g g - v)(1 - b2);
//             w -= (m alpha) / (sqrt(v) + epsilon): epsilon outside the bias correction ("epsilon
//             hat"); b1^t, b2^t are state, multiplied after each step. Other forms:
//             OptimizerSpec::epsilon_form, bias_correction, amsgrad
//   adamw     first w -= (w wd) lr (Keras: decay times learning rate), then adam's step
//   adamax    v = max(v b2, |g|);  w -= (lr / (1 - b1^t)) (m / (v + epsilon));
//             cpu: m += (g - m)(1 - b1);  xla: m = m b1 + g (1 - b1)
//   adagrad   a += g g;  w -= (g lr) / (sqrt(a) + epsilon)
//   adadelta  a = a rho + g g (1 - rho);  u = (sqrt(au + epsilon) rsqrt(a + epsilon)) g;
//             w -= u lr;  au = au rho + u u (1 - rho)
//   rmsprop   d = ms + epsilon, centered: (ms - mg mg) + epsilon;  w -= mom
//             cpu: ms += (g g - ms)(1 - rho), mg likewise;  mom = mom m + (g lr) / sqrt(d)
//             xla: ms = ms rho + g g (1 - rho), mg likewise;  mom = mom m + (g lr) rsqrt(d)
#include "program/graph/optimizer_rules.h"

namespace twinrun {
namespace {

// 1 - the state variable `power`, which is beta^t at step t: it starts as beta and is multiplied by
// beta after each step.
ValueId one_minus(const Update& u, GraphBuilder& b, int power, const std::string& local) {
  return b.sub(b.constant(1.0, DType::kF32, local + "_one"), u.var(power).id, local);
}

}  // namespace

AdamScalars adam_scalars(const Update& u) {
  using Correction = OptimizerSpec::Correction;
  const OptimizerSpec& spec = u.spec;
  const int i1 = u.counter("adam/beta1_power", spec.beta1);
  const int i2 = u.counter("adam/beta2_power", spec.beta2);
  GraphBuilder b(u.program.graph, "adam", Phase::kUpdate);
  ValueId p1 = u.var(i1).id, p2 = u.var(i2).id;
  const bool stuck = spec.bias_correction == Correction::kStuck;
  const bool both = stuck || spec.bias_correction == Correction::kBoth;
  if (stuck) {
    p1 = b.constant(spec.beta1, DType::kF32, "beta1");
    p2 = b.constant(spec.beta2, DType::kF32, "beta2");
  }
  const ValueId one = b.constant(1.0, DType::kF32, "one");
  for (int lead = 0; lead < spec.correction_lead; ++lead) {
    p1 = b.binary_scalar(OpKind::kMultiply, p1, spec.beta1, "beta1_power_ahead");
    p2 = b.binary_scalar(OpKind::kMultiply, p2, spec.beta2, "beta2_power_ahead");
  }
  const ValueId rest2 = b.sub(one, p2, "one_minus_beta2_power");
  const ValueId root = b.unary(OpKind::kSqrt, rest2, "root");
  const ValueId rest1 = spec.bias_correction == Correction::kNone
                            ? kNoValue
                            : b.sub(one, p1, "one_minus_beta1_power");
  AdamScalars out;
  if (spec.epsilon_form == OptimizerSpec::Epsilon::kRule ||
      spec.epsilon_form == OptimizerSpec::Epsilon::kRuleInside) {
    out.rate = both ? b.mul(u.lr, root, "lr_root") : u.lr;
  } else {
    out.rate = u.lr;
    if (both) out.divisor = spec.epsilon_form == OptimizerSpec::Epsilon::kInside ? rest2 : root;
  }
  if (spec.nesterov && spec.nesterov_apart && rest1 != kNoValue) {
    const ValueId next = b.binary_scalar(OpKind::kMultiply, p1, spec.beta1, "beta1_power_next");
    out.rate_ahead = b.div(out.rate, b.sub(one, next, "one_minus_next"), "alpha_ahead");
  }
  if (rest1 != kNoValue) out.rate = b.div(out.rate, rest1, "alpha");
  u.set(i1, b.binary_scalar(OpKind::kMultiply, u.var(i1).id, spec.beta1, "beta1_power.update"));
  u.set(i2, b.binary_scalar(OpKind::kMultiply, u.var(i2).id, spec.beta2, "beta2_power.update"));
  return out;
}

void adam(const Update& u, int parameter, ValueId g, const AdamScalars& scalars) {
  const OptimizerSpec& spec = u.spec;
  const int mi = u.slot(parameter, "adam_m");
  const int vi = u.slot(parameter, "adam_v");
  const int largest = spec.amsgrad ? u.slot(parameter, "adam_vmax") : -1;
  GraphBuilder b = u.at(parameter);
  const ValueId w = u.decayed_weight(b, parameter);
  const ValueId m = u.toward(b, mi, g, 1 - spec.beta1, "adam_m");
  ValueId v = u.toward(b, vi, b.mul(g, g, "adam_square"), 1 - spec.beta2, "adam_v");
  if (spec.amsgrad)
    v = u.set(largest, b.binary(OpKind::kMaximum, u.var(largest).id, v, "adam_vmax.update"));
  const auto corrected = [&](ValueId x) {
    return scalars.divisor == kNoValue
               ? x
               : with_scalar(b, OpKind::kDivide, x, scalars.divisor, "adam_corrected");
  };
  const auto add_epsilon = [&](ValueId x) {
    return b.binary_scalar(OpKind::kAdd, x, spec.epsilon, "adam_denominator");
  };
  const bool inside = spec.epsilon_form == OptimizerSpec::Epsilon::kInside ||
                      spec.epsilon_form == OptimizerSpec::Epsilon::kRuleInside;
  const ValueId below = inside ? b.unary(OpKind::kSqrt, add_epsilon(corrected(v)), "adam_sqrt")
                               : add_epsilon(corrected(b.unary(OpKind::kSqrt, v, "adam_sqrt")));
  ValueId ahead = m, above = kNoValue;
  if (spec.nesterov) {
    const ValueId kept = b.binary_scalar(OpKind::kMultiply, m, spec.beta1, "nesterov_kept");
    const ValueId part = b.binary_scalar(OpKind::kMultiply, g, 1 - spec.beta1, "nesterov_part");
    if (scalars.rate_ahead != kNoValue) {
      above = b.add(with_scalar(b, OpKind::kMultiply, kept, scalars.rate_ahead, "nesterov_moment"),
                    with_scalar(b, OpKind::kMultiply, part, scalars.rate, "nesterov_gradient"),
                    "adam_numerator");
    } else {
      ahead = b.add(kept, part, "nesterov_ahead");
    }
  }
  if (above == kNoValue)
    above = b.mul(ahead, b.broadcast_scalar(scalars.rate, m, "adam_alpha"), "adam_numerator");
  u.set(parameter, b.sub(w, b.div(above, below, "update_step"), "update"));
}

ValueId adamax_rate(const Update& u) {
  const int power = u.counter("adamax/beta1_power", u.spec.beta1);
  GraphBuilder b(u.program.graph, "adamax", Phase::kUpdate);
  using Correction = OptimizerSpec::Correction;
  ValueId rate = u.lr;
  if (u.spec.bias_correction == Correction::kStuck) {
    rate = b.div(u.lr, b.constant(1 - u.spec.beta1, DType::kF32, "one_minus_beta1"), "rate");
  } else if (u.spec.bias_correction != Correction::kNone) {
    rate = b.div(u.lr, one_minus(u, b, power, "one_minus_beta1_power"), "rate");
  }
  u.set(power,
        b.binary_scalar(OpKind::kMultiply, u.var(power).id, u.spec.beta1, "beta1_power.update"));
  return rate;
}

void adamax(const Update& u, int parameter, ValueId g, ValueId rate) {
  const OptimizerSpec& spec = u.spec;
  const int mi = u.slot(parameter, "adamax_m");
  const int vi = u.slot(parameter, "adamax_v");
  GraphBuilder b = u.at(parameter);
  const ValueId m = spec.algebra == OptimizerSpec::Algebra::kCpu
                        ? u.toward(b, mi, g, 1 - spec.beta1, "adamax_m")
                        : u.mix(b, mi, g, spec.beta1, "adamax_m");
  const ValueId decayed =
      b.binary_scalar(OpKind::kMultiply, u.var(vi).id, spec.beta2, "adamax_v_decay");
  const bool early = spec.epsilon_form == OptimizerSpec::Epsilon::kAfter;
  const auto add_epsilon = [&](ValueId x) {
    return b.binary_scalar(OpKind::kAdd, x, spec.epsilon, "adamax_denominator");
  };
  const ValueId size = b.unary(OpKind::kAbs, g, "adamax_abs");
  const ValueId v = u.set(
      vi, b.binary(OpKind::kMaximum, decayed, early ? add_epsilon(size) : size, "adamax_v.update"));
  const ValueId ratio = b.div(m, early ? v : add_epsilon(v), "adamax_ratio");
  const ValueId step = with_scalar(b, OpKind::kMultiply, ratio, rate, "update_step");
  u.set(parameter, b.sub(u.decayed_weight(b, parameter), step, "update"));
}

void adagrad(const Update& u, int parameter, ValueId g) {
  const int slot = u.slot(parameter, "accumulator", u.spec.initial_accumulator);
  GraphBuilder b = u.at(parameter);
  const ValueId a =
      u.set(slot, b.add(u.var(slot).id, b.mul(g, g, "adagrad_square"), "accumulator.update"));
  const auto add_epsilon = [&](ValueId x) {
    return b.binary_scalar(OpKind::kAdd, x, u.spec.epsilon, "adagrad_denominator");
  };
  const ValueId root = u.spec.epsilon_form == OptimizerSpec::Epsilon::kInside
                           ? b.unary(OpKind::kSqrt, add_epsilon(a), "adagrad_sqrt")
                           : add_epsilon(b.unary(OpKind::kSqrt, a, "adagrad_sqrt"));
  const ValueId step =
      b.div(with_scalar(b, OpKind::kMultiply, g, u.lr, "adagrad_numerator"), root, "update_step");
  u.set(parameter, b.sub(u.decayed_weight(b, parameter), step, "update"));
}

void adadelta(const Update& u, int parameter, ValueId g) {
  const double rho = u.spec.rho, epsilon = u.spec.epsilon;
  const int ai = u.slot(parameter, "accum");
  const int ui = u.slot(parameter, "accum_update");
  GraphBuilder b = u.at(parameter);
  const ValueId a = u.mix(b, ai, b.mul(g, g, "adadelta_square"), rho, "accum");
  ValueId ratio = kNoValue;
  if (u.spec.epsilon_form == OptimizerSpec::Epsilon::kAfter) {
    const auto root = [&](ValueId x, const std::string& local) {
      return b.binary_scalar(OpKind::kAdd, b.unary(OpKind::kSqrt, x, local), epsilon,
                             local + "_epsilon");
    };
    const ValueId above = root(u.var(ui).id, "accum_update_sqrt");
    ratio = b.div(above, root(a, "accum_sqrt"), "adadelta_ratio");
  } else {
    const ValueId above = b.unary(
        OpKind::kSqrt, b.binary_scalar(OpKind::kAdd, u.var(ui).id, epsilon, "accum_update_epsilon"),
        "adadelta_sqrt");
    const ValueId below =
        b.unary(OpKind::kRsqrt, b.binary_scalar(OpKind::kAdd, a, epsilon, "accum_epsilon"),
                "adadelta_rsqrt");
    ratio = b.mul(above, below, "adadelta_ratio");
  }
  const ValueId change = b.mul(ratio, g, "adadelta_change");
  u.mix(b, ui, b.mul(change, change, "adadelta_change_square"), rho, "accum_update");
  const ValueId step = with_scalar(b, OpKind::kMultiply, change, u.lr, "update_step");
  u.set(parameter, b.sub(u.decayed_weight(b, parameter), step, "update"));
}

void rmsprop(const Update& u, int parameter, ValueId g) {
  const OptimizerSpec& spec = u.spec;
  const bool cpu = spec.algebra == OptimizerSpec::Algebra::kCpu;
  const int ms_slot = u.slot(parameter, "rms", spec.initial_square);
  const int mom_slot = u.slot(parameter, "momentum");
  const int mg_slot = spec.centered ? u.slot(parameter, "mg") : -1;
  GraphBuilder b = u.at(parameter);
  const auto average = [&](int slot, ValueId target, const std::string& local) {
    return cpu ? u.toward(b, slot, target, 1 - spec.rho, local)
               : u.mix(b, slot, target, spec.rho, local);
  };
  ValueId d = average(ms_slot, b.mul(g, g, "rms_square"), "rms");
  if (spec.centered) {
    const ValueId mg = average(mg_slot, g, "mg");
    d = b.sub(d, b.mul(mg, mg, "mg_square"), "rms_variance");
  }
  const auto add_epsilon = [&](ValueId x) {
    return b.binary_scalar(OpKind::kAdd, x, spec.epsilon, "rms_epsilon");
  };
  const bool after = spec.epsilon_form == OptimizerSpec::Epsilon::kAfter;
  if (!after) d = add_epsilon(d);
  const bool steps = spec.velocity_of_steps();
  const ValueId scaled = steps ? with_scalar(b, OpKind::kMultiply, g, u.lr, "rms_numerator") : g;
  const ValueId change =
      after ? b.div(scaled, add_epsilon(b.unary(OpKind::kSqrt, d, "rms_root")), "rms_change")
      : cpu ? b.div(scaled, b.unary(OpKind::kSqrt, d, "rms_root"), "rms_change")
            : b.mul(scaled, b.unary(OpKind::kRsqrt, d, "rms_rsqrt"), "rms_change");
  const ValueId decayed =
      b.binary_scalar(OpKind::kMultiply, u.var(mom_slot).id, spec.momentum, "momentum_decay");
  const ValueId mom = u.set(mom_slot, b.add(decayed, change, "momentum.update"));
  const ValueId step = steps ? mom : with_scalar(b, OpKind::kMultiply, mom, u.lr, "rms_step");
  u.set(parameter, b.sub(u.decayed_weight(b, parameter), step, "update"));
}

}  // namespace twinrun
