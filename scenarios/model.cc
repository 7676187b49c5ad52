// Builds the program of a scenario, layer by layer and then the loss; also the two parts of a GAN.
#include "scenarios/model.h"

#include <fmt/format.h>

#include <map>

#include "program/graph/initializer.h"
#include "program/graph/layers.h"
#include "scenarios/conventions.h"

namespace twinrun {
namespace {

// The initializer that a layer names. `init_scale` replaces its one free number, whichever that is.
Initializer initializer_of(const LayerSpec& layer) {
  const Result<Initializer> named = named_initializer(layer.init, {1, 1});
  if (!named) throw GraphError(layer.name + ": " + named.error().what);
  Initializer init = *named;
  init.fan_in = init.fan_out = 0;  // the layer sets them from its kernel's shape
  if (layer.init_scale > 0) {
    init.value = init.stddev = init.gain = init.scale = init.high = layer.init_scale;
    init.low = -layer.init_scale;
  }
  return init;
}

// A GraphError that carries the line of the layer in the scenario file.
struct LayerError : GraphError {
  LayerError(const std::string& what, int at) : GraphError(what), line(at) {}
  int line;
};

// The output value of each layer, by the layer's name. Each part of a GAN has a map of its own.
using Values = std::map<std::string, ValueId>;

class ModelBuilder {
 public:
  ModelBuilder(const Scenario& s, const SampleType& sample, Layers& net, int& line)
      : s_(s), sample_(sample), net_(net), line_(line) {}

  void operator()() {
    const Reducer reduction =
        s_.loss.reduction == LossReduction::kMean ? Reducer::kMean : Reducer::kSum;
    net_.shift_labels(s_.data.label_offset);
    if (s_.loss.kind == "gan") return gan(reduction);
    run("", input());
    line_ = 0;
    const LossOptions loss{reduction,
                           s_.loss.smoothing,
                           s_.loss.weights == "tokens",
                           s_.loss.over_classes == "sum" ? Reducer::kSum : Reducer::kMean,
                           s_.loss.input == "probabilities",
                           s_.loss.scale,
                           s_.loss.ignored};
    const int64_t classes = sample_.classes;
    if (s_.loss.kind == "softmax_cross_entropy") net_.softmax_cross_entropy(classes, loss);
    if (s_.loss.kind == "sigmoid_cross_entropy") net_.sigmoid_cross_entropy(classes, loss);
    if (s_.loss.kind == "mean_squared_error") net_.mean_squared_error(classes, loss);
    if (s_.loss.kind == "triplet") net_.triplet(s_.loss.margin, s_.loss.mining == "hard", loss);
    if (s_.loss.kind == "contrastive") net_.contrastive(s_.loss.temperature, loss);
  }

 private:
  // The features as the model reads them.
  ValueId input() {
    net_.set(net_.features());
    if (sample_.dtype != DType::kF32) return net_.value();
    if (s_.data.channels == "reversed") net_.reverse_channels();
    if (s_.data.transposed) net_.exchange_sides();
    net_.scale_and_offset(s_.data.scale, s_.data.offset);
    return net_.value();
  }

  void gan(Reducer reduction) {
    const ValueId fake = run("generator", net_.features());
    net_.output("samples", fake);
    const ValueId judged = run("discriminator", input());
    const ValueId deceived = run("discriminator", fake);
    line_ = 0;
    net_.gan(judged, deceived, "discriminator", "generator", reduction);
  }

  // Appends the layers of a part ("": all) to `input` and returns the last layer's value.
  ValueId run(const std::string& part, ValueId input) {
    Values values{{"data", input}};
    net_.set(input);
    for (const LayerSpec& layer : s_.model.layers) {
      if (layer.part != part) continue;
      line_ = layer.line;
      std::vector<ValueId> inputs;
      for (const std::string& name : layer.input) {
        const auto it = values.find(name);
        if (it == values.end())
          throw GraphError(layer.name + ": \"" + name + "\" is a layer of the other part");
        inputs.push_back(it->second);
      }
      if (inputs.size() == 1) net_.set(inputs[0]);
      append(part.empty() ? layer.name : part + "/" + layer.name, layer, inputs);
      values[layer.name] = net_.value();
      // Only names of single values are recorded: a GAN's discriminator runs twice and gives two
      // values under each name, and "loss" is the name of the loss.
      if (part.empty() && layer.name != "loss") net_.end_layer(layer.name);
    }
    return net_.value();
  }

  void append(const std::string& name, const LayerSpec& l, const std::vector<ValueId>& inputs) {
    const Padding padding = padding_of(l);
    const WeightOptions weights{initializer_of(l), l.bias};
    const ConvolutionOptions conv{l.filters, l.kernel,  l.stride,     l.dilation,
                                  padding,   l.flipped, l.transposed, weights};
    const PoolOptions pool{l.window, l.stride, padding, l.count_padding, l.fill == "zeros"};
    const NormOptions norm{l.epsilon,         l.momentum,
                           running_of(l),     l.statistics == "running",
                           l.unbiased,        l.epsilon_to == "deviation",
                           l.axes == "sample"};
    for (const std::string& part : l.unused) net_.leave_out(name + "/" + part);
    if (l.kind == "dense") return net_.dense(name, l.units, weights);
    if (l.kind == "conv2d") return net_.conv2d(name, conv);
    if (l.kind == "depthwise_conv2d") {
      ConvolutionOptions depthwise = conv;
      depthwise.filters = l.multiplier;
      return net_.depthwise_conv2d(name, depthwise);
    }
    if (l.kind == "conv2d_transpose") return net_.conv2d_transpose(name, conv);
    if (l.kind == "max_pool") return net_.pool(name, pool, Reducer::kMax);
    if (l.kind == "avg_pool") return net_.pool(name, pool, Reducer::kMean);
    if (l.kind == "global_max_pool") return net_.global_pool(name, Reducer::kMax);
    if (l.kind == "global_avg_pool") return net_.global_pool(name, Reducer::kMean);
    if (l.kind == "flatten") return net_.flatten(name, l.order == "channels_first");
    if (l.kind == "reshape") return net_.reshape(name, l.shape);
    if (l.kind == "relu") return net_.relu(name, l.at_zero);
    if (l.kind == "leaky_relu") return net_.leaky_relu(name, l.slope, l.at_zero);
    if (l.kind == "gelu") return net_.gelu(name, l.approximate);
    if (l.kind == "silu") return net_.silu(name);
    if (l.kind == "quick_gelu") return net_.quick_gelu(name);
    if (l.kind == "hard_sigmoid") return net_.hard_sigmoid(name, l.slope);
    if (l.kind == "relu6") return net_.relu6(name);
    if (l.kind == "sigmoid") return net_.unary(name, OpKind::kLogistic);
    if (l.kind == "tanh") return net_.unary(name, OpKind::kTanh);
    if (l.kind == "batch_norm") return net_.batch_norm(name, norm);
    if (l.kind == "layer_norm") return net_.layer_norm(name, norm);
    if (l.kind == "group_norm") return net_.group_norm(name, l.groups, norm);
    if (l.kind == "minibatch_stddev") return net_.minibatch_stddev(name, l.group);
    if (l.kind == "dropout") return net_.dropout(name, {l.rate, l.scaled, l.keeps == "low"});
    if (l.kind == "embedding") {
      const int64_t rows = l.vocabulary > 0 ? l.vocabulary : sample_.vocabulary;
      return net_.embedding(name, rows, l.units, weights.kernel, {l.factor, l.padding_index});
    }
    if (l.kind == "position_embedding") return net_.position_embedding(name, weights.kernel);
    if (l.kind == "attention")
      return net_.attention(
          name,
          {l.heads, l.causal, l.masked, l.scaled, l.scaled_by == "units", l.head_units == "turns"},
          weights);
    if (l.kind == "masked_mean") return net_.masked_mean(name);
    if (l.kind == "add" && l.terms != "all") {
      net_.set(l.terms == "first" ? inputs.front() : inputs.back());
      return;
    }
    if (l.kind == "add") return net_.add(name, inputs);
    if (l.kind == "concat") return net_.concatenate(name, inputs);
    if (l.kind == "l2_normalize") return net_.l2_normalize(name, 1e-12);
    if (l.kind == "noise") return net_.noise(name, l.units);
    throw GraphError(name + ": unknown layer kind '" + l.kind + "'");
  }

  static Padding padding_of(const LayerSpec& l) {
    if (l.padding == "same" || l.padding == "valid") return same_or_valid(l.padding == "same");
    return {Padding::Kind::kCells, std::stoll(l.padding)};
  }
  NormOptions::Running running_of(const LayerSpec& l) const {
    const std::string_view which =
        l.variance == "auto" ? by_conventions(s_, "variance") : std::string_view(l.variance);
    return which == "biased"     ? NormOptions::Running::kBiased
           : which == "unbiased" ? NormOptions::Running::kUnbiased
                                 : NormOptions::Running::kTensorFlow;
  }

  const Scenario& s_;
  const SampleType& sample_;
  Layers& net_;
  int& line_;
};

Result<Program> build(const Scenario& s, const SampleType& sample, int64_t batch, Mode mode) {
  try {
    return build_forward(mode, batch, sample, s.seed, optimizer_of(s), [s, sample](Layers& net) {
      int line = 0;
      try {
        ModelBuilder(s, sample, net, line)();
      } catch (const GraphError& e) {
        throw LayerError(e.what(), line);
      }
    });
  } catch (const LayerError& e) {
    return Error{e.what(),
                 e.line > 0 ? fmt::format("{}:{}: [model]", s.file, e.line) : s.file + ": [model]",
                 "change the layer or the one before it; shapes are batch first"};
  }
}

}  // namespace

Result<Program> build_training(const Scenario& scenario, const SampleType& sample) {
  return build(scenario, sample, scenario.train.batch, Mode::kTraining);
}
Result<Program> build_inference(const Scenario& scenario, const SampleType& sample, int64_t batch) {
  return build(scenario, sample, batch, Mode::kInference);
}

Sharding sharding_of(const Scenario& s) {
  Sharding sharding;
  sharding.cores = s.tpu.cores;
  // Without CrossShardOptimizer, the loss is not scaled by 1/cores either.
  sharding.reduction = s.tpu.reduction == "mean" ? Reduction::kMean : Reduction::kSum;
  sharding.reduce_gradients = s.tpu.reduction != "none";
  sharding.batchnorm = s.tpu.batchnorm == "synced"     ? BatchNormSync::kSynced
                       : s.tpu.batchnorm == "averaged" ? BatchNormSync::kAveraged
                                                       : BatchNormSync::kPerCore;
  sharding.batchnorm_group = s.tpu.batchnorm_group;
  sharding.batchwise = s.tpu.batchwise == "gathered" ? Scope::kGlobal : Scope::kPerCore;
  sharding.token_mean = s.tpu.token_mean == "global" ? Scope::kGlobal : Scope::kPerCore;
  sharding.clipping = s.tpu.clipping == "before_all_reduce" ? Clipping::kBeforeAllReduce
                                                            : Clipping::kAfterAllReduce;
  sharding.statistics = s.tpu.statistics == "per_core"   ? Statistics::kPerCore
                        : s.tpu.statistics == "global"   ? Statistics::kGlobal
                        : s.tpu.statistics == "averaged" ? Statistics::kAveraged
                                                         : Statistics::kAsNormalised;
  sharding.scaling = s.tpu.scaling == "once_more" ? Scaling::kOnceMore
                     : s.tpu.scaling == "never"   ? Scaling::kNever
                                                  : Scaling::kByReduction;
  sharding.l2_once = s.tpu.l2_terms == "once";
  sharding.l2_every_core = s.tpu.l2_terms == "every_core";
  Feeding& fed = sharding.feeding;
  fed.shards = s.tpu.shards == "first"         ? Feeding::Shards::kFirst
               : s.tpu.shards == "first_twice" ? Feeding::Shards::kFirstTwice
                                               : Feeding::Shards::kOwn;
  fed.remainder = s.tpu.remainder == "padded"     ? Feeding::Remainder::kPadded
                  : s.tpu.remainder == "repeated" ? Feeding::Remainder::kRepeated
                  : s.tpu.remainder == "dropped"  ? Feeding::Remainder::kDropped
                                                  : Feeding::Remainder::kReal;
  fed.streams = s.tpu.streams == "one"        ? Feeding::Streams::kOne
                : s.tpu.streams == "per_core" ? Feeding::Streams::kPerCore
                                              : Feeding::Streams::kGlobal;
  fed.rate = s.tpu.rate_scaling == "times_cores"  ? Feeding::Rate::kTimesCores
             : s.tpu.rate_scaling == "over_cores" ? Feeding::Rate::kOverCores
                                                  : Feeding::Rate::kAsGiven;
  return sharding;
}

}  // namespace twinrun
