// A scenario: what is trained, as the user describes it in a TOML file, checked and with every
// default filled in. First stage of the pipeline: text -> Scenario -> (model.h) Program,
// (data/feed.h) batches. keys.cc, layer_keys.cc and optimizer_keys.cc declare the keys with their
// meanings and allowed values.
//
//   auto s = load_scenario("digits_cnn", {{"train.steps", "20"}});   // name or path, overrides
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
  std::string source = "digits";        // docs/reference/data.md lists all sources
  std::string dir;                      // folder of the files
  std::vector<std::string> files;       // relative to dir; idx: {images, labels}
  std::vector<std::string> eval_files;  // held-out files; none: the last tenth is held out
  // Names of the features, the labels and the weights in a file; weight "": none.
  std::string feature = "features";
  std::string label = "labels";
  std::string weight;
  std::string eval_feature, eval_label, eval_weight;  // names of held-out arrays in the same file
  std::string tokens = "bytes";                       // unit of a text: bytes | characters
  int64_t window = 0;                                 // tokens per sample
  int64_t vocabulary = 0;  // token ids are 0..vocabulary-1; 0: the features are numbers
  Dims shape;              // of one sample; digits: [28,28,1]
  int64_t classes = 10;
  double scale = 1, offset = 0;       // the model reads x * scale + offset
  std::string channels = "as_given";  // order of an image's channels: as_given | reversed
  bool transposed = false;            // exchange height and width of images
  int64_t label_offset = 0;           // added to the labels; results below 0 become 0
  int64_t batch_offset = 0;           // step s trains on batch s + batch_offset
  int64_t train = 0;                  // samples; 0: all of a file source, 4096 of a procedural one
  int64_t eval = 0;                   // held-out samples; 0: all, or 1024 of a procedural source
  bool shuffle = true;
  bool drop_remainder = true;
  bool repeat = true;
  int64_t cycle_length = 1;      // tfrecord, cifar10: files that are interleaved
  std::string cache = "memory";  // cache of decoded samples: none | memory | a file's path
  int64_t parallel_calls = 1;    // threads that decode and copy samples
  int64_t prefetch = 2;          // batches read ahead on a thread; 0: none
};

// One [[model.layers]] entry. Where a comment begins with kinds of layers, only those have the key;
// for other kinds it is an error (layer_keys.cc).
struct LayerSpec {
  std::string kind;                // dense conv2d ... noise
  std::string name;                // default: kind without '2d' and a count from 1, as in "dense1"
  std::vector<std::string> input;  // layers it reads, "data": the sample; empty: the previous one
  std::string part;                // in a GAN: generator | discriminator
  int64_t units = 0;               // dense, embedding, noise
  int64_t filters = 0;             // conv2d, conv2d_transpose
  int64_t multiplier = 1;          // depthwise_conv2d
  int64_t kernel = 0;              // convolutions: height and width
  int64_t window = 2;              // pools: height and width
  int64_t stride = 0;              // 0: the default, which is 1 for convolutions, window for pools
  int64_t dilation = 1;            // conv2d, depthwise_conv2d
  std::string padding = "same";    // convolutions, pools: same | valid | number of cells
  bool count_padding = false;      // avg_pool: divide by the whole window at the border, too
  bool flipped = false;            // conv2d: rotate the kernel by 180 degrees
  bool transposed = false;         // conv2d: exchange the kernel's height and width
  std::string fill = "least";      // max_pool: value of padding cells; least | zeros
  std::string order = "channels_last";  // flatten: channels_last | channels_first
  bool bias = true;                     // layers with kernels
  std::vector<std::string> unused;      // parts (as bias) that the layer has but does not use
  Dims shape;                           // reshape: shape of one sample
  double slope = 0.2;                   // leaky_relu, hard_sigmoid
  std::string at_zero = "none";         // relu, leaky_relu: gradient at 0; none | half | full
  bool approximate = false;             // gelu: the tanh form
  int64_t heads = 1;                    // attention: heads that share the units
  bool causal = false;                  // attention: a token sees no later ones
  bool masked = false;                  // attention: no token sees padding
  // attention: scores are divided by the root of the number of units; of one head or of all:
  // head | units.
  std::string scaled_by = "head";
  std::string head_units = "blocks";  // attention: units of a head; blocks | turns (every heads-th)
  std::string terms = "all";          // add: which inputs it adds; all | first | last
  double factor = 1;                  // embedding: multiplies the rows
  int64_t padding_index = -1;         // embedding: the token whose row is never trained; -1: none
  bool scaled = true;      // attention: divide as scaled_by says; dropout: scale by 1 / (1 - rate)
  int64_t vocabulary = 0;  // embedding: number of rows; 0: the data's vocabulary
  int64_t groups = 1;      // group_norm: number of groups of channels
  int64_t group = 4;       // minibatch_stddev: samples in a group
  double rate = 0.5;       // dropout: fraction of inputs set to zero
  // dropout: an input is kept where its uniform number is at least `rate` (high) or below 1 - rate
  // (low).
  std::string keeps = "high";
  double momentum = 0.99;            // batch_norm: of the running statistics
  double epsilon = 1e-3;             // batch_norm, layer_norm, group_norm
  std::string variance = "auto";     // batch_norm, running variance: auto | tf | biased | unbiased
  std::string statistics = "batch";  // batch_norm in training: batch | running
  bool unbiased = false;             // layer_norm, group_norm: the variance divides by n - 1
  std::string epsilon_to = "variance";  // layer_norm, group_norm: variance | deviation
  std::string axes = "features";        // layer_norm: normalise features | sample
  std::string init;       // initializer of the kernel or the table; empty: the kind's default
  double init_scale = 0;  // parameter of the initializer; 0: its default
  int line = 0;           // line in the file, for errors

  int64_t features() const { return units + filters; }  // a layer has one of them, or none
};

struct ModelSpec {
  std::vector<LayerSpec> layers;
};

// The layers with features, by index, but for the last of them, whose features are the classes.
std::vector<size_t> hidden_layers(const ModelSpec& model);

struct LossSpec {
  // softmax_cross_entropy | sigmoid_cross_entropy | mean_squared_error (against one-hot labels) |
  // triplet | contrastive | gan
  std::string kind = "softmax_cross_entropy";
  LossReduction reduction = LossReduction::kMean;
  double smoothing = 0;               // label smoothing
  std::string weights = "none";       // none | tokens
  double margin = 1.0;                // triplet
  std::string mining = "all";         // triplet: all | hard
  double temperature = 0.1;           // contrastive
  double scale = 1;                   // multiplies the loss, and with it all gradients
  std::string over_classes = "mean";  // mean_squared_error, sigmoid_cross_entropy: mean | sum
  std::string input = "logits";       // softmax_cross_entropy: logits | probabilities
  int64_t ignored = -1;               // label of the samples to ignore; -1: none
};

inline constexpr double kByKind = -1;  // a number whose default depends on optimizer.kind

// [optimizer]. Where a comment begins with kinds, only those have the key; optimizer_keys.cc has
// the exact rules.
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
  double epsilon = kByKind;              // kinds that divide; adam: TF's "epsilon hat"
  double initial_accumulator = kByKind;  // adagrad, rmsprop
  bool centered = false;                 // rmsprop
  std::string epsilon_form =
      "auto";  // auto | tf | torch | root | tf_root (docs/reference/formulas.md)
  std::string bias_correction = "both";  // adam, adamw, adamax, lamb: both | first | none | stuck
  int64_t correction_lead = 0;           // adam, adamw: added to t in the bias correction
  bool amsgrad = false;                  // adam, adamw
  double dampening = 0;                  // momentum
  std::string velocity = "auto";         // momentum, rmsprop: auto | gradients | steps
  double gradient_scale = 1;             // multiplies all gradients, but not the loss
  std::vector<std::string> frozen;       // parameters or layers that are not updated
  std::vector<std::string> stopped;      // parameters or layers whose gradient is set to zero
  std::string trust = "decayed";         // lamb: step in the trust ratio; decayed|undecayed|none
  double weight_decay = kByKind;         // all but adafactor
  std::string decay_form = "auto";       // auto | decoupled | unscaled | coupled
  std::string decay_of = "all";          // all | kernels
  double trust_coefficient = 0.001;      // lars
  double clipping_threshold = 1;         // adafactor
  bool relative_step = false;            // adafactor
  bool parameter_scale = true;           // adafactor
  std::string algebra = "auto";          // rmsprop, adamax: auto | cpu | xla
  std::string clip = "none";             // none | value | norm | global_norm
  double clip_at = 0;                    // largest magnitude or norm; unused if clip is none
  std::string clip_form = "auto";        // auto | tf | torch
  double l2 = 0;                         // weight of the L2 term in the loss
  std::string l2_of = "kernels";         // kernels | all
  double ema = 0;                        // decay of the moving average of weights; 0: none
  bool ema_eval = false;                 // evaluate the averaged weights
  std::string ema_of = "updated";        // weights in the average: updated | before the update
  std::string schedule = "constant";     // constant | exponential | cosine | piecewise | polynomial
  double decay_rate = 0.96;
  int64_t decay_steps = 100000;
  bool staircase = false;       // exponential: count whole periods only
  double alpha = 0;             // cosine: final rate as a fraction of lr
  Dims boundaries;              // piecewise: last step of each rate but the last
  std::vector<double> values;   // piecewise: rate after each boundary; up to the first it is lr
  double end_lr = 1e-4;         // polynomial
  double power = 1;             // polynomial
  bool cycle = false;           // polynomial
  int64_t warmup_steps = 0;     // linear increase from 0 to lr before the schedule begins
  int64_t schedule_offset = 0;  // added to the step before the rate is computed; at least 0 results
};

struct TrainSpec {
  int64_t batch = 0;  // total, over all cores
  int64_t steps = 0;
  int64_t log_every = 10;
  int64_t eval_every = 0;        // 0: at the end only
  int64_t checkpoint_every = 0;  // 0: at the end only
  int64_t accumulate = 1;        // steps whose gradients are accumulated into one update
  LossReduction accumulate_reduction = LossReduction::kMean;  // over those steps' gradients
};

// How a step is spread over cores. Members that say "a mistake" try what a suspected script may do
// (docs/reference/scenarios.md, "Sharding causes"); none of them changes the reference.
struct TpuSpec {
  int cores = 8;
  std::string reduction = "mean";             // mean | sum | none (a mistake: no all-reduce)
  std::string batchnorm = "per_core";         // per_core | synced | averaged (a mistake)
  int batchnorm_group = 0;                    // synced: cores that share statistics; 0: all
  std::string batchwise = "per_core";         // per_core | gathered
  std::string token_mean = "per_core";        // per_core | global
  std::string precision = "default";          // f32 | default | high | highest
  int64_t iterations_per_loop = 0;            // 0: one loop over all steps
  bool poison = false;                        // fill padding cells with NaN
  std::string clipping = "after_all_reduce";  // after_all_reduce | before_all_reduce
  std::string statistics = "as_normalised";   // as_normalised | per_core | global | averaged
  // Mistakes.
  std::string scaling = "by_reduction";   // by_reduction | once_more | never
  std::string l2_terms = "by_reduction";  // by_reduction | every_core | once
  std::string shards = "own";             // own | first | first_twice
  std::string remainder = "real";         // real | padded | repeated | dropped
  std::string streams = "global";         // global | one | per_core
  std::string rate_scaling = "none";      // none | times_cores | over_cores
  // Of the modelled profile only: a core that takes `slow_core_factor` times as long, -1: none; and
  // links that do.
  int slow_core = -1;
  double slow_core_factor = 1.5;
  double link_factor = 1;
};

struct DiagnoseSpec {
  std::string metric = "auto";  // held-out metric of the effect: auto | loss | accuracy | both
  // Differences in held-out loss and in held-out accuracy (a fraction) that do not matter to the
  // user; 0: none declared.
  double margin = 0;
  double accuracy_margin = 0;
  int seeds = 3;               // paired seeds before the effect is first judged
  int max_seeds = 20;          // seeds are added up to this number until the effect is decided
  int ensemble = 0;            // conforming engines whose first steps are compared to the subject's
  std::string probe = "auto";  // steps compared op by op: auto | every | N (every Nth step)
  std::vector<std::string> faults;  // injected into the subject, in the syntax of --fault
};

// The files of an imported program (docs/guides/import.md). "" for those beside `program` with the
// usual names, and for held-out batches that were not given.
struct ProgramFiles {
  std::string program;  // HLO text or StableHLO text
  std::string binding, state, batch, held_out;
  // The text of the same step on one device, for the whole batch; "": none. Files beside it are its
  // own, and the others are those of the sharded step.
  std::string whole;
};

struct Scenario {
  std::string name;
  std::string description;
  std::string file;  // where it was read from, for errors; not part of the digest
  // For an imported program, the TOML lines of [program], which replace data, model, loss and
  // optimizer: digests of what ran.
  std::string imported;
  // Where that program is read from; neither in the text nor in the digest.
  ProgramFiles program_files;
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

// Errors: a key that has no meaning for an imported program.
Status check_keys_of_program(const Overrides& overrides);

// For a scenario from a file that another user made (a golden run, a bundle): resets data.cache, so
// that such a scenario never writes a cache file.
inline void forget_cache_file(Scenario& scenario) { scenario.data.cache = DataSpec{}.cache; }

// Every key with its value, in a fixed order. parse_scenario(resolved_toml(s)) equals s.
std::string resolved_toml(const Scenario& scenario);
// Digest of the keys that decide the bits of a run: resolved_toml without `name`, `description` and
// `data.dir`/`cache`/`parallel_calls`/`prefetch`, and without keys that were added later and are at
// their defaults (resolve.cc). The content of the data has a digest of its own (Dataset::digest).
Digest scenario_digest(const Scenario& scenario);

}  // namespace twinrun
