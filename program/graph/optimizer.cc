#include "program/graph/optimizer.h"

namespace twinrun {
namespace {

struct Update {
  Program& program;
  ValueId lr;  // scalar

  // A slot beside a parameter, "<parameter>.<suffix>", zero at first.
  int slot(const StateVar& parameter, const std::string& suffix) {
    StateVar var;
    var.name = parameter.name + "." + suffix;
    var.type = parameter.type;
    var.role = StateRole::kSlot;
    var.id = GraphBuilder(program.graph, "", Phase::kUpdate).parameter(var.name, var.type);
    program.state.push_back(var);
    return static_cast<int>(program.state.size()) - 1;
  }
  int counter(const std::string& name, double value) {
    StateVar var;
    var.name = name;
    var.type = {DType::kF32, {}};
    var.role = StateRole::kCounter;
    var.init.value = value;
    var.id = GraphBuilder(program.graph, "", Phase::kUpdate).parameter(var.name, var.type);
    program.state.push_back(var);
    return static_cast<int>(program.state.size()) - 1;
  }
  GraphBuilder at(const std::string& name) {
    return GraphBuilder(program.graph).derived(name, Phase::kUpdate);
  }
  ValueId spread(GraphBuilder& b, ValueId scalar, ValueId like, std::string_view local) {
    return b.broadcast_scalar(scalar, like, local);
  }

  void sgd(int parameter, ValueId g) {
    const StateVar w = program.state[static_cast<size_t>(parameter)];
    GraphBuilder b = at(w.name);
    const ValueId scaled = b.mul(g, spread(b, lr, g, "lr"), "update_step");
    program.state[static_cast<size_t>(parameter)].next = b.sub(w.id, scaled, "update");
  }

  void momentum(int parameter, ValueId g, const OptimizerSpec& spec) {
    const StateVar w = program.state[static_cast<size_t>(parameter)];
    const int slot_index = slot(w, "momentum");
    GraphBuilder b = at(w.name);
    const ValueId a = program.state[static_cast<size_t>(slot_index)].id;
    const ValueId decayed = b.binary_scalar(OpKind::kMultiply, a, spec.momentum, "momentum_decay");
    const ValueId next = b.add(decayed, g, "momentum.update");
    program.state[static_cast<size_t>(slot_index)].next = next;
    const ValueId lrs = spread(b, lr, g, "lr");
    ValueId step = kNoValue;
    if (spec.nesterov) {
      const ValueId ahead =
          b.mul(b.binary_scalar(OpKind::kMultiply, next, spec.momentum, "nesterov_decay"), lrs,
                "nesterov_ahead");
      step = b.add(b.mul(g, lrs, "nesterov_gradient"), ahead, "update_step");
    } else {
      step = b.mul(next, lrs, "update_step");
    }
    program.state[static_cast<size_t>(parameter)].next = b.sub(w.id, step, "update");
  }

  void adam(int parameter, ValueId g, ValueId alpha, const OptimizerSpec& spec) {
    const StateVar w = program.state[static_cast<size_t>(parameter)];
    const int mi = slot(w, "adam_m");
    const int vi = slot(w, "adam_v");
    GraphBuilder b = at(w.name);
    const auto toward = [&](int index, ValueId target, double rate, const std::string& local) {
      const ValueId old = program.state[static_cast<size_t>(index)].id;
      const ValueId gap = b.sub(target, old, local + "_gap");
      const ValueId part = b.binary_scalar(OpKind::kMultiply, gap, rate, local + "_part");
      return program.state[static_cast<size_t>(index)].next = b.add(old, part, local + ".update");
    };
    const ValueId m = toward(mi, g, 1 - spec.beta1, "adam_m");
    const ValueId v = toward(vi, b.mul(g, g, "adam_square"), 1 - spec.beta2, "adam_v");
    const ValueId root = b.binary_scalar(OpKind::kAdd, b.unary(OpKind::kSqrt, v, "adam_sqrt"),
                                         spec.epsilon, "adam_denominator");
    const ValueId step =
        b.div(b.mul(m, spread(b, alpha, m, "adam_alpha"), "adam_numerator"), root, "update_step");
    program.state[static_cast<size_t>(parameter)].next = b.sub(w.id, step, "update");
  }

  // alpha, and the counters that hold b1^t and b2^t (t from 1).
  ValueId adam_alpha(const OptimizerSpec& spec) {
    const int i1 = counter("adam/beta1_power", spec.beta1);
    const int i2 = counter("adam/beta2_power", spec.beta2);
    GraphBuilder b(program.graph, "adam", Phase::kUpdate);
    const ValueId p1 = program.state[static_cast<size_t>(i1)].id;
    const ValueId p2 = program.state[static_cast<size_t>(i2)].id;
    const ValueId one = b.constant(1.0, DType::kF32, "one");
    const ValueId root = b.unary(OpKind::kSqrt, b.sub(one, p2, "one_minus_beta2_power"), "root");
    const ValueId alpha =
        b.div(b.mul(lr, root, "lr_root"), b.sub(one, p1, "one_minus_beta1_power"), "alpha");
    program.state[static_cast<size_t>(i1)].next =
        b.binary_scalar(OpKind::kMultiply, p1, spec.beta1, "beta1_power.update");
    program.state[static_cast<size_t>(i2)].next =
        b.binary_scalar(OpKind::kMultiply, p2, spec.beta2, "beta2_power.update");
    return alpha;
  }
};

}  // namespace

void append_update(Program& program, const std::vector<int>& parameters,
                   const std::vector<ValueId>& grads, ValueId learning_rate) {
  Update update{program, learning_rate};
  const OptimizerSpec spec = program.optimizer;
  const ValueId alpha =
      spec.kind == OptimizerSpec::Kind::kAdam ? update.adam_alpha(spec) : kNoValue;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (grads[i] == kNoValue) continue;
    switch (spec.kind) {
      case OptimizerSpec::Kind::kSgd:
        update.sgd(parameters[i], grads[i]);
        break;
      case OptimizerSpec::Kind::kMomentum:
        update.momentum(parameters[i], grads[i], spec);
        break;
      case OptimizerSpec::Kind::kAdam:
        update.adam(parameters[i], grads[i], alpha, spec);
        break;
    }
  }
}

}  // namespace twinrun
