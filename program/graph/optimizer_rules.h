// The optimizers' update rules by family, and what they share. append_update() (optimizer.h)
// appends them to a program, parameter by parameter.
//
//   Update u{program, program.optimizer, learning_rate};
//   const AdamScalars scalars = adam_scalars(u);  // once per program
//   adam(u, parameter, gradient, scalars);         // state[parameter].next is its new value
#pragma once

#include "program/graph/optimizer.h"

namespace twinrun {

struct Update {
  Program& program;
  const OptimizerSpec spec;
  ValueId lr;  // scalar

  StateVar& var(int index) const { return program.state[static_cast<size_t>(index)]; }
  // Adds a slot of a parameter, "<parameter>.<suffix>". Returns its index in the state.
  int slot(int parameter, const std::string& suffix, double initial = 0) const;
  int slot(int parameter, const std::string& suffix, Dims dims, double initial) const;
  // Adds a scalar of the whole program. Returns its index in the state.
  int counter(const std::string& name, double initial) const;
  // The weight from which the rule's step is subtracted: decayed first, if the decay is decoupled
  // from the gradient.
  ValueId decayed_weight(GraphBuilder& b, int parameter) const;
  // The gradient that the rule uses: plus the weight's decay, if the two are coupled.
  ValueId decayed_gradient(int parameter, ValueId gradient) const;
  bool decays(int parameter) const;
  // Names become "<parameter>.<local>".
  GraphBuilder at(int parameter) const {
    return GraphBuilder(program.graph).derived(var(parameter).name, Phase::kUpdate);
  }
  ValueId set(int index, ValueId next) const { return var(index).next = next; }

  // slot' = slot + (target - slot) * rate
  ValueId toward(GraphBuilder& b, int slot, ValueId target, double rate,
                 const std::string& local) const;
  // slot' = slot * keep + target * (1 - keep)
  ValueId mix(GraphBuilder& b, int slot, ValueId target, double keep,
              const std::string& local) const;
};

// x times (or plus, ...) a scalar value, broadcast to x.
ValueId with_scalar(GraphBuilder& b, OpKind kind, ValueId x, ValueId scalar,
                    const std::string& local);
// Sum of x's squares, and its root (tf.norm); scalars.
ValueId square_sum(GraphBuilder& b, ValueId x, const std::string& local);
ValueId norm(GraphBuilder& b, ValueId x, const std::string& local);

// optimizer_momentum.cc
void sgd(const Update& u, int parameter, ValueId g);
void momentum(const Update& u, int parameter, ValueId g);

// optimizer_adaptive.cc
// Scalars that all parameters of adam share. rate: factor of the first moment. divisor: of the root
// of the second moment (or of the second moment itself, where epsilon is under the root); kNoValue:
// it is not divided. rate_ahead: factor of the moment's part of the step in Nesterov's form, where
// that is not `rate`.
struct AdamScalars {
  ValueId rate = kNoValue, divisor = kNoValue, rate_ahead = kNoValue;
};
AdamScalars adam_scalars(const Update& u);
void adam(const Update& u, int parameter, ValueId g, const AdamScalars& scalars);  // and adamw
ValueId adamax_rate(const Update& u);
void adamax(const Update& u, int parameter, ValueId g, ValueId rate);
void adagrad(const Update& u, int parameter, ValueId g);
void adadelta(const Update& u, int parameter, ValueId g);
void rmsprop(const Update& u, int parameter, ValueId g);

// optimizer_layerwise.cc
struct LambPowers {
  ValueId rest1 = kNoValue, rest2 = kNoValue;  // 1 - b1^t, 1 - b2^t
};
LambPowers lamb_powers(const Update& u);
void lamb(const Update& u, int parameter, ValueId g, const LambPowers& powers);
void lars(const Update& u, int parameter, ValueId g);

// optimizer_adafactor.cc
struct AdafactorStep {
  ValueId decay = kNoValue, mixing = kNoValue, rate = kNoValue;
};
AdafactorStep adafactor_step(const Update& u);
void adafactor(const Update& u, int parameter, ValueId g, const AdafactorStep& step);

}  // namespace twinrun
