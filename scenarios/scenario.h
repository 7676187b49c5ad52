// What is trained, as the user says it: the contents of a TOML file, checked, with every default filled in.
// First stage of the pipeline: text -> Scenario -> (model.h) Program, (data/feed.h) batches.
//
//   auto s = load_scenario("digits_cnn", {{"train.steps", "20"}});   // library name or path, --set overrides
//   if (!s) fail(s.error());            // file, line, key, found, allowed, nearest
//   resolved_toml(*s);                  // every key; parses back to the same Scenario
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "program/base/digest.h"
#include "program/base/result.h"
#include "program/base/types.h"

namespace twinrun {

enum class LossReduction : uint8_t { kMean, kSum };

// [data]
struct DataSpec {
  std::string source = "digits";        // docs/data.md has them all
  std::string dir;                      // of files: their folder
  std::vector<std::string> files;       // below dir; idx: {images, labels}
  std::vector<std::string> eval_files;  // held-out files; none: the last tenth is held out
  std::string feature = "features";     // names in a file: of features, labels, weights (none: "")
  std::string label = "labels";
  std::string weight;
  std::string eval_feature, eval_label, eval_weight;  // names of held-out arrays in the same file
  std::string tokens = "bytes";                       // of a text: bytes | characters
  int64_t window = 0;                                 // tokens of a sample
  int64_t vocabulary = 0;  // token ids are 0..vocabulary-1; 0: the features are numbers
  Dims shape;              // of one sample; digits: [28,28,1]
  int64_t classes = 10;
  double scale = 1, offset = 0;       // the model reads x scale + offset
  std::string channels = "as_given";  // as_given | reversed
  bool transposed = false;            // height and width of images are exchanged
  int64_t label_offset = 0;           // added to the labels, not below 0
  int64_t batch_offset = 0;           // step s trains on batch s + offset
  int64_t train = 0;                  // samples; 0: all the source has, 4096 of a procedural one
  int64_t eval = 0;                   // held-out samples; 0: all, 1024 of a procedural one
  bool shuffle = true;
  bool drop_remainder = true;
  bool repeat = true;
  int64_t cycle_length = 1;      // tfrecord, cifar10: files whose samples take turns
  std::string cache = "memory";  // of decoded samples: none | memory | a file's path
  int64_t parallel_calls = 1;    // threads that decode and copy samples
  int64_t prefetch = 2;          // batches read ahead on a thread; 0: none
};

// One [[model.layers]] entry. Keys that a kind does not have are errors (layer_keys.cc).
struct LayerSpec {
  std::string kind;                // dense conv2d ... noise
  std::string name;                // default: kind without '2d' and a count from 1, as in "dense1"
  std::vector<std::string> input;  // layers it reads, "data": the sample; empty: the one before
  std::string part;                // of a GAN: generator | discriminator
  int64_t units = 0;               // dense, embedding, noise
  int64_t filters = 0;             // conv2d, conv2d_transpose
  int64_t multiplier = 1;          // depthwise_conv2d
  int64_t kernel = 0;              // convolutions: square
  int64_t window = 2;              // pools: square
  int64_t stride = 0;              // convolutions: 1, pools: window
  int64_t dilation = 1;            // conv2d, depthwise_conv2d
  std::string padding = "same";    // convolutions, pools: same | valid | cells on every side
  bool count_padding = false;      // avg_pool: divide by the whole window at the border, too
  bool flipped = false;            // conv2d: the kernel turned by 180 degrees
  bool transposed = false;         // conv2d: the kernel's height and width exchanged
  std::string fill = "least";      // max_pool: what padding is taken for; least | zeros
  std::string order = "channels_last";  // flatten: channels_last | channels_first
  bool bias = true;                     // layers with kernels
  std::vector<std::string> unused;      // parts (bias) that the layer has and does not use
  Dims shape;                           // reshape: of one sample
  double slope = 0.2;                   // leaky_relu, hard_sigmoid
  std::string at_zero = "none";         // relu, leaky_relu: the gradient there; none | half | full
  bool approximate = false;             // gelu: the tanh form
  int64_t heads = 1;                    // attention
  bool causal = false;                  // attention
  bool masked = false;                  // attention
  std::string scaled_by = "head";       // attention: by the root of a head's units | of all units
  std::string head_units = "blocks";    // attention: which units a head has; blocks | turns
  std::string terms = "all";            // add: which of its inputs; all | first | last
  double factor = 1;                    // embedding: of what is looked up
  int64_t padding_index = -1;           // embedding: the token whose row never learns; -1: none
  bool scaled = true;      // attention: by 1 / sqrt(units of a head); dropout: by 1 / (1 - rate)
  int64_t vocabulary = 0;  // embedding; 0: the data's
  int64_t groups = 1;      // group_norm: of channels
  int64_t group = 4;       // minibatch_stddev: of samples
  double rate = 0.5;       // dropout: share of zeros
  std::string keeps = "high";     // dropout: which uniform numbers keep an input: high | low
  double momentum = 0.99;         // batch_norm: of the running statistics
  double epsilon = 1e-3;          // batch_norm, layer_norm, group_norm
  std::string variance = "auto";  // batch_norm: of the running one; auto | tf | biased | unbiased
  std::string statistics = "batch";     // batch_norm in training: batch | running
  bool unbiased = false;                // layer_norm, group_norm: divide by n - 1
  std::string epsilon_to = "variance";  // layer_norm, group_norm: what it is added to
  std::string axes = "features";        // layer_norm: features | sample
  std::string init;                     // initializer of the kernel or the table; empty: the kind's
  double init_scale = 0;                // its parameter; 0: its default
  int line = 0;                         // in the file, for errors
};

struct ModelSpec {
  std::vector<LayerSpec> layers;
};

struct LossSpec {
  // softmax_cross_entropy | sigmoid_cross_entropy | mean_squared_error (against one-hot) | triplet | contrastive | gan
  std::string kind = "softmax_cross_entropy";
  LossReduction reduction = LossReduction::kMean;
  double smoothing = 0;               // of labels
  std::string weights = "none";       // none | tokens
  double margin = 1.0;                // triplet
  std::string mining = "all";         // triplet: all | hard
  double temperature = 0.1;           // contrastive
  double scale = 1;                   // of the loss, and with it of all gradients
  std::string over_classes = "mean";  // mean_squared_error, sigmoid_cross_entropy: mean | sum
  std::string input = "logits";       // softmax_cross_entropy: logits | probabilities
  int64_t ignored = -1;               // the label whose samples do not count; -1: none
};

inline constexpr double kByKind = -1;  // a number whose default depends on optimizer.kind

struct OptimizerConfig {
  // sgd | momentum | adam | adagrad | adadelta | rmsprop | adamax | adamw | adafactor | lars | lamb
  std::string kind = "sgd";
  double lr = 0.01;
  double momentum = kByKind;             // momentum, lars, rmsprop
  bool nesterov = false;                 // momentum, lars, adam, adamw
  std::string nesterov_form = "auto";    // adam, adamw: auto | tf | optax
  double beta1 = kByKind;                // adam, adamax, adamw, adafactor, lamb
  double beta2 = 0.999;                  // adam, adamax, adamw, lamb
  double rho = kByKind;                  // adadelta, rmsprop
  double epsilon = kByKind;              // all that divide; adam's is TF's "epsilon hat"
  double initial_accumulator = kByKind;  // adagrad, rmsprop
  bool centered = false;                 // rmsprop
  std::string epsilon_form = "auto";     // auto | tf | torch | root (docs/formulas.md)
  std::string bias_correction = "both";  // adam, adamw: both | first | none | stuck
  int64_t correction_lead = 0;           // adam, adamw: added to the number of updates
  bool amsgrad = false;                  // adam, adamw
  double dampening = 0;                  // momentum
  std::string velocity = "auto";         // momentum, rmsprop: auto | gradients | steps
  double gradient_scale = 1;             // of all gradients, not of the loss
  std::vector<std::string> frozen;       // parameters or layers that are not updated
  std::vector<std::string> stopped;      // ... whose gradient is zero
  std::string trust = "decayed";         // lamb: the trust ratio's step; decayed | undecayed | none
  double weight_decay = kByKind;         // all but adafactor
  std::string decay_form = "auto";       // auto | decoupled | unscaled | coupled
  std::string decay_of = "all";          // all | kernels
  double trust_coefficient = 0.001;      // lars
  double clipping_threshold = 1;         // adafactor
  bool relative_step = false;            // adafactor
  bool parameter_scale = true;           // adafactor
  std::string algebra = "auto";          // rmsprop, adamax: auto | cpu | xla
  std::string clip = "none";             // none | value | norm | global_norm
  double clip_at = 0;                    // unless none
  std::string clip_form = "auto";        // auto | tf | torch
  double l2 = 0;                         // weight of the L2 term in the loss
  std::string l2_of = "kernels";         // kernels | all
  double ema = 0;                        // decay of the average of weights; 0: none
  bool ema_eval = false;                 // evaluate the averaged weights
  std::string ema_of = "updated";        // updated | before
  std::string schedule = "constant";     // constant | exponential | cosine | piecewise | polynomial
  double decay_rate = 0.96;
  int64_t decay_steps = 100000;
  bool staircase = false;       // exponential: whole periods only
  double alpha = 0;             // cosine: last rate as a share of lr
  Dims boundaries;              // piecewise: last step of each rate but the last
  std::vector<double> values;   // piecewise: rate after each boundary; before them it is lr
  double end_lr = 1e-4;         // polynomial
  double power = 1;             // polynomial
  bool cycle = false;           // polynomial
  int64_t warmup_steps = 0;     // from 0 to lr on a line, before the schedule begins
  int64_t schedule_offset = 0;  // added to the step at which the rate is taken, not below 0
};

struct TrainSpec {
  int64_t batch = 0;  // total, over all cores
  int64_t steps = 0;
  int64_t log_every = 10;
  int64_t eval_every = 0;        // 0: at the end only
  int64_t checkpoint_every = 0;  // 0: at the end only
  int64_t accumulate = 1;        // steps whose gradients make one update
  LossReduction accumulate_reduction = LossReduction::kMean;  // of those gradients
};

struct TpuSpec {
  int cores = 8;
  LossReduction reduction = LossReduction::kMean;  // CrossShardOptimizer's reduction
  std::string batchnorm = "per_core";              // per_core | synced
  int batchnorm_group = 0;                         // synced: cores that share statistics; 0: all
  std::string batchwise = "per_core";              // per_core | gathered
  std::string token_mean = "per_core";             // per_core | global
  std::string precision = "default";               // f32 | default | high | highest
  int64_t iterations_per_loop = 0;                 // 0: one loop over all steps
  bool poison = false;                             // fill padding cells with NaN
  std::string clipping = "after_all_reduce";       // after_all_reduce | before_all_reduce
};

struct DiagnoseSpec {
  std::string metric = "auto";  // what an effect is looked for in: auto | loss | accuracy | both
  double margin = 0;            // held-out loss that does not matter to the user; 0: none declared
  double accuracy_margin = 0;   // the same of held-out accuracy, a fraction
  int seeds = 3;                // paired seeds before the effect is first judged
  int max_seeds = 20;           // they are added up to here until it is decided
  int ensemble = 0;             // honest engines whose first steps the subject's are compared with
  std::string probe = "auto";   // auto | every | N (every Nth step)
  std::vector<std::string> faults;  // the subject's, each as --fault takes it
};

struct Scenario {
  std::string name;
  std::string description;
  std::string file;      // where it was read from, for errors; not part of the digest
  std::string imported;  // what stands in the place of data, model, loss and optimizer: TOML lines
  std::string conventions = "auto";  // auto | a framework (scenarios/conventions.h)
  uint64_t seed = 0;
  DataSpec data;
  ModelSpec model;
  LossSpec loss;
  OptimizerConfig optimizer;
  TrainSpec train;
  TpuSpec tpu;
  DiagnoseSpec diagnose;
};

using Overrides = std::vector<std::pair<std::string, std::string>>;  // --set KEY=VALUE

// A library name ("digits_cnn") or a path to a TOML file.
Result<Scenario> load_scenario(std::string_view name_or_path, const Overrides& overrides = {});
Result<Scenario> parse_scenario(std::string_view text, std::string_view file,
                                const Overrides& overrides = {});

// For a scenario out of a file of somebody else's (a golden run, a bundle): where it says that samples be cached, nothing is written.
inline void forget_cache_file(Scenario& scenario) { scenario.data.cache = DataSpec{}.cache; }

// Every key with its value, in a fixed order. parse_scenario(resolved_toml(s)) equals s.
std::string resolved_toml(const Scenario& scenario);
// Of resolved_toml without `name`, `description` and `data.dir`/`cache`/`parallel_calls`/`prefetch`: what decides the bits.
// (The data's own content is digested by the feed.)
Digest scenario_digest(const Scenario& scenario);

}  // namespace twinrun
