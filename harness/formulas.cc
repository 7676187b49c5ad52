#include "harness/formulas.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "scenarios/conventions.h"
#include "scenarios/keys.h"
#include "scenarios/schedule.h"

namespace twinrun {
namespace {

// One family of changes. `change` lists what is set, "KEY = VALUE; KEY = VALUE": a key is a section's ("optimizer.epsilon") or
// that of every layer of a kind ("batch_norm.epsilon"). A VALUE is
//   a word or a number   set as it stands
//   #                    each of `values` in turn
//   @KEY                 what the scenario has for that key
//   *F, 1-               the scenario's own number times F, or its complement
//   cells                of a layer with a kernel or a window: (size - 1) / 2 cells on every side
//   layer                the name of each layer that has parameters, in turn
//   others               of label smoothing: what spreads it over the other classes only
// `meaning` has {0} for the value of the first key and {1} for what the scenario has. `kinds`: only where optimizer.kind (of an
// optimizer's key) or loss.kind (of a loss's) is one of these.
struct Row {
  std::string_view change, values, kinds;
  std::string_view meaning, frameworks;
  bool update_only = false;
};

constexpr bool kUpdate = true;
constexpr std::string_view kAdams = "adam|adamw";

constexpr Row kRows[] = {
    // ---- optimizers
    {"optimizer.epsilon_form = torch", "", kAdams,
     "adds epsilon to the root of the second moment after its bias correction",
     "PyTorch (torch/optim/adam.py) and optax (scale_by_adam)", kUpdate},
    {"optimizer.epsilon_form = tf", "", kAdams,
     "adds epsilon before the bias correction (\"epsilon hat\")",
     "TensorFlow (training_ops.cc) and Keras (optimizers/adam.py)", kUpdate},
    {"optimizer.epsilon_form = root", "", kAdams,
     "adds epsilon under the root of the corrected second moment", "optax's eps_root", kUpdate},
    {"optimizer.epsilon_form = tf_root", "", kAdams,
     "adds epsilon under the root of the second moment, before the bias correction", "", kUpdate},
    {"optimizer.epsilon_form = torch", "", "rmsprop",
     "adds epsilon after the root of the average of squares", "PyTorch (torch/optim/rmsprop.py)",
     kUpdate},
    {"optimizer.epsilon_form = tf", "", "rmsprop",
     "adds epsilon under the root of the average of squares",
     "TensorFlow, Keras (optimizers/rmsprop.py) and optax", kUpdate},
    {"optimizer.epsilon_form = root", "", "adagrad",
     "adds epsilon under the root of the sum of squares",
     "Keras (optimizers/adagrad.py) and optax (scale_by_rss)", kUpdate},
    {"optimizer.epsilon_form = tf", "", "adagrad",
     "adds epsilon after the root of the sum of squares",
     "TensorFlow and PyTorch (torch/optim/adagrad.py)", kUpdate},
    {"optimizer.epsilon_form = torch", "", "adamax",
     "adds epsilon to the gradient's size before the maximum",
     "PyTorch (torch/optim/adamax.py) and optax (scale_by_adamax)", kUpdate},
    {"optimizer.epsilon_form = tf", "", "adamax", "adds epsilon to the maximum",
     "TensorFlow and Keras (optimizers/adamax.py)", kUpdate},
    {"optimizer.epsilon = #", "1e-10|1e-9|1e-8|1e-7|1e-6|1e-5|1e-4|1e-3|1e-2|0.1|1|0", "",
     "has {0} as the optimizer's epsilon where the scenario has {1}",
     "1e-8: PyTorch, optax; 1e-7: Keras; 1e-10: RMSprop of TensorFlow 1; 1e-3: for Inception",
     kUpdate},
    {"optimizer.velocity = steps", "", "momentum", "has the learning rate in the velocity",
     "Keras (optimizers/sgd.py), Caffe", kUpdate},
    {"optimizer.velocity = gradients", "", "rmsprop", "has no learning rate in the velocity",
     "PyTorch (torch/optim/rmsprop.py), optax", kUpdate},
    {"optimizer.bias_correction = #", "none|first|both", "adam|adamw|adamax|lamb",
     "has the bias correction of {0} moments where the scenario has that of {1}",
     "none: BERT's AdamWeightDecayOptimizer", kUpdate},
    {"optimizer.correction_lead = 1", "", kAdams,
     "counts updates from 2 in the bias correction: one step ahead", "", kUpdate},
    {"optimizer.correction_lead = 0", "", kAdams, "counts updates from 1 in the bias correction",
     "", kUpdate},
    {"optimizer.beta1 = #", "0|0.5|0.8|0.9|0.95|0.99", "",
     "has {0} as beta1 where the scenario has {1}", "0.9: all frameworks; 0.5: GANs", kUpdate},
    {"optimizer.beta2 = #", "0.9|0.95|0.98|0.99|0.995|0.9999|0.999", "",
     "has {0} as beta2 where the scenario has {1}",
     "0.999: all frameworks; 0.98, 0.95: transformers", kUpdate},
    {"optimizer.rho = #", "0.9|0.95|0.99|0.999", "",
     "has {0} as the decay of squares where the scenario has {1}",
     "0.99: PyTorch's RMSprop; 0.9: Keras, optax, PyTorch's Adadelta; 0.95: Keras's Adadelta",
     kUpdate},
    {"optimizer.rho = 1-", "", "", "has the complement, {0}, of the decay of squares {1}", "",
     kUpdate},
    {"optimizer.momentum = #", "0|0.5|0.8|0.9|0.95|0.99|0.999", "",
     "has a momentum of {0} where the scenario has {1}", "", kUpdate},
    {"optimizer.momentum = 1-", "", "", "has the complement, {0}, of the momentum {1}", "",
     kUpdate},
    {"optimizer.nesterov = #", "true|false", "", "has nesterov = {0} where the scenario has {1}",
     "", kUpdate},
    {"optimizer.dampening = @optimizer.momentum", "", "momentum",
     "lets the gradient join the velocity times 1 - momentum, as an average does",
     "PyTorch with dampening = momentum, optax.ema", kUpdate},
    {"optimizer.dampening = 0", "", "momentum", "lets the gradient join the velocity undamped",
     "TensorFlow, Keras, optax.sgd, PyTorch by default", kUpdate},
    {"optimizer.weight_decay = #", "0|1e-6|1e-5|1e-4|5e-4|1e-3|0.004|5e-3|1e-2|0.05|0.1", "",
     "has a weight decay of {0} where the scenario has {1}",
     "0.01: PyTorch's AdamW; 0.004: Keras's; 1e-4: optax's", kUpdate},
    {"optimizer.weight_decay = *0.5", "", "", "has half the weight decay, {0}", "", kUpdate},
    {"optimizer.weight_decay = *2", "", "", "has twice the weight decay, {0}", "", kUpdate},
    {"optimizer.decay_form = #", "decoupled|unscaled|coupled", "",
     "has {0} weight decay where the scenario has {1}",
     "decoupled: AdamW of PyTorch, Keras and optax; coupled: weight_decay of PyTorch's SGD and "
     "Adam; "
     "unscaled: TensorFlow Addons' AdamW",
     kUpdate},
    {"optimizer.decay_of = #", "kernels|all", "",
     "decays {0} parameters where the scenario decays {1}",
     "all: PyTorch and Keras by default; kernels: the common recipe, without biases and "
     "normalisation",
     kUpdate},
    {"optimizer.l2 = 0; optimizer.weight_decay = @optimizer.l2; optimizer.decay_form = coupled", "",
     "sgd|momentum|adam|adagrad|adadelta|rmsprop|adamax",
     "has the L2 term as the optimizer's weight decay of all parameters: neither the loss nor the "
     "gradients that are reported have it",
     "PyTorch's weight_decay"},
    {"optimizer.l2 = 0; optimizer.weight_decay = @optimizer.l2; optimizer.decay_form = coupled; "
     "optimizer.decay_of = kernels",
     "", "sgd|momentum|adam|adagrad|adadelta|rmsprop|adamax",
     "has the L2 term as the optimizer's weight decay of the kernels: neither the loss nor the "
     "gradients that are reported have it",
     "PyTorch's weight_decay in a group of its own"},
    {"optimizer.lr = *#", "10|0.1|2|0.5|100|0.01|4|0.25|5|0.2|8|0.125", "",
     "has {0} as the learning rate where the scenario has {1}", "", kUpdate},
    {"optimizer.schedule = constant", "", "", "has no schedule of the learning rate", "", kUpdate},
    {"optimizer.staircase = #", "true|false", "",
     "has staircase = {0} in the schedule where the scenario has {1}", "", kUpdate},
    {"optimizer.warmup_steps = 0", "", "", "has no warm-up of the learning rate", "", kUpdate},
    {"optimizer.schedule_offset = #", "1|-1|0", "", "takes the learning rate of step s + ({0})",
     "-1: a scheduler stepped once too late; 1: a schedule that counts from 1, or is stepped "
     "before the update",
     kUpdate},
    {"optimizer.frozen = layer", "", "", "does not update {0}",
     "requires_grad = False, trainable = False, a parameter group left out, optax.masked", kUpdate},
    {"optimizer.clip = #", "none|value|norm|global_norm", "",
     "clips by {0} where the scenario clips by {1}",
     "norm: Keras's clipnorm; global_norm: torch.nn.utils.clip_grad_norm_, Keras's "
     "global_clipnorm, "
     "optax.clip_by_global_norm"},
    {"optimizer.clip_form = #", "torch|tf", "",
     "divides by the norm as {0} does where the scenario has {1}",
     "torch: clip_grad_norm_ adds 1e-6 to the norm"},
    {"optimizer.clip_at = *#", "2|0.5|10|0.1", "", "clips at {0} where the scenario clips at {1}",
     ""},
    {"optimizer.l2 = *#", "2|0.5|0", "",
     "has {0} as the weight of the L2 term where the scenario has {1}",
     "twice: l2 * sum of squares (Keras's regularizers.L2); half of it: tf.nn.l2_loss"},
    {"optimizer.l2_of = #", "all|kernels", "",
     "has the L2 term of {0} parameters where the scenario has {1}", ""},
    {"train.accumulate_reduction = #", "sum|mean", "",
     "takes the {0} of the gradients it accumulates where the scenario takes the {1}",
     "sum: loss.backward() again and again in PyTorch; mean: optax.MultiSteps"},
    // ---- losses
    {"loss.reduction = #", "mean|sum", "",
     "takes the {0} of the samples' losses where the scenario takes the {1}",
     "mean: PyTorch, Keras; sum: reduction = \"sum\""},
    {"loss.smoothing = #", "0|0.05|0.1|0.2", "", "smooths labels by {0} where the scenario has {1}",
     ""},
    {"loss.smoothing = others", "", "",
     "spreads label smoothing over the other classes only, which is a smoothing of {0} over all of "
     "them where the scenario has {1}",
     "fairseq, and scripts that write 1 - s and s / (classes - 1)"},
    {"loss.weights = #", "none|tokens", "", "weights samples by {0} where the scenario has {1}",
     ""},
    {"loss.over_classes = #", "sum|mean", "mean_squared_error|sigmoid_cross_entropy",
     "takes the {0} over the classes where the scenario takes the {1}",
     "mean: MSELoss, BCEWithLogitsLoss, Keras; sum: optax's losses summed by hand"},
    {"loss.input = #", "probabilities|logits", "softmax_cross_entropy",
     "gives {0} to the softmax cross entropy where the scenario gives {1}",
     "probabilities: a softmax layer before CrossEntropyLoss, or from_logits = True after one"},
    {"loss.ignored = #", "0|-1", "softmax_cross_entropy",
     "ignores label {0} where the scenario ignores {1} (-1: none)",
     "CrossEntropyLoss(ignore_index = 0)"},
    // ---- normalisation
    {"batch_norm.epsilon = #", "1e-3|1e-5|1e-6|1e-4|2e-5|1e-7|1e-8|1e-2", "",
     "has {0} as batch norm's epsilon where the scenario has {1}",
     "1e-5: PyTorch, Flax; 1e-3: Keras"},
    {"batch_norm.momentum = #", "0.9|0.99|0.999|0.997|0.9997|0.95|0.1|0.01|1|0", "",
     "keeps {0} of the old running statistics where the scenario keeps {1}",
     "0.9: PyTorch (whose momentum is 0.1); 0.99: Keras, Flax", kUpdate},
    {"batch_norm.momentum = 1-", "", "",
     "keeps {0} of the old running statistics where the scenario keeps {1}: the complement",
     "PyTorch's momentum is the share of the new statistics, Keras's and Flax's that of the old",
     kUpdate},
    {"batch_norm.variance = #", "unbiased|biased|tf", "",
     "has the {0} running variance where the scenario has {1}",
     "unbiased: PyTorch; biased: Keras 3, Flax; tf: TensorFlow's fused kernel, unbiased for images "
     "only",
     kUpdate},
    {"batch_norm.statistics = #", "running|batch", "",
     "normalises by {0} statistics where the scenario has {1}",
     "running: model.eval() while training, training = False, use_running_average = True"},
    {"layer_norm.epsilon = #", "1e-3|1e-5|1e-6|1e-12|1e-7|1e-8|1e-4", "",
     "has {0} as layer norm's epsilon where the scenario has {1}",
     "1e-5: PyTorch; 1e-6: Flax; 1e-3: Keras; 1e-12: BERT"},
    {"layer_norm.unbiased = #", "true|false", "",
     "has unbiased = {0} in layer norm where the scenario has {1}", "true: x.std() of PyTorch"},
    {"group_norm.epsilon = #", "1e-3|1e-5|1e-6|1e-7", "",
     "has {0} as group norm's epsilon where the scenario has {1}",
     "1e-5: PyTorch; 1e-6: Flax; 1e-3: Keras"},
    {"group_norm.unbiased = #", "true|false", "",
     "has unbiased = {0} in group norm where the scenario has {1}", ""},
    // ---- activations and dropout
    {"gelu.approximate = #", "true|false", "",
     "has approximate = {0} in GELU where the scenario has {1}",
     "true (tanh): jax.nn.gelu, GPT-2; false (erf): PyTorch, Keras"},
    {"leaky_relu.slope = #", "0.01|0.1|0.2|0.3|0", "",
     "has a slope of {0} below zero where the scenario has {1}",
     "0.01: PyTorch, Flax; 0.2: tf.nn; 0.3: Keras"},
    {"dropout.scaled = #", "false|true", "",
     "has scaled = {0} in dropout where the scenario has {1}",
     "false: the original paper, which scales at inference"},
    {"dropout.keeps = #", "low|high", "",
     "keeps inputs of {0} uniform numbers where the scenario keeps {1}",
     "low: jax.random.bernoulli(keep); high: TensorFlow"},
    {"dropout.rate = 1-", "", "",
     "drops a share of {0} where the scenario drops {1}: keep and drop exchanged",
     "TensorFlow 1's keep_prob"},
    {"dropout.rate = 0", "", "", "has no dropout", "model.eval() while training"},
    {"attention.scaled = #", "false|true", "",
     "has scaled = {0} in attention where the scenario has {1}", "false: T5"},
    {"attention.causal = #", "false|true", "",
     "has causal = {0} in attention where the scenario has {1}", ""},
    {"attention.masked = #", "false|true", "",
     "has masked = {0} in attention where the scenario has {1}", ""},
    // ---- windows and layouts
    {"conv2d.padding = cells", "", "",
     "pads convolutions by {0} on every side where the scenario has {1}",
     "PyTorch's padding = k // 2, which TensorFlow's SAME differs from at stride 2"},
    {"conv2d.padding = #", "valid|same", "",
     "has {0} padding in convolutions where the scenario has {1}",
     "same: Flax; valid: Keras and PyTorch by default"},
    {"max_pool.padding = #", "valid|same", "",
     "has {0} padding in max pooling where the scenario has {1}",
     "valid: Keras, PyTorch and Flax by default"},
    {"max_pool.padding = cells", "", "",
     "pads max pooling by {0} on every side where the scenario has {1}", "PyTorch's ResNets"},
    {"avg_pool.padding = #", "valid|same", "",
     "has {0} padding in average pooling where the scenario has {1}", ""},
    {"avg_pool.count_padding = #", "true|false", "",
     "has count_padding = {0} in average pooling where the scenario has {1}",
     "true: PyTorch, Flax; false: TensorFlow, Keras"},
    {"avg_pool.padding = cells; avg_pool.count_padding = true", "", "",
     "pads average pooling by {0} on every side, and counts the padding", "PyTorch's AvgPool2d"},
    {"max_pool.kind = avg_pool", "", "", "has average pooling for max pooling", ""},
    {"avg_pool.kind = max_pool", "", "", "has max pooling for average pooling", ""},
    {"conv2d.flipped = #", "true|false", "",
     "has flipped = {0} in convolutions where the scenario has {1}",
     "true: scipy.signal.convolve2d, Theano"},
    {"flatten.order = #", "channels_first|channels_last", "",
     "flattens images in {0} order where the scenario has {1}",
     "channels_first: PyTorch's nn.Flatten; where serve_script() is to exchange the rows, say "
     "flattened="},
    // ---- the input
    {"data.scale = #", "255|0.00392156862745098|2|0.5", "", "multiplies its input by {0}",
     "255: pixels of 0 to 255"},
    {"data.scale = 2; data.offset = -1", "", "", "reads its input scaled to [-1, 1]",
     "Normalize((0.5,), (0.5,)), x / 127.5 - 1"},
    {"data.scale = 3.245699448; data.offset = -0.4242129179", "", "",
     "reads its input standardised by MNIST's mean and deviation (0.1307, 0.3081)",
     "Normalize((0.1307,), (0.3081,))"},
    {"data.scale = 1; data.offset = 0", "", "", "reads its input as it is given", ""},
    {"data.channels = #", "reversed|as_given", "", "reads channels {0} where the scenario has {1}",
     "reversed: OpenCV's BGR"},
    {"data.batch_offset = 1", "", "", "trains step s on the batch of step s + 1", ""},
    {"data.batch_offset = 0", "", "", "trains step s on the batch of step s", ""},
    {"data.shuffle = false", "", "", "does not shuffle", ""},
};

std::string quoted(std::string_view text) { return fmt::format("\"{}\"", text); }

// f(Key, Owner) for the named key of every part of the scenario that the section names: a section, or a kind of layer.
template <typename F>
void each_key(Scenario& s, std::string_view path, F f) {
  const size_t dot = path.find('.');
  const std::string_view section = path.substr(0, dot), name = path.substr(dot + 1);
  const auto in = [&]<typename Owner>(Owner& owner) {
    for (const Key<Owner>& key : keys<Owner>()) {
      if (key.name == name) f(key, owner);
    }
  };
  bool found = false;
  each_section(s, [&](std::string_view title, auto& part) {
    if (title != section || section == "model") return true;
    found = true;
    in(part);
    return false;
  });
  if (found) return;
  for (LayerSpec& layer : s.model.layers) {
    if (layer.kind == section) in(layer);
  }
}

// "" where there is no such key here.
std::string value_of(const Experiment& e, std::string_view path) {
  std::string out;
  Scenario s = e.scenario;
  each_key(s, path, [&](const auto& key, const auto& owner) {
    if (out.empty() && applies(owner, key)) out = toml_value(owner, key);
  });
  return out;
}

double number_of(std::string_view text) {
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// Puts a TOML value into the member; false: not a value of this key.
template <typename Owner>
struct Put {
  Owner& owner;
  const Key<Owner>& key;
  std::string_view text;
  bool name_fits(std::string_view name) const {
    return key.allowed.has(name) ||
           (key.allowed.or_count && name.find_first_not_of("0123456789") == name.npos);
  }
  std::string_view plain() const {
    return text.size() >= 2 && text.front() == '"' ? text.substr(1, text.size() - 2) : text;
  }
  bool operator()(bool Owner::*m) const {
    if (text != "true" && text != "false") return false;
    owner.*m = text == "true";
    return true;
  }
  bool number(auto& value) const {
    if (!key.allowed.has(number_of(text))) return false;
    value = static_cast<std::remove_reference_t<decltype(value)>>(number_of(text));
    return true;
  }
  bool operator()(int Owner::*m) const { return number(owner.*m); }
  bool operator()(int64_t Owner::*m) const { return number(owner.*m); }
  bool operator()(uint64_t Owner::*m) const { return number(owner.*m); }
  bool operator()(double Owner::*m) const { return number(owner.*m); }
  bool operator()(std::string Owner::*m) const {
    if (!name_fits(plain())) return false;
    owner.*m = plain();
    return true;
  }
  bool operator()(std::vector<std::string> Owner::*m) const {
    owner.*m = {std::string(plain())};
    return true;
  }
  bool operator()(Dims Owner::*) const { return false; }
  bool operator()(LossReduction Owner::*m) const {
    if (!key.allowed.has(plain())) return false;
    owner.*m = plain() == "sum" ? LossReduction::kSum : LossReduction::kMean;
    return true;
  }
  bool operator()(std::vector<double> Owner::*) const { return false; }
};

template <typename Owner>
bool assign(Owner& owner, const Key<Owner>& key, std::string_view text) {
  return applies(owner, key) && std::visit(Put<Owner>{owner, key, text}, key.member);
}

// Sets a key in all its places; "cells" means another number in each. False: nowhere to set it.
bool set(Scenario& s, const std::string& path, const std::string& value) {
  bool any = false, all = true;
  each_key(s, path, [&]<typename Owner>(const Key<Owner>& key, Owner& owner) {
    std::string text = value;
    if constexpr (std::is_same_v<Owner, LayerSpec>) {
      if (value == "cells") {
        const int64_t size = owner.kind.ends_with("_pool") ? owner.window : owner.kernel;
        text = size > 1 ? fmt::format("{}", (size - 1) / 2) : owner.padding;
        if (text == "0") text = "valid";
      }
    }
    const bool done = assign(owner, key, text);
    any = any || done;
    all = all && done;
  });
  return any && all;
}

// The layers that have parameters, as names of the program say.
std::vector<std::string> layers_with_parameters(const Experiment& e) {
  std::vector<std::string> names;
  for (const StateVar& var : e.forward.state) {
    if (var.role != StateRole::kParameter) continue;
    const std::string layer = var.name.substr(0, var.name.find('/'));
    if (std::ranges::find(names, layer) == names.end()) names.push_back(layer);
  }
  return names;
}

std::vector<std::string> split(std::string_view text, std::string_view by) {
  std::vector<std::string> out;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(by, at), text.size());
    if (end > at) out.emplace_back(text.substr(at, end - at));
    at = end + by.size();
  }
  return out;
}

// What a value of a row stands for in this experiment; "": nothing.
std::string resolved(const Experiment& e, const std::string& key, std::string value) {
  const std::string now = value_of(e, key);
  if (now.empty()) return "";
  if (value == "others") {
    const auto classes = static_cast<double>(e.data ? e.data->classes : 0);
    const double spread = number_of(now) * classes / (classes - 1);
    return classes > 1 && spread > 0 && spread < 1 ? toml_number(spread) : "";
  }
  if (value == "1-") return toml_number(1 - number_of(now));
  if (value.starts_with("*")) return toml_number(number_of(now) * number_of(value.substr(1)));
  if (value.starts_with("@")) return value_of(e, value.substr(1));
  return value;
}

// An "auto" is what the conventions make of it.
std::string effective(const Experiment& e, const std::string& key) {
  const std::string now = value_of(e, key);
  if (now != "\"auto\"") return now;
  return quoted(by_conventions(e.scenario, std::string_view(key).substr(key.find('.') + 1)));
}

std::string plain(std::string text) {
  if (text.size() >= 2 && text.front() == '"') return text.substr(1, text.size() - 2);
  return text;
}

bool belongs(const Experiment& e, const Row& row) {
  if (row.kinds.empty()) return true;
  const bool loss = row.change.starts_with("loss.");
  return contains_name(row.kinds, loss ? e.scenario.loss.kind : e.scenario.optimizer.kind);
}

// Rows that mean nothing where the scenario has none of it: half of no weight decay.
bool is_idle(const Experiment& e, const std::string& key, const std::string& value) {
  const std::string now = value_of(e, key);
  if (value.starts_with("*") && number_of(now) == 0) return true;
  const OptimizerConfig& o = e.scenario.optimizer;
  if (key == "optimizer.decay_form" || key == "optimizer.decay_of") return o.weight_decay == 0;
  if (key == "optimizer.clip") return o.clip == "none" && value != "none";
  if (key.starts_with("optimizer.clip_")) return o.clip == "none";
  if (key == "optimizer.l2" || key == "optimizer.l2_of") return o.l2 == 0;
  if (key == "optimizer.schedule_offset") return o.schedule == "constant" && o.warmup_steps == 0;
  if (key == "train.accumulate_reduction") return e.scenario.train.accumulate == 1;
  return false;
}

}  // namespace

std::vector<FormulaChange> formula_changes(const Experiment& e) {
  std::vector<FormulaChange> out;
  if (e.imported) return out;
  for (const Row& row : kRows) {
    if (!belongs(e, row)) continue;
    const bool layers = row.change.ends_with("= layer");
    std::vector<std::string> values = layers ? layers_with_parameters(e) : split(row.values, "|");
    if (values.empty()) values = {""};
    for (const std::string& each : values) {
      FormulaChange c;
      c.update_only = row.update_only;
      c.frameworks = row.frameworks;
      Scenario changed = e.scenario;
      bool possible = true;
      std::string first_new, first_old;
      for (const std::string& part : split(row.change, "; ")) {
        const size_t equals = part.find(" = ");
        const std::string key = part.substr(0, equals);
        std::string value = part.substr(equals + 3);
        if (const size_t at = value.find('#'); at != std::string::npos) value.replace(at, 1, each);
        if (value == "layer") value = each;
        if (c.values.empty() && is_idle(e, key, value)) possible = false;
        value = resolved(e, key, value);
        possible = possible && !value.empty() && set(changed, key, value);
        if (!possible) break;
        const std::string now = effective(e, key);
        // The first key must change; the others say how.
        if (c.values.empty()) {
          first_old = plain(now);
          first_new = plain(value);
          if (key == "optimizer.schedule_offset" && value == "0" && now == "0") possible = false;
          const bool number = now.find_first_not_of("0123456789.eE+-") == std::string::npos;
          const bool same =
              number ? number_of(now) == number_of(value) : plain(now) == plain(value);
          if (same && row.change.find("; ") == std::string_view::npos) possible = false;
        }
        const bool word = value.find_first_not_of("0123456789.eE+-") != std::string::npos &&
                          value != "true" && value != "false" && value.front() != '"';
        c.values.emplace_back(key, word ? quoted(value) : value);
      }
      if (!possible || resolved_toml(changed) == resolved_toml(e.scenario)) continue;
      for (const auto& [key, value] : c.values) {
        const size_t dot = key.find('.');
        const std::string name = key.substr(dot + 1);
        const bool of_layers = value_of(e, key).empty()
                                   ? false
                                   : e.scenario.model.layers.end() !=
                                         std::ranges::find(e.scenario.model.layers,
                                                           key.substr(0, dot), &LayerSpec::kind);
        c.setting += c.setting.empty() ? "" : ", ";
        c.setting +=
            of_layers ? fmt::format("{} = {} in layers of kind {}", name, value, key.substr(0, dot))
            : layers  ? fmt::format("{} = [{}]", key, value)
                      : fmt::format("{} = {}", key, value);
      }
      c.meaning = fmt::format(fmt::runtime(row.meaning), first_new, first_old);
      c.cure = fmt::format("give the script the scenario's formula ({} = {})",
                           c.values.front().first, effective(e, c.values.front().first));
      if (std::ranges::find(out, c.values, &FormulaChange::values) == out.end())
        out.push_back(std::move(c));
    }
  }
  return out;
}

namespace {

// The shortest number that is within a hundred thousandth: 0.1 for 0.10000003, one over an integer where it is one.
std::string short_number(double value) {
  const double over = std::round(1 / value);
  if (value < 1 && over > 1 && std::fabs(value * over - 1) < 1e-5) value = 1 / over;
  for (int digits = 1; digits < 9; ++digits) {
    std::string text = fmt::format("{:.{}g}", value, digits);
    if (std::fabs(number_of(text) - value) <= 1e-5 * std::fabs(value) && digits > 2) return text;
    if (number_of(text) == value) return text;
  }
  return fmt::format("{:.9g}", value);
}

}  // namespace

FormulaChange fitted_number(const Experiment& e, const std::string& key, double value) {
  FormulaChange c;
  const std::string text = short_number(value), now = value_of(e, key);
  c.values = {{key, text}};
  c.setting = fmt::format("{} = {}", key, text);
  c.update_only = key == "optimizer.lr";
  if (key == "loss.scale") {
    c.meaning = fmt::format("has a loss that is {} times the scenario's", text);
    c.frameworks =
        "a mean over something else: over classes, tokens or the whole batch; 0.5: half of a "
        "squared error";
  } else if (key == "optimizer.gradient_scale") {
    c.meaning = fmt::format("takes gradients that are {} times those of its loss", text);
    c.frameworks =
        "a loss scale that is left in, gradients that were added up or divided once more";
  } else {
    c.meaning = fmt::format("has {} as the learning rate where the scenario has {}", text, now);
  }
  c.cure = fmt::format("give the script the scenario's number ({} = {})", key, now);
  return c;
}

FormulaChange fitted_rates(const Experiment& e, const std::map<int64_t, double>& rates) {
  FormulaChange c;
  c.rates = rates;
  c.update_only = true;
  std::string steps;
  int told = 0;
  for (const auto& [step, rate] : rates) {
    const double due = static_cast<double>(learning_rate(e.scenario.optimizer, step));
    if (std::fabs(rate - due) <= 1e-5 * due || told++ >= 3) continue;
    steps += fmt::format("{}{:.4g} at step {} (the scenario: {:.4g})", steps.empty() ? "" : ", ",
                         rate, step, due);
  }
  c.values = {{"optimizer.schedule", ""}};
  c.setting = "the script's schedule of the learning rate (optimizer.schedule, optimizer.lr)";
  c.meaning = fmt::format("takes other learning rates than the scenario's schedule: {}", steps);
  c.frameworks = "a schedule that is stepped elsewhere, counts otherwise, or is another one";
  c.cure = "give the script the scenario's schedule";
  return c;
}

Result<Experiment> with_formula(const Experiment& e, const FormulaChange& change) {
  if (!change.rates.empty()) {
    Experiment out = e;
    out.rates = change.rates;
    return out;
  }
  Scenario s = e.scenario;
  for (const auto& [key, value] : change.values) {
    if (!set(s, key, plain(value))) return Error{"no such setting here", key, ""};
  }
  return with_scenario(e, s);
}

bool exclusive(const FormulaChange& a, const FormulaChange& b) {
  return std::ranges::any_of(a.values, [&](const auto& x) {
    return std::ranges::any_of(b.values, [&](const auto& y) { return x.first == y.first; });
  });
}

std::string formula_table_markdown() {
  std::string out =
      "| setting | values tried | only with | the subject … | who does so "
      "|\n|---|---|---|---|---|\n";
  for (const Row& row : kRows) {
    out += fmt::format(
        "| `{}` | {} | {} | {} | {} |\n", row.change,
        row.values.empty() ? "" : fmt::format("`{}`", fmt::join(split(row.values, "|"), "`, `")),
        row.kinds.empty() ? "" : fmt::format("{}", fmt::join(split(row.kinds, "|"), ", ")),
        row.meaning, row.frameworks);
  }
  return out;
}

}  // namespace twinrun
