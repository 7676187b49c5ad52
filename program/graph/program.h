// A training step as data: graph, inputs, state, outputs. The same struct holds a forward pass (no
// `next`, no gradients), a whole training step, and the per-replica step of a sharded program.
// Scenarios and import build programs, engines run them.
//
//   Program forward = ...;                                          // scenarios/model.h builds it
//   Program whole = training_step(forward);                         // + gradients + update
//   Program sharded = training_step(shard(forward, {.cores = 8}));  // + all-reduces, per replica
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "program/base/digest.h"
#include "program/ops/graph.h"

namespace twinrun {

enum class StateRole : uint8_t { kParameter, kSlot, kStatistic, kCounter };
std::string_view to_string(StateRole role);  // "parameter", "slot", "statistic", "counter"

// How the initial value of a state variable is drawn; formulas in docs/method/numerics.md, names in
// graph/initializer.h.
struct Initializer {
  enum class Kind : uint8_t {
    kConstant,
    kGlorotUniform,  // variance scaling 1, fan_avg, uniform
    kRandomUniform,
    kRandomNormal,
    kTruncatedNormal,  // at two standard deviations
    kVarianceScaling,
    kOrthogonal,
    kIdentity,
    kCopy
  } kind = Kind::kConstant;
  double value = 0;                 // constant
  int source = -1;                  // copy: index of an earlier state variable
  int64_t fan_in = 0, fan_out = 0;  // glorot_uniform, variance_scaling
  double low = -0.05, high = 0.05;  // random_uniform
  double stddev = 0.05;             // random_normal, truncated_normal: before truncation
  double gain = 1;                  // orthogonal, identity
  double scale = 1;                 // variance_scaling
  enum class Fan : uint8_t { kIn, kOut, kAverage } fan = Fan::kIn;
  // kTruncatedNormal widens the distribution so that its variance is the required one after
  // truncation (Keras, TF 2). kTruncatedNormalUncorrected does not (TF 1's init_ops.py).
  enum class Distribution : uint8_t {
    kTruncatedNormal,
    kTruncatedNormalUncorrected,
    kUntruncatedNormal,
    kUniform
  } distribution = Distribution::kTruncatedNormal;
};

struct Input {
  // images or tokens, labels, weights, sample_ids, step, learning_rate, replica_id
  std::string name;
  ValueId id = kNoValue;
  // Each core is fed its own rows (or its own number); otherwise all cores are fed the same.
  bool per_core = false;
};

struct StateVar {
  std::string name;  // "conv1/kernel", "conv1/kernel.momentum", "bn1/moving_mean"
  TensorType type;
  StateRole role = StateRole::kParameter;
  Initializer init;
  ValueId id = kNoValue;    // its parameter op
  ValueId next = kNoValue;  // its value after the step; kNoValue: unchanged
};

struct Output {
  std::string name;  // "loss", "logits", "conv1/kernel.grad" (after the all-reduce)
  ValueId id = kNoValue;
  bool of_layer = false;  // added by with_layers_shown(); an engine may leave it out
};

// The output of a layer of the model, and the gradient of the objective with respect to it.
struct LayerOutput {
  std::string name;
  ValueId value = kNoValue;
  // kNoValue in a forward pass, and for layers before the first parameter.
  ValueId gradient = kNoValue;
};

enum class Reduction : uint8_t { kMean, kSum };
// How batch norm normalises on several cores: by a core's own statistics, or by statistics across
// cores. kAveraged: means are synced, but the variance is the mean of the cores' own variances,
// without the variance of their means (tensorflow/tpu issue 321).
enum class BatchNormSync : uint8_t { kPerCore, kSynced, kAveraged };
// The statistics by which batch norm updates its running statistics: those that the layer
// normalised by, the core's own, or those of all cores. kAveraged: each core's own, averaged over
// the cores. kFromFirst: the core's own, but the update starts from core 0's running statistics.
enum class Statistics : uint8_t { kAsNormalised, kPerCore, kGlobal, kAveraged, kFromFirst };
enum class Scope : uint8_t { kPerCore, kGlobal };

// Whether gradients on several cores are clipped after or before the all-reduce. Before it, each
// core clips its own gradient, which under a mean reduction is already scaled by 1/cores.
enum class Clipping : uint8_t { kAfterAllReduce, kBeforeAllReduce };

// How often a gradient is scaled by 1/cores: as `reduction` says, once more than that, or never.
// kByGroup: under a mean, it is scaled by 1 / (size of the group that it is reduced over).
enum class Scaling : uint8_t { kByReduction, kOnceMore, kNever, kByGroup };

// Groups of cores that reduce among themselves: `size` neighbours, or with `strided` every (cores /
// size)-th core. Size 0: all cores are one group.
struct CoreGroups {
  int size = 0;
  bool strided = false;
  bool operator==(const CoreGroups&) const = default;
};

// Which row of the whole batch is fed at each position, core after core: for features, for labels
// and their weights, and for the sample numbers by which random ops draw. Empty: each position is
// fed its own row.
struct Deal {
  std::vector<int32_t> features, labels, draws;
  bool operator==(const Deal&) const = default;
};

// What the cores are fed. With the defaults, the cores together are fed the whole batch. Other
// values change what is fed, not the graph (shard_plan.h).
struct Feeding {
  Deal deal = {};  // applied before the other members
  // kOwn: core i gets shard i. kFirst: every core gets the first shard. kFirstTwice: core 1 gets
  // the first shard, as core 0 does.
  enum class Shards : uint8_t { kOwn, kFirst, kFirstTwice } shards = Shards::kOwn;
  // The last core's last rows (real_rows() in shard_plan.h): their own data; zeros that count as
  // samples; the batch's first rows again; or dropped, with the core's other rows repeated in their
  // place.
  enum class Remainder : uint8_t {
    kReal,
    kPadded,
    kRepeated,
    kDropped
  } remainder = Remainder::kReal;
  // Random ops draw by the sample's position in the whole batch, by its position on the core, or
  // from a separate stream per core.
  enum class Streams : uint8_t { kGlobal, kOne, kPerCore } streams = Streams::kGlobal;
  enum class Rate : uint8_t { kAsGiven, kTimesCores, kOverCores } rate = Rate::kAsGiven;
  bool operator==(const Feeding&) const = default;
};

// How a step is distributed over cores. `cores` = 1 is the whole program.
struct Sharding {
  int cores = 1;
  // kMean scales each replica's loss by 1/cores before autodiff.
  Reduction reduction = Reduction::kMean;
  BatchNormSync batchnorm = BatchNormSync::kPerCore;
  // Size of the groups of neighbouring cores over which batch norm is synced; 0: all cores.
  int batchnorm_group = 0;
  // Those groups are of every (cores / batchnorm_group)-th core instead.
  bool batchnorm_strided = false;
  // Layers and losses across samples of a batch: over a core's samples, or over those of all cores.
  Scope batchwise = Scope::kPerCore;
  Scope token_mean = Scope::kPerCore;  // weighted means: over a core's weights, or over all
  // False: the all-reduce is missing (a cause that diagnosis distinguishes).
  bool reduce_gradients = true;
  CoreGroups reduction_groups = {};  // gradients are reduced within these
  // Parameters whose gradient is not reduced: each core uses that of its own loss, not scaled by
  // 1/cores.
  std::vector<std::string> unreduced = {};
  Clipping clipping = Clipping::kAfterAllReduce;
  bool shows_unclipped = false;  // the gradients among the outputs are those before clipping
  // Under a sum, each core's L2 term is 1/cores of the whole (a cause that diagnosis
  // distinguishes).
  bool l2_once = false;
  bool l2_every_core = false;  // under a mean, each core's L2 term is the whole one, unscaled
  Scaling scaling = Scaling::kByReduction;
  Statistics statistics = Statistics::kAsNormalised;
  Feeding feeding = {};
  // The formula of batch norm's variance. All have the same meaning, so they are no causes.
  // kCentred: E[(x - E[x])^2]. kOnePass: max(E[x^2] - E[x]^2, 0). kMeanHeld: as kCentred, but its
  // gradient treats the mean as a constant. The layer's gradient is then the closed formula of
  // cuDNN, XLA, and PyTorch with channels last, which does not compensate for the rounding of the
  // mean.
  enum class Variance : uint8_t { kCentred, kOnePass, kMeanHeld } variance = Variance::kCentred;
  bool operator==(const Sharding&) const = default;
};

// An optimizer and its settings; formulas and sources: docs/reference/formulas.md. A member after
// `kind` applies to the rules that have it.
struct OptimizerSpec {
  enum class Kind : uint8_t {
    kSgd,
    kMomentum,
    kAdam,
    kAdagrad,
    kAdadelta,
    kRmsprop,
    kAdamax,
    kAdamw,
    kAdafactor,
    kLars,
    kLamb
  } kind = Kind::kSgd;
  double momentum = 0.9;
  bool nesterov = false;
  // adam, adamw with nesterov: the moment's part of the step is divided by 1 - beta1^(t + 1), the
  // gradient's part by 1 - beta1^t (optax). Otherwise their sum is divided by 1 - beta1^t
  // (TensorFlow).
  bool nesterov_apart = false;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double rho = 0.9;                  // adadelta, rmsprop: decay of the average of squares
  double initial_accumulator = 0.1;  // adagrad
  double initial_square = 1;         // rmsprop: initial value of the average of squares
  bool centered = false;             // rmsprop
  double weight_decay = 0;           // `decay` says how it enters the rule
  double trust_coefficient = 0.001;  // lars
  double clipping_threshold = 1;     // adafactor: limit of the update's root mean square
  bool relative_step = false;        // adafactor: the rate follows the step count, not the input
  bool parameter_scale = true;       // adafactor: the rate is times the weights' root mean square
  // rmsprop, adamax: the formula of TensorFlow's CPU kernel, or that of XLA.
  enum class Algebra : uint8_t { kCpu, kXla } algebra = Algebra::kCpu;

  // Formulas in which frameworks differ; the defaults are TensorFlow's
  // (docs/reference/formulas.md). Where epsilon is added. kRule: as in the table there under
  // "Update rules". kAfter: adam, adamw and rmsprop add it after the root (and after
  // the bias correction), adadelta after both roots, adamax before the maximum. kInside: adam,
  // adamw, adagrad and lamb add it under the root. kRuleInside: the same, without the bias
  // correction of the second moment there.
  enum class Epsilon : uint8_t {
    kRule,
    kAfter,
    kInside,
    kRuleInside
  } epsilon_form = Epsilon::kRule;
  // adam, adamw, adamax, lamb: which moments are divided by 1 - beta^t, where t + `correction_lead`
  // takes the place of t. kStuck: both, with t = 1 at every update.
  enum class Correction : uint8_t {
    kBoth,
    kFirst,
    kNone,
    kStuck
  } bias_correction = Correction::kBoth;
  int correction_lead = 0;
  // kDecoupled: w (1 - lr decay) before the rule. kUnscaled: w (1 - decay) before the rule.
  // kCoupled: decay w is added to the gradient.
  enum class Decay : uint8_t { kDecoupled, kUnscaled, kCoupled } decay = Decay::kDecoupled;
  bool decay_kernels_only = false;  // biases and normalisation (rank <= 1) do not decay
  double dampening = 0;             // momentum: a' = a m + g (1 - dampening)
  // momentum, rmsprop: what the velocity accumulates. Steps include the learning rate, gradients do
  // not. kByKind: steps for rmsprop, gradients for momentum.
  enum class Velocity : uint8_t { kByKind, kGradients, kSteps } velocity = Velocity::kByKind;
  bool velocity_of_steps() const {
    return velocity == Velocity::kByKind ? kind == Kind::kRmsprop : velocity == Velocity::kSteps;
  }
  double gradient_scale = 1;         // factor of all gradients, but not of the reported loss
  bool amsgrad = false;              // adam, adamw: divide by the largest second moment so far
  bool clip_slack = false;           // clipping divides by the norm + 1e-6, as torch.nn.utils does
  bool l2_of_all = false;            // the L2 term includes biases and normalisation
  std::vector<std::string> frozen;   // parameters, or layers, that are not updated
  std::vector<std::string> stopped;  // parameters, or layers, whose gradient is zero
  // lamb: whether the step in the trust ratio includes the weight decay. kOne: there is no ratio.
  enum class Trust : uint8_t { kDecayed, kUndecayed, kOne } trust = Trust::kDecayed;
  bool ema_before = false;  // the average of weights takes the weights before the update

  // What happens before and after the rule.
  enum class Clip : uint8_t { kNone, kValue, kNorm, kGlobalNorm } clip = Clip::kNone;
  double clip_at = 0;
  double l2 = 0;                // the loss gains l2 / 2 * the sum of the kernels' squares
  int64_t accumulate = 1;       // number of steps whose gradients make one update
  bool accumulate_mean = true;  // of their mean; otherwise of their sum
  double ema = 0;               // decay of the average of weights; 0: none is kept
};

// A layer or loss in which samples of a batch interact before gradients are reduced, so that
// sharding may change its meaning.
struct Coupling {
  std::string cause;  // "batch_norm", "batch_wise", "token_mean"
  std::string layer;
  bool operator==(const Coupling&) const = default;
};

// A loss and the parameters that are trained to lower it: those below `scope`, or all if it is
// empty. A GAN has two objectives.
struct Objective {
  ValueId loss = kNoValue;
  std::string scope;
};

struct Program;
// Builds the forward pass again, for another batch per replica and another sharding.
using Recipe = std::function<Program(int64_t batch, const Sharding&)>;

struct Program {
  Graph graph;
  std::vector<Input> inputs;
  std::vector<StateVar> state;
  std::vector<Output> outputs;
  OptimizerSpec optimizer;
  Sharding sharding;
  int64_t batch = 0;        // samples per replica
  ValueId loss = kNoValue;  // the reported loss; the objective, where `objectives` is empty
  std::vector<Objective> objectives = {};
  std::vector<Coupling> couplings = {};
  std::shared_ptr<const Recipe> recipe = nullptr;  // nullptr: made by hand, cannot be sharded
  std::vector<LayerOutput> layers = {};  // in the model's order; none for GANs, imported programs

  const StateVar* find_state(std::string_view name) const;
  const Output* find_output(std::string_view name) const;
  int state_index(std::string_view name) const;  // -1 if absent
  // Replaces every value id by renamed[id], after the ops were copied to another graph.
  void renumber(const std::vector<ValueId>& renamed);
};

// The text form: one line per op, in order. Its digest identifies a program.
std::string to_text(const Program& program);
Digest digest(const Program& program);

// The forward pass of one of `sharding.cores` replicas, built by the recipe: batch / cores samples,
// with collectives where the sharding needs them. Requires forward.sharding.cores == 1 and batch %
// cores == 0 (GraphError otherwise).
Program shard(const Program& forward, const Sharding& sharding);

// The training step built again with another sharding of the same number of cores. Throws
// GraphError if `step` has no recipe.
Program reshard(const Program& step, const Sharding& sharding);

// The same forward pass for another batch per replica.
Program rebatch(const Program& forward, int64_t batch);

// Appends the L2 term, loss scaling, reverse-mode gradients, clipping, one all-reduce per gradient,
// accumulation and the optimizer's update. State variables for slots are appended to `state` in
// parameter order. Outputs gain "<parameter>.grad": the gradient that the optimizer uses, reduced,
// accumulated and clipped.
Program training_step(const Program& forward);

// The same step with an additional output for each layer, "conv1", and for the gradient of the
// replica's own loss with respect to it, "conv1.grad": before any reduction, and without the factor
// 1 / cores of a mean over the cores. Gradients are left out where the step scales them in another
// way.
Program with_layers_shown(const Program& step);

// The program without the ops that neither an output nor a next state needs (inputs and state
// stay).
Program prune(const Program& program);

// Appends the gradients d loss / d wrt[i] to the graph; kNoValue where the loss does not depend on
// wrt[i]. `all` receives the same for every value that the graph had before; kNoValue also for
// values whose gradient the result did not need.
std::vector<ValueId> differentiate(Graph& graph, ValueId loss, const std::vector<ValueId>& wrt,
                                   std::vector<ValueId>* all = nullptr);

}  // namespace twinrun
