// Turns [optimizer] and the keys of [train] that concern updates into an OptimizerSpec, and fills
// in the defaults that depend on the kind.
#include "scenarios/conventions.h"
#include "scenarios/model.h"

namespace twinrun {
namespace {

using Kind = OptimizerSpec::Kind;

// The defaults of a kind; kByKind where the kind has no such number. Sources:
// docs/reference/formulas.md.
struct Rule {
  std::string_view name;
  Kind kind;
  double momentum, beta1, rho, epsilon, weight_decay;
};
constexpr double kNone = kByKind;
constexpr Rule kRules[] = {
    {"sgd", Kind::kSgd, kNone, kNone, kNone, kNone, 0},
    {"momentum", Kind::kMomentum, 0.9, kNone, kNone, kNone, 0},
    {"adam", Kind::kAdam, kNone, 0.9, kNone, 1e-8, 0},
    {"adagrad", Kind::kAdagrad, kNone, kNone, kNone, 1e-7, 0},
    {"adadelta", Kind::kAdadelta, kNone, kNone, 0.95, 1e-8, 0},
    {"rmsprop", Kind::kRmsprop, 0, kNone, 0.9, 1e-10, 0},
    {"adamax", Kind::kAdamax, kNone, 0.9, kNone, 1e-8, 0},
    {"adamw", Kind::kAdamw, kNone, 0.9, kNone, 1e-7, 0.004},
    {"adafactor", Kind::kAdafactor, kNone, 0, kNone, kNone, kNone},
    {"lars", Kind::kLars, 0.9, kNone, kNone, 0, 1e-4},
    {"lamb", Kind::kLamb, kNone, 0.9, kNone, 1e-6, 0},
};

const Rule& rule_of(std::string_view name) {
  for (const Rule& rule : kRules) {
    if (rule.name == name) return rule;
  }
  return kRules[0];
}

void fill(double& value, double fallback) {
  if (value == kByKind) value = fallback;
}

}  // namespace

void fill_optimizer_defaults(OptimizerConfig& c) {
  const Rule& rule = rule_of(c.kind);
  fill(c.momentum, rule.momentum);
  fill(c.beta1, rule.beta1);
  fill(c.rho, rule.rho);
  fill(c.epsilon, rule.epsilon);
  fill(c.weight_decay, rule.weight_decay);
  fill(c.initial_accumulator, c.kind == "rmsprop" ? 1 : 0.1);
}

OptimizerSpec optimizer_of(const Scenario& s) {
  OptimizerConfig c = s.optimizer;
  fill_optimizer_defaults(c);
  OptimizerSpec spec;
  spec.kind = rule_of(c.kind).kind;
  spec.momentum = c.momentum;
  spec.nesterov = c.nesterov;
  spec.beta1 = c.beta1;
  spec.beta2 = c.beta2;
  spec.epsilon = c.epsilon;
  spec.rho = c.rho;
  spec.initial_accumulator = spec.initial_square = c.initial_accumulator;
  spec.centered = c.centered;
  spec.weight_decay = c.weight_decay;
  spec.trust_coefficient = c.trust_coefficient;
  spec.clipping_threshold = c.clipping_threshold;
  spec.relative_step = c.relative_step;
  spec.parameter_scale = c.parameter_scale;
  spec.algebra = c.algebra == "xla" ? OptimizerSpec::Algebra::kXla : OptimizerSpec::Algebra::kCpu;
  spec.clip = c.clip == "value"         ? OptimizerSpec::Clip::kValue
              : c.clip == "norm"        ? OptimizerSpec::Clip::kNorm
              : c.clip == "global_norm" ? OptimizerSpec::Clip::kGlobalNorm
                                        : OptimizerSpec::Clip::kNone;
  spec.clip_at = c.clip_at;
  spec.l2 = c.l2;
  spec.accumulate = s.train.accumulate;
  spec.accumulate_mean = s.train.accumulate_reduction == LossReduction::kMean;
  spec.ema = c.ema;
  const auto formula = [&](std::string_view key, const std::string& value) {
    return value == "auto" ? by_conventions(s, key) : std::string_view(value);
  };
  spec.nesterov_apart = formula("nesterov_form", c.nesterov_form) == "optax";
  const std::string_view epsilon = formula("epsilon_form", c.epsilon_form);
  spec.epsilon_form = epsilon == "torch"     ? OptimizerSpec::Epsilon::kAfter
                      : epsilon == "root"    ? OptimizerSpec::Epsilon::kInside
                      : epsilon == "tf_root" ? OptimizerSpec::Epsilon::kRuleInside
                                             : OptimizerSpec::Epsilon::kRule;
  spec.bias_correction = c.bias_correction == "none"    ? OptimizerSpec::Correction::kNone
                         : c.bias_correction == "first" ? OptimizerSpec::Correction::kFirst
                         : c.bias_correction == "stuck" ? OptimizerSpec::Correction::kStuck
                                                        : OptimizerSpec::Correction::kBoth;
  spec.correction_lead = static_cast<int>(c.correction_lead);
  const std::string_view decay = formula("decay_form", c.decay_form);
  spec.decay = decay == "coupled"    ? OptimizerSpec::Decay::kCoupled
               : decay == "unscaled" ? OptimizerSpec::Decay::kUnscaled
                                     : OptimizerSpec::Decay::kDecoupled;
  spec.decay_kernels_only = c.decay_of == "kernels";
  spec.dampening = c.dampening;
  const std::string_view velocity = formula("velocity", c.velocity);
  spec.velocity = velocity == "steps"       ? OptimizerSpec::Velocity::kSteps
                  : velocity == "gradients" ? OptimizerSpec::Velocity::kGradients
                                            : OptimizerSpec::Velocity::kByKind;
  spec.gradient_scale = c.gradient_scale;
  spec.amsgrad = c.amsgrad;
  spec.clip_slack = formula("clip_form", c.clip_form) == "torch";
  spec.l2_of_all = c.l2_of == "all";
  spec.frozen = c.frozen;
  spec.stopped = c.stopped;
  spec.trust = c.trust == "undecayed" ? OptimizerSpec::Trust::kUndecayed
               : c.trust == "none"    ? OptimizerSpec::Trust::kOne
                                      : OptimizerSpec::Trust::kDecayed;
  spec.ema_before = c.ema_of == "before";
  return spec;
}

}  // namespace twinrun
