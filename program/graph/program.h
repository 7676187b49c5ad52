// A training step as data: graph, inputs, state, outputs. The same struct holds a forward pass (no `next`, no gradients), a
// whole training step, and the per-replica step of a sharded program.
//
//   Program forward = ...;                                          // scenarios/model.h builds it
//   Program whole = training_step(forward);                         // + gradients + update
//   Program sharded = training_step(shard(forward, {.cores = 8}));  // + explicit all-reduces, per-replica batch
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

// How the initial checkpoint is drawn; formulas in docs/numerics.md, names in graph/initializer.h.
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
  // kTruncatedNormal widens the law so that the variance is the wanted one after truncation (Keras, TF
  // 2); the uncorrected one does not (TF 1's init_ops.py).
  enum class Distribution : uint8_t {
    kTruncatedNormal,
    kTruncatedNormalUncorrected,
    kUntruncatedNormal,
    kUniform
  } distribution = Distribution::kTruncatedNormal;
};

struct Input {
  std::string
      name;  // images or tokens, labels, weights, sample_ids, step, learning_rate, replica_id
  ValueId id = kNoValue;
  bool per_core =
      false;  // each core has rows of its own (or its own number), else all have the same
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
  bool of_layer = false;  // added by with_layers_shown(): an engine may leave it out
};

// What a layer of the model gives, and the gradient of the objective with respect to it.
struct LayerOutput {
  std::string name;
  ValueId value = kNoValue;
  ValueId gradient = kNoValue;  // kNoValue in a forward pass, and before the first parameter
};

enum class Reduction : uint8_t { kMean, kSum };
// kAveraged: synced means, but the variance is the mean of the cores' own, without the variance of their means
// (tensorflow/tpu issue 321).
enum class BatchNormSync : uint8_t { kPerCore, kSynced, kAveraged };
// What batch norm's running statistics are moved by: what the layer normalised by, the core's own, or those of all cores;
// kAveraged: the mean over the cores of what each has moved by its own; kFromFirst: the core's own, but from where core 0's stand.
enum class Statistics : uint8_t { kAsNormalised, kPerCore, kGlobal, kAveraged, kFromFirst };
enum class Scope : uint8_t { kPerCore, kGlobal };

// Where gradients are clipped on several cores. Before the all-reduce each core clips its own, with a mean reduction already
// scaled by 1/cores.
enum class Clipping : uint8_t { kAfterAllReduce, kBeforeAllReduce };

// How often a gradient is scaled by 1/cores: as `reduction` says, once more than that, or never. kByGroup: under a mean, by the
// size of the group that it is reduced over.
enum class Scaling : uint8_t { kByReduction, kOnceMore, kNever, kByGroup };

// Cores that reduce among themselves: so many neighbours, or with `strided` every (cores / size)-th. 0: all cores.
struct CoreGroups {
  int size = 0;
  bool strided = false;
  bool operator==(const CoreGroups&) const = default;
};

// Which row of the whole batch stands in each of its places, core after core: of features, of labels and their weights, and of
// the numbers by which random ops draw. Empty: each place has its own row.
struct Deal {
  std::vector<int32_t> features, labels, draws;
  bool operator==(const Deal&) const = default;
};

// What the cores are fed; the defaults are what the whole batch means. No other value changes the program (shard_plan.h).
struct Feeding {
  Deal deal = {};  // before all others
  // Core i gets shard i, every core the first one, or core 1 the first one as well.
  enum class Shards : uint8_t { kOwn, kFirst, kFirstTwice } shards = Shards::kOwn;
  // The last core's last rows: real ones; zeros that count; the batch's first rows again; not there.
  enum class Remainder : uint8_t {
    kReal,
    kPadded,
    kRepeated,
    kDropped
  } remainder = Remainder::kReal;
  // Random ops draw by the sample's place in the whole batch, by its place on the core, or from a stream of each core.
  enum class Streams : uint8_t { kGlobal, kOne, kPerCore } streams = Streams::kGlobal;
  enum class Rate : uint8_t { kAsGiven, kTimesCores, kOverCores } rate = Rate::kAsGiven;
  bool operator==(const Feeding&) const = default;
};

// What sharding means. `cores` = 1 is the whole program.
struct Sharding {
  int cores = 1;
  Reduction reduction =
      Reduction::kMean;  // kMean scales each replica's loss by 1/cores before autodiff
  BatchNormSync batchnorm = BatchNormSync::kPerCore;
  int batchnorm_group = 0;  // kSynced: over groups of so many neighbouring cores; 0: all of them
  bool batchnorm_strided = false;  // such groups are of every (cores / batchnorm_group)-th core
  Scope batchwise =
      Scope::kPerCore;  // layers and losses that look across samples: at a core's, or at all
  Scope token_mean = Scope::kPerCore;  // weighted means: over a core's weights, or over all
  bool reduce_gradients = true;      // false: the all-reduce is missing (a cause to be told apart)
  CoreGroups reduction_groups = {};  // gradients are reduced within these
  // Parameters whose gradient each core keeps to itself: that of its own loss, not scaled by 1/cores.
  std::vector<std::string> unreduced = {};
  Clipping clipping = Clipping::kAfterAllReduce;
  bool l2_once =
      false;  // under a sum, each core's L2 term is 1/cores of the whole (a cause to be told apart)
  bool l2_every_core = false;  // under a mean, each core's L2 term is the whole one, unscaled
  Scaling scaling = Scaling::kByReduction;
  Statistics statistics = Statistics::kAsNormalised;
  Feeding feeding = {};
  // Batch norm's variance: formulas of the same meaning, so no causes. kCentred: E[(x - E[x])^2]; kOnePass: max(E[x^2] - E[x]^2, 0);
  // kMeanHeld: as kCentred, and its gradient takes the mean for a constant, which makes that of the layer the closed formula that
  // cuDNN, XLA and PyTorch with channels last have: rounding of the mean is not made good in it.
  enum class Variance : uint8_t { kCentred, kOnePass, kMeanHeld } variance = Variance::kCentred;
  bool operator==(const Sharding&) const = default;
};

// Optimizers as graph code; formulas and sources: docs/optimizers.md. The members after `kind` are those of the rules that
// have them.
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
  // adam, adamw with nesterov: each of the step's two parts, of the moment and of the gradient, is divided by its own 1 - beta1^t, t of
  // the next step for the moment's (optax); else their sum is, by the step's (TensorFlow).
  bool nesterov_apart = false;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double rho = 0.9;                  // adadelta, rmsprop: decay of the average of squares
  double initial_accumulator = 0.1;  // adagrad
  double initial_square = 1;         // rmsprop: what the average of squares starts from
  bool centered = false;             // rmsprop
  double weight_decay = 0;           // where the rule takes it: `decay`
  double trust_coefficient = 0.001;  // lars
  double clipping_threshold = 1;     // adafactor: of the update's root mean square
  bool relative_step = false;        // adafactor: the rate follows the step count, not the input
  bool parameter_scale = true;       // adafactor: the rate is times the weights' root mean square
  enum class Algebra : uint8_t {
    kCpu,
    kXla
  } algebra = Algebra::kCpu;  // rmsprop, adamax: whose formula

  // Formulas in which frameworks differ; the defaults are TensorFlow's (docs/formulas.md).
  // kRule: as the table of docs/optimizers.md has it. kAfter: adam, adamw and rmsprop add epsilon after the root (and
  // after the bias correction), adadelta after both roots, adamax before the maximum. kInside: adam, adamw, adagrad and lamb add it
  // under the root; kRuleInside:
  // the same, without the bias correction of the second moment there.
  enum class Epsilon : uint8_t {
    kRule,
    kAfter,
    kInside,
    kRuleInside
  } epsilon_form = Epsilon::kRule;
  // adam, adamw, adamax, lamb: which moments are divided by 1 - beta^t, and with t + `correction_lead` in the place of t. kStuck:
  // both, with t = 1 at every update.
  enum class Correction : uint8_t {
    kBoth,
    kFirst,
    kNone,
    kStuck
  } bias_correction = Correction::kBoth;
  int correction_lead = 0;
  // kDecoupled: w (1 - lr decay) before the rule. kUnscaled: w (1 - decay) before it. kCoupled: decay w joins the gradient.
  enum class Decay : uint8_t { kDecoupled, kUnscaled, kCoupled } decay = Decay::kDecoupled;
  bool decay_kernels_only = false;  // biases and normalisation (rank <= 1) do not decay
  double dampening = 0;             // momentum: a' = a m + g (1 - dampening)
  // momentum, rmsprop: what the velocity adds up. kSteps have the learning rate in them; kByKind: rmsprop's have.
  enum class Velocity : uint8_t { kByKind, kGradients, kSteps } velocity = Velocity::kByKind;
  bool velocity_of_steps() const {
    return velocity == Velocity::kByKind ? kind == Kind::kRmsprop : velocity == Velocity::kSteps;
  }
  double gradient_scale = 1;  // of all gradients, not of the loss
  bool amsgrad = false;       // adam, adamw: divide by the largest second moment so far
  bool clip_slack = false;    // norms are divided by with 1e-6 added, as torch.nn.utils has it
  bool l2_of_all = false;     // the L2 term has biases and normalisation, too
  std::vector<std::string> frozen;   // parameters, or layers, that are not updated
  std::vector<std::string> stopped;  // ... whose gradient is zero
  // lamb: the trust ratio's step; kDecayed: with its weight decay. kOne: there is no ratio.
  enum class Trust : uint8_t { kDecayed, kUndecayed, kOne } trust = Trust::kDecayed;
  bool ema_before = false;  // the average of weights takes those that the update begins with

  // Around the rule.
  enum class Clip : uint8_t { kNone, kValue, kNorm, kGlobalNorm } clip = Clip::kNone;
  double clip_at = 0;
  double l2 = 0;                // the loss gains l2 / 2 * the sum of the kernels' squares
  int64_t accumulate = 1;       // steps whose gradients make one update
  bool accumulate_mean = true;  // their mean, or their sum
  double ema = 0;               // decay of the average of weights; 0: none is kept
};

// A place where samples of a batch meet before the gradients do: what sharding may give another meaning.
struct Coupling {
  std::string cause;  // "batch_norm", "batch_wise", "token_mean"
  std::string layer;
  bool operator==(const Coupling&) const = default;
};

// A loss and whose parameters descend it: those below `scope`, or all where it is empty. A GAN has two.
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
  ValueId loss = kNoValue;  // what is reported, and descended where there are no objectives
  std::vector<Objective> objectives = {};
  std::vector<Coupling> couplings = {};
  std::shared_ptr<const Recipe> recipe = nullptr;  // nullptr: made by hand, cannot be sharded
  std::vector<LayerOutput> layers = {};  // in the model's order; none of a GAN, or imported

  const StateVar* find_state(std::string_view name) const;
  const Output* find_output(std::string_view name) const;
  int state_index(std::string_view name) const;        // -1 if absent
  void renumber(const std::vector<ValueId>& renamed);  // after its ops moved to another graph
};

// The readable form: one line per op, in order. Its digest identifies a program.
std::string to_text(const Program& program);
Digest digest(const Program& program);

// The forward pass of one of `sharding.cores` replicas, built by the recipe: batch / cores samples, collectives where the
// sharding asks for them. Requires forward.sharding.cores == 1 and batch % cores == 0 (GraphError otherwise).
Program shard(const Program& forward, const Sharding& sharding);

// The training step under another sharding of as many cores: what `step` would be had it been built so. Throws GraphError where
// nothing says how to build it.
Program reshard(const Program& step, const Sharding& sharding);

// The same forward pass for another batch per replica.
Program rebatch(const Program& forward, int64_t batch);

// Appends the L2 term, loss scaling, reverse-mode gradients, clipping, one all-reduce per gradient, accumulation and the
// optimizer's update. State variables for slots are appended to `state` in parameter order. Outputs gain "<parameter>.grad":
// what the optimizer takes, reduced, accumulated and clipped.
Program training_step(const Program& forward);

// The same step with an output more for each layer, "conv1", and for the gradient of the replica's own loss with respect to it,
// "conv1.grad": before any reduction, and without the factor 1 / cores of a mean over the cores.
Program with_layers_shown(const Program& step);

// Without the ops that neither an output nor a next state needs (inputs and state stay).
Program prune(const Program& program);

// d loss / d wrt[i], appended to the graph; kNoValue where the loss does not depend on wrt[i]. `all`: the same of every value of the
// graph as it was, kNoValue too where it was not needed on the way.
std::vector<ValueId> differentiate(Graph& graph, ValueId loss, const std::vector<ValueId>& wrt,
                                   std::vector<ValueId>* all = nullptr);

}  // namespace twinrun
