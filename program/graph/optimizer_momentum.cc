// Gradient descent, plain and with momentum (tensorflow core/kernels/training_ops.cc):
//   sgd       w' = w - g lr
//   momentum  a' = a m + g;  w' = w - a' lr;  Nesterov: w' = w - (g lr + (a' m) lr)
//             with dampening: a' = a m + g (1 - dampening)
#include "program/graph/optimizer_rules.h"

namespace twinrun {

void sgd(const Update& u, int parameter, ValueId g) {
  GraphBuilder b = u.at(parameter);
  const ValueId scaled = b.mul(g, b.broadcast_scalar(u.lr, g, "lr"), "update_step");
  u.set(parameter, b.sub(u.decayed_weight(b, parameter), scaled, "update"));
}

void momentum(const Update& u, int parameter, ValueId g) {
  const int slot = u.slot(parameter, "momentum");
  GraphBuilder b = u.at(parameter);
  const ValueId decayed =
      b.binary_scalar(OpKind::kMultiply, u.var(slot).id, u.spec.momentum, "momentum_decay");
  ValueId gained = g;
  if (u.spec.dampening != 0)
    gained = b.binary_scalar(OpKind::kMultiply, gained, 1 - u.spec.dampening, "dampened");
  if (u.spec.velocity_of_steps()) {
    gained = with_scalar(b, OpKind::kMultiply, gained, u.lr, "velocity_step");
    const ValueId v = u.set(slot, b.add(decayed, gained, "momentum.update"));
    const ValueId step =
        u.spec.nesterov
            ? b.add(gained,
                    b.binary_scalar(OpKind::kMultiply, v, u.spec.momentum, "nesterov_decay"),
                    "update_step")
            : v;
    u.set(parameter, b.sub(u.decayed_weight(b, parameter), step, "update"));
    return;
  }
  const ValueId next = u.set(slot, b.add(decayed, gained, "momentum.update"));
  const ValueId lrs = b.broadcast_scalar(u.lr, g, "lr");
  ValueId step = kNoValue;
  if (u.spec.nesterov) {
    const ValueId ahead =
        b.mul(b.binary_scalar(OpKind::kMultiply, next, u.spec.momentum, "nesterov_decay"), lrs,
              "nesterov_ahead");
    step = b.add(b.mul(g, lrs, "nesterov_gradient"), ahead, "update_step");
  } else {
    step = b.mul(next, lrs, "update_step");
  }
  u.set(parameter, b.sub(u.decayed_weight(b, parameter), step, "update"));
}

}  // namespace twinrun
