// Slots, decay and averages shared by the rules, and the dispatch to the rule of the optimizer.
#include "program/graph/optimizer.h"

#include <algorithm>

#include "program/graph/optimizer_rules.h"

namespace twinrun {

using Rule = OptimizerSpec::Kind;

int Update::slot(int parameter, const std::string& suffix, double initial) const {
  return slot(parameter, suffix, var(parameter).type.dims, initial);
}
int Update::slot(int parameter, const std::string& suffix, Dims dims, double initial) const {
  StateVar slot;
  slot.name = var(parameter).name + "." + suffix;
  slot.type = {var(parameter).type.dtype, std::move(dims)};
  slot.role = StateRole::kSlot;
  slot.init.value = initial;
  slot.id = GraphBuilder(program.graph, "", Phase::kUpdate).parameter(slot.name, slot.type);
  program.state.push_back(slot);
  return static_cast<int>(program.state.size()) - 1;
}

int Update::counter(const std::string& name, double initial) const {
  StateVar counter;
  counter.name = name;
  counter.type = {DType::kF32, {}};
  counter.role = StateRole::kCounter;
  counter.init.value = initial;
  counter.id =
      GraphBuilder(program.graph, "", Phase::kUpdate).parameter(counter.name, counter.type);
  program.state.push_back(counter);
  return static_cast<int>(program.state.size()) - 1;
}

ValueId Update::toward(GraphBuilder& b, int slot, ValueId target, double rate,
                       const std::string& local) const {
  const ValueId old = var(slot).id;
  const ValueId gap = b.sub(target, old, local + "_gap");
  const ValueId part = b.binary_scalar(OpKind::kMultiply, gap, rate, local + "_part");
  return set(slot, b.add(old, part, local + ".update"));
}

bool Update::decays(int parameter) const {
  const bool layerwise = spec.kind == Rule::kLars || spec.kind == Rule::kLamb;
  return spec.weight_decay > 0 && !layerwise && spec.kind != Rule::kAdafactor &&
         (!spec.decay_kernels_only || var(parameter).type.rank() >= 2);
}

ValueId Update::decayed_weight(GraphBuilder& b, int parameter) const {
  const ValueId w = var(parameter).id;
  if (!decays(parameter) || spec.decay == OptimizerSpec::Decay::kCoupled) return w;
  const ValueId share = b.binary_scalar(OpKind::kMultiply, w, spec.weight_decay, "weight_decay");
  if (spec.decay == OptimizerSpec::Decay::kUnscaled) return b.sub(w, share, "decayed");
  return b.sub(w, with_scalar(b, OpKind::kMultiply, share, lr, "decay_step"), "decayed");
}

ValueId Update::decayed_gradient(int parameter, ValueId gradient) const {
  if (!decays(parameter) || spec.decay != OptimizerSpec::Decay::kCoupled) return gradient;
  GraphBuilder b = at(parameter);
  const ValueId share =
      b.binary_scalar(OpKind::kMultiply, var(parameter).id, spec.weight_decay, "weight_decay");
  return b.add(gradient, share, "decayed_gradient");
}

ValueId Update::mix(GraphBuilder& b, int slot, ValueId target, double keep,
                    const std::string& local) const {
  const ValueId kept = b.binary_scalar(OpKind::kMultiply, var(slot).id, keep, local + "_kept");
  const ValueId part = b.binary_scalar(OpKind::kMultiply, target, 1 - keep, local + "_part");
  return set(slot, b.add(kept, part, local + ".update"));
}

ValueId with_scalar(GraphBuilder& b, OpKind kind, ValueId x, ValueId scalar,
                    const std::string& local) {
  return b.binary(kind, x, b.broadcast_scalar(scalar, x, local + "_scalars"), local);
}

ValueId square_sum(GraphBuilder& b, ValueId x, const std::string& local) {
  const ValueId squares = b.mul(x, x, local + "_squares");
  const Dims all = other_dims(b.type(x).rank());
  return all.empty() ? squares : b.reduce(squares, all, Reducer::kSum, local + "_square_sum");
}

ValueId norm(GraphBuilder& b, ValueId x, const std::string& local) {
  return b.unary(OpKind::kSqrt, square_sum(b, x, local), local);
}

namespace {

// As tf.train.ExponentialMovingAverage.apply: ema' = ema - (ema - w') (1 - decay), starting from w.
void average(const Update& u, int parameter) {
  const int slot = u.slot(parameter, "ema");
  u.var(slot).init.kind = Initializer::Kind::kCopy;
  u.var(slot).init.source = parameter;
  GraphBuilder b = u.at(parameter);
  const ValueId old = u.var(slot).id;
  const bool before = u.spec.ema_before || u.var(parameter).next == kNoValue;
  const ValueId weight = before ? u.var(parameter).id : u.var(parameter).next;
  const ValueId gap = b.sub(old, weight, "ema_gap");
  const ValueId part = b.binary_scalar(OpKind::kMultiply, gap, 1 - u.spec.ema, "ema_part");
  u.set(slot, b.sub(old, part, "ema.update"));
}

}  // namespace

bool is_among(const std::vector<std::string>& names, const std::string& parameter) {
  return std::ranges::any_of(names, [&](const std::string& name) {
    return parameter == name || parameter.starts_with(name + "/");
  });
}

void append_update(Program& program, const std::vector<int>& parameters,
                   const std::vector<ValueId>& grads, ValueId learning_rate) {
  const Update u{program, program.optimizer, learning_rate};
  const Rule kind = u.spec.kind;
  // Scalars that all parameters share are computed once.
  const bool is_adam = kind == Rule::kAdam || kind == Rule::kAdamw;
  const AdamScalars adam_shared = is_adam ? adam_scalars(u) : AdamScalars{};
  const ValueId adamax_shared = kind == Rule::kAdamax ? adamax_rate(u) : kNoValue;
  const LambPowers powers = kind == Rule::kLamb ? lamb_powers(u) : LambPowers{};
  const AdafactorStep step = kind == Rule::kAdafactor ? adafactor_step(u) : AdafactorStep{};
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int parameter = parameters[i];
    if (grads[i] == kNoValue) continue;
    const size_t slots = program.state.size();
    const ValueId g = u.decayed_gradient(parameter, grads[i]);
    switch (kind) {
      case Rule::kSgd:
        sgd(u, parameter, g);
        break;
      case Rule::kMomentum:
        momentum(u, parameter, g);
        break;
      case Rule::kAdam:
      case Rule::kAdamw:
        adam(u, parameter, g, adam_shared);
        break;
      case Rule::kAdagrad:
        adagrad(u, parameter, g);
        break;
      case Rule::kAdadelta:
        adadelta(u, parameter, g);
        break;
      case Rule::kRmsprop:
        rmsprop(u, parameter, g);
        break;
      case Rule::kAdamax:
        adamax(u, parameter, g, adamax_shared);
        break;
      case Rule::kAdafactor:
        adafactor(u, parameter, g, step);
        break;
      case Rule::kLars:
        lars(u, parameter, g);
        break;
      case Rule::kLamb:
        lamb(u, parameter, g, powers);
        break;
    }
    if (is_among(u.spec.frozen, u.var(parameter).name)) {
      u.set(parameter, kNoValue);
      for (size_t s = slots; s < program.state.size(); ++s) program.state[s].next = kNoValue;
    }
    if (u.spec.ema > 0) average(u, parameter);
  }
}

int64_t slot_bytes(const OptimizerSpec& spec, const TensorType& parameter) {
  const auto whole = static_cast<int64_t>(parameter.bytes());
  int64_t bytes = 0;
  switch (spec.kind) {
    case Rule::kSgd:
      break;
    case Rule::kMomentum:
    case Rule::kAdagrad:
    case Rule::kLars:
      bytes = whole;
      break;
    case Rule::kAdam:
    case Rule::kAdamw:
      bytes = (spec.amsgrad ? 3 : 2) * whole;
      break;
    case Rule::kAdamax:
    case Rule::kAdadelta:
    case Rule::kLamb:
      bytes = 2 * whole;
      break;
    case Rule::kRmsprop:
      bytes = (spec.centered ? 3 : 2) * whole;
      break;
    case Rule::kAdafactor: {
      const Dims& dims = parameter.dims;
      const size_t rank = dims.size();
      if (rank >= 2 && parameter.elements() > 0) {
        bytes = whole / dims[rank - 1] + whole / dims[rank - 2];
      } else {
        bytes = whole;
      }
      if (spec.beta1 > 0) bytes += whole;
      break;
    }
  }
  if (spec.accumulate > 1) bytes += whole;
  if (spec.ema > 0) bytes += whole;
  return bytes;
}

bool has_two_algebras(const OptimizerSpec& spec) {
  return spec.kind == Rule::kRmsprop || spec.kind == Rule::kAdamax;
}

}  // namespace twinrun
