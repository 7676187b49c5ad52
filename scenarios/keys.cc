// The keys of the top level, [data], [loss], [train], [tpu] and [diagnose]; values as text; the
// table in docs/reference/scenarios.md.
#include "scenarios/keys.h"

#include <fmt/format.h>

#include <cmath>

namespace twinrun {
namespace {

using namespace allowed;

constexpr std::string_view kConventions = "auto|tensorflow|keras2|keras3|pytorch|optax";
constexpr std::string_view kPrecisions = "f32|default|high|highest";

const Key<Scenario> kTop[] = {
    {"name",
     &Scenario::name,
     any(),
     "the scenario's name in reports",
     {},
     false,
     "the file's name"},
    {"description", &Scenario::description, any(), "one line for `twinrun inspect`"},
    {"seed", &Scenario::seed, at_least(0),
     "seed of initial weights, sample order, dropout and procedural data"},
    {"conventions", &Scenario::conventions, one_of(kConventions),
     "the framework whose formulas the keys set to \"auto\" follow "
     "([formulas.md](formulas.md#formulas-of-other-frameworks)); "
     "`auto`: the one that the subject declares, else TensorFlow"},
};

constexpr std::string_view kSources =
    "digits|idx|cifar10|images32|tfrecord|npy|npz|hdf5|text|text_synthetic|phrases";
constexpr std::string_view kFileSources = "idx|cifar10|tfrecord|npy|npz|hdf5|text";
constexpr std::string_view kClassSources =
    "digits|idx|cifar10|images32|tfrecord|npy|npz|hdf5|phrases";

// A key of [data] that exists only if data.source is one of those that `only` lists ("idx|npy").
constexpr Key<DataSpec> of_source(std::string_view only, std::string_view name, auto member,
                                  Allowed allowed, std::string_view meaning,
                                  std::string_view shown_default = {}) {
  return {name, member, allowed, meaning, only, false, shown_default, "source"};
}

const Key<DataSpec> kData[] = {
    {"source", &DataSpec::source, one_of(kSources),
     "where samples come from: see [data.md](data.md). `digits`: procedural handwritten digits, no "
     "download; `idx`: MNIST's IDX files, raw or gzip"},
    of_source(kFileSources, "dir", &DataSpec::dir, any(),
              "folder of the files. `idx`: `train-*` and `t10k-*`; where one pair is absent the "
              "other is split 9:1 in file order"),
    of_source(
        "idx|tfrecord|npy|npz|hdf5|text", "files", &DataSpec::files, any(),
        "files below `dir`. `idx`: images and labels instead of the standard names, split "
        "9:1 in file order; `npy`: features, labels and optionally weights; `tfrecord`: one or "
        "more; the others: one"),
    of_source("tfrecord|npy", "eval_files", &DataSpec::eval_files, any(),
              "held-out files, like `files`; empty: the last tenth of the samples is held out"),
    of_source("tfrecord|npz|hdf5", "feature", &DataSpec::feature, any(),
              "name of the features in the file"),
    of_source("tfrecord|npz|hdf5", "label", &DataSpec::label, any(),
              "name of the labels in the file"),
    of_source("npz|hdf5", "weight", &DataSpec::weight, any(),
              "name of the weights in the file; empty: none"),
    of_source("npz|hdf5", "eval_feature", &DataSpec::eval_feature, any(),
              "name of the held-out features; empty: the last tenth of the samples is held out"),
    of_source("npz|hdf5", "eval_label", &DataSpec::eval_label, any(),
              "name of the held-out labels"),
    of_source("npz|hdf5", "eval_weight", &DataSpec::eval_weight, any(),
              "name of the held-out weights"),
    of_source("text", "tokens", &DataSpec::tokens, one_of("bytes|characters"),
              "a token is a byte (256 of them), or a character (those of the file, sorted)"),
    of_source("text|text_synthetic|phrases|tfrecord", "window", &DataSpec::window,
              between(0, 1 << 20),
              "tokens per sample. `phrases`: of the longest sample; `tfrecord`: shorter samples "
              "are padded and get weights; 0: all samples have the same length",
              "64 (texts), 16 (phrases), 0 (tfrecord)"),
    of_source(
        "tfrecord|npy|npz|hdf5|phrases", "vocabulary", &DataSpec::vocabulary, between(0, 1 << 24),
        "token ids are 0 to `vocabulary` - 1; 0: the features are numbers", "64 (phrases), 0"),
    of_source(
        "digits|idx|cifar10|images32|tfrecord|npy|npz|hdf5", "shape", &DataSpec::shape, at_least(1),
        "shape of one sample: height, width, channels. `tfrecord`, `npy`, `npz`, `hdf5`: any; "
        "empty: as in the file",
        "`[28, 28, 1]` (digits, idx), `[32, 32, 3]` (cifar10, images32)"),
    of_source(kClassSources, "classes", &DataSpec::classes, between(2, 1 << 20),
              "number of classes: at most 10 for digits, cifar10 and images32, 256 for idx"),
    {"scale", &DataSpec::scale, any(),
     "factor of the features: the model reads x * scale + offset"},
    {"offset", &DataSpec::offset, any(), "added to the scaled features"},
    {"channels", &DataSpec::channels, one_of("as_given|reversed"),
     "order of an image's channels as the model reads them; `reversed`: BGR for RGB"},
    {"transposed", &DataSpec::transposed, any(),
     "exchange height and width of images before the model reads them"},
    {"label_offset", &DataSpec::label_offset, between(-1048576, 1048576),
     "added to the labels before the loss reads them; a negative sum becomes 0"},
    {"batch_offset", &DataSpec::batch_offset, between(0, 1 << 20),
     "step s trains on batch s + batch_offset"},
    {"train",
     &DataSpec::train,
     at_least(0),
     "training samples; 0: all of the source",
     {},
     false,
     "4096 (procedural sources), 0 (files)"},
    {"eval",
     &DataSpec::eval,
     at_least(0),
     "held-out samples; 0: all of the source",
     {},
     false,
     "1024 (procedural sources), 0 (files)"},
    {"shuffle", &DataSpec::shuffle, any(), "a new order every epoch"},
    {"drop_remainder", &DataSpec::drop_remainder, any(),
     "an epoch ends with its last full batch; `false` is refused where `train.batch` does not "
     "divide "
     "the training samples: a program has one batch size, and no short last batch"},
    {"repeat", &DataSpec::repeat, any(), "start over after the last sample"},
    of_source("cifar10|tfrecord", "cycle_length", &DataSpec::cycle_length, between(1, 1024),
              "training files read in turn, one sample from each; 1: one file after the other"),
    {"cache", &DataSpec::cache, any(),
     "cache of decoded samples: `none` (u8 samples are decoded for each batch), `memory`, or the "
     "path of "
     "a file that later runs read; never changes a result"},
    {"parallel_calls", &DataSpec::parallel_calls, between(1, 64),
     "threads that decode samples and put them into batches; never changes a result"},
    {"prefetch", &DataSpec::prefetch, between(0, 1024),
     "batches read ahead; never changes a result"},
};

constexpr std::string_view kSmoothed =
    "softmax_cross_entropy|sigmoid_cross_entropy|mean_squared_error";
const Key<LossSpec> kLoss[] = {
    {"kind", &LossSpec::kind,
     one_of(
         "softmax_cross_entropy|sigmoid_cross_entropy|mean_squared_error|triplet|contrastive|gan"),
     "the loss. The first three compare with one-hot labels; `triplet` and `contrastive` compare "
     "the samples of a batch by label; `gan` needs a generator and a discriminator"},
    {"reduction", &LossSpec::reduction, one_of("mean|sum"),
     "reduction over the samples of one core. `sum` under `tpu.reduction = \"mean\"` scales the "
     "gradient "
     "with the "
     "per-core batch"},
    {"smoothing", &LossSpec::smoothing, below(0, 1),
     "label smoothing s: (1 - s) one-hot + s / classes", kSmoothed},
    {"weights", &LossSpec::weights, one_of("none|tokens"),
     "`tokens`: a weighted mean by the data's weights (a sample's weight is the sum of its "
     "tokens')"},
    {"margin", &LossSpec::margin, at_least(0), "margin of the hinge", "triplet"},
    {"mining", &LossSpec::mining, one_of("all|hard"),
     "the mean over all triplets of an anchor, or its hardest triplet", "triplet"},
    {"temperature", &LossSpec::temperature, above(0), "similarities are divided by it",
     "contrastive"},
    {"scale", &LossSpec::scale, above(0), "factor of the loss, and therefore of all gradients"},
    {"over_classes", &LossSpec::over_classes, one_of("mean|sum"),
     "reduction of one sample's errors over the classes",
     "mean_squared_error|sigmoid_cross_entropy"},
    {"input", &LossSpec::input, one_of("logits|probabilities"),
     "`probabilities`: the loss takes the softmax of the logits as its logits, a common mistake",
     "softmax_cross_entropy"},
    {"ignored", &LossSpec::ignored, between(-1, 1 << 24),
     "samples (or tokens) with this label are left out of the loss and of a mean's divisor; -1: "
     "none",
     kSmoothed},
};

const Key<TrainSpec> kTrain[] = {
    {"batch",
     &TrainSpec::batch,
     between(1, 1 << 24),
     "samples per step over all cores: a multiple of `tpu.cores`",
     {},
     true},
    {"steps",
     &TrainSpec::steps,
     between(1, 4294967295.0),
     "training steps, one batch each; a step is an update unless `accumulate` is more than 1",
     {},
     true},
    {"log_every", &TrainSpec::log_every, at_least(1),
     "steps between progress lines; for this and the next two keys see `tpu.iterations_per_loop`"},
    {"eval_every", &TrainSpec::eval_every, at_least(0),
     "steps between evaluations on the held-out samples; 0: at the end only"},
    {"checkpoint_every", &TrainSpec::checkpoint_every, at_least(0),
     "steps between checkpoints; 0: at the end only"},
    {"accumulate", &TrainSpec::accumulate, between(1, 1 << 20),
     "steps whose gradients are combined into one update"},
    {"accumulate_reduction", &TrainSpec::accumulate_reduction, one_of("mean|sum"),
     "reduction of the gradients of those steps"},
};

const Key<TpuSpec> kTpu[] = {
    {"cores", &TpuSpec::cores, between(1, 2048),
     "replicas that share a batch (a v2-8 or v3-8 has 8)"},
    {"reduction", &TpuSpec::reduction, one_of("mean|sum|none"),
     "reduction of gradients across cores (CrossShardOptimizer's `reduction`); `none`, a mistake: "
     "without that optimizer nothing is reduced, and each core trains on its own gradients"},
    {"batchnorm", &TpuSpec::batchnorm, one_of("per_core|synced|averaged"),
     "batch statistics from one core's samples, or from all cores'; `averaged`, a mistake: the "
     "variance is the mean of the cores' own variances"},
    {"batchnorm_group", &TpuSpec::batchnorm_group, between(0, 2048),
     "with `synced`: number of neighbouring cores that share statistics; 0: all cores"},
    {"batchwise", &TpuSpec::batchwise, one_of("per_core|gathered"),
     "samples seen by layers and losses that compare samples (minibatch_stddev, triplet, "
     "contrastive): one core's, or all cores'"},
    {"token_mean", &TpuSpec::token_mean, one_of("per_core|global"),
     "weighted means divide by the weights of one core, or of all cores"},
    {"precision", &TpuSpec::precision, one_of(kPrecisions),
     "precision of matrix multiplication: bfloat16 passes, 1 (`default`), 3 (`high`), 6 "
     "(`highest`), or "
     "`f32`"},
    {"iterations_per_loop", &TpuSpec::iterations_per_loop, at_least(0),
     "steps between returns to the host, which alone logs, evaluates and keeps checkpoints (TPU "
     "stack only); 0: all, and the host sees every step"},
    {"poison", &TpuSpec::poison, any(), "fill padding cells with NaN to show leaks"},
    {"clipping", &TpuSpec::clipping, one_of("after_all_reduce|before_all_reduce"),
     "where gradients are clipped; `before_all_reduce`: each core clips its own, which a mean "
     "reduction has already scaled by 1/cores"},
    {"statistics", &TpuSpec::statistics, one_of("as_normalised|per_core|global|averaged"),
     "samples that batch norm's running statistics are of: those of the batch statistics, one "
     "core's, all cores', or the average of the cores' own"},
    {"scaling", &TpuSpec::scaling, one_of("by_reduction|once_more|never"),
     "how often gradients are divided by the cores: as `reduction` says; mistakes: once more than "
     "that, or `never` though the reduction is a mean"},
    {"l2_terms", &TpuSpec::l2_terms, one_of("by_reduction|every_core|once"),
     "L2 terms in the reduced gradient: scaled as each core's loss is; under a mean `every_core`, "
     "a mistake: as many as there are cores; under a sum `once`: one"},
    {"shards", &TpuSpec::shards, one_of("own|first|first_twice"),
     "samples that each core is fed: its own; mistakes: the first core's, or the first core's to "
     "core 1 as well"},
    {"remainder", &TpuSpec::remainder, one_of("real|padded|repeated|dropped"),
     "the last core's last samples: real ones; mistakes: zeros that count, the batch's first "
     "samples again, or none"},
    {"streams", &TpuSpec::streams, one_of("global|one|per_core"),
     "random numbers of a core's samples: those that they have in the whole batch; mistakes: the "
     "same on all cores, or from a stream of each core's own"},
    {"rate_scaling", &TpuSpec::rate_scaling, one_of("none|times_cores|over_cores"),
     "mistakes with the learning rate: multiplied or divided by the number of cores"},
    {"slow_core", &TpuSpec::slow_core, between(-1, 511),
     "number of a core that is slower than the others, in modelled profiles only; -1: none"},
    {"slow_core_factor", &TpuSpec::slow_core_factor, between(1, 1000),
     "how many times as long that core takes for its own work"},
    {"link_factor", &TpuSpec::link_factor, between(1, 1000),
     "how many times as long the links between chips take, in modelled profiles only"},
};

const Key<DiagnoseSpec> kDiagnose[] = {
    {"metric", &DiagnoseSpec::metric, one_of("auto|loss|accuracy|both"),
     "held-out metric that is tested for an effect; `both`: the worse of the two decides; `auto`: "
     "both where labels are classes, else the loss; if a margin is declared for only one of them, "
     "that one"},
    {"margin", &DiagnoseSpec::margin, at_least(0),
     "difference in held-out loss that does not matter to you; 0: none declared, and then every "
     "significant effect matters"},
    {"accuracy_margin", &DiagnoseSpec::accuracy_margin, between(0, 1),
     "difference in held-out accuracy that does not matter to you, as a fraction; 0: none "
     "declared"},
    {"seeds", &DiagnoseSpec::seeds, between(1, 1000),
     "paired seeds trained before the effect is first judged; 1: it is not judged"},
    {"max_seeds", &DiagnoseSpec::max_seeds, between(1, 1000),
     "seeds are added up to this number until the effect is decided; below `seeds`: none are "
     "added"},
    {"ensemble", &DiagnoseSpec::ensemble, between(0, 1000),
     "number of conforming engines with whose first steps the subject's are compared; 0: none, "
     "else 5 or more"},
    {"probe",
     &DiagnoseSpec::probe,
     {.names = "auto|every", .or_count = true},
     "steps compared op by op: a selection (`auto`), every step, or every Nth"},
    {"faults", &DiagnoseSpec::faults, any(),
     "faults injected into the subject on purpose, written as for --fault "
     "([above](#faults-on-purpose))"},
};

bool is_names(std::string_view names) { return !names.empty(); }

// One entry of docs/reference/scenarios.md.
template <typename Owner>
std::string entry(const std::string& prefix, const Owner& initial, const Key<Owner>& key) {
  struct Type {
    std::string_view operator()(bool Owner::*) const { return "boolean"; }
    std::string_view operator()(int Owner::*) const { return "integer"; }
    std::string_view operator()(int64_t Owner::*) const { return "integer"; }
    std::string_view operator()(uint64_t Owner::*) const { return "integer"; }
    std::string_view operator()(double Owner::*) const { return "number"; }
    std::string_view operator()(std::string Owner::*) const { return "string"; }
    std::string_view operator()(std::vector<std::string> Owner::*) const { return "strings"; }
    std::string_view operator()(Dims Owner::*) const { return "integers"; }
    std::string_view operator()(LossReduction Owner::*) const { return "string"; }
    std::string_view operator()(std::vector<double> Owner::*) const { return "numbers"; }
  };
  std::string out = fmt::format("- `{}{}`", prefix, key.name);
  if (key.required)
    out += fmt::format(", required {}", std::visit(Type{}, key.member));
  else if (!key.shown_default.empty())
    out += fmt::format(" = {}", key.shown_default);
  else
    out += fmt::format(" = `{}`", toml_value(initial, key));
  std::string_view names = key.allowed.names;
  if (names.starts_with('|')) names.remove_prefix(1);  // the empty word is the default
  if (!names.empty())
    out += fmt::format("; `{}`{}", names, key.allowed.or_count ? ", or a count" : "");
  if (!key.only.empty()) out += fmt::format(" ({} `{}`)", key.selector, key.only);
  return out + fmt::format(": {}\n", key.meaning);
}

template <typename Owner>
std::string section(std::string_view title, const std::string& prefix) {
  std::string out = fmt::format("\n### {}\n\n", title);
  for (const Key<Owner>& key : keys<Owner>()) out += entry(prefix, Owner{}, key);
  return out;
}

}  // namespace

template <>
std::span<const Key<Scenario>> keys() {
  return kTop;
}
template <>
std::span<const Key<DataSpec>> keys() {
  return kData;
}
template <>
std::span<const Key<ModelSpec>> keys() {
  return {};
}
template <>
std::span<const Key<LossSpec>> keys() {
  return kLoss;
}
template <>
std::span<const Key<TrainSpec>> keys() {
  return kTrain;
}
template <>
std::span<const Key<TpuSpec>> keys() {
  return kTpu;
}
template <>
std::span<const Key<DiagnoseSpec>> keys() {
  return kDiagnose;
}

bool Allowed::has(double value) const {
  if (!std::isfinite(value)) return false;
  return (above_low ? value > low : value >= low) && (below_high ? value < high : value <= high);
}

bool Allowed::has(std::string_view name) const {
  return !is_names(names) || contains_name(names, name);
}

std::string Allowed::text() const {
  if (is_names(names)) {
    std::string out;
    for (std::string_view name : split_names(names)) {
      out += fmt::format("{}{}", out.empty() ? "" : ", ", name);
    }
    return or_count ? out + ", or an integer of at least 1" : out;
  }
  const bool has_low = std::isfinite(low), has_high = std::isfinite(high) && high < kMax;
  if (has_low && has_high && !above_low && !below_high)
    return fmt::format("{} to {:.0f}", low, high);
  std::string out;
  if (has_low) out = fmt::format("{} {}", above_low ? "above" : "at least", low);
  if (has_high) {
    out +=
        fmt::format("{}{} {:.0f}", has_low ? " and " : "", below_high ? "below" : "at most", high);
  }
  return out;
}

std::vector<std::string_view> split_names(std::string_view names) {
  std::vector<std::string_view> out;
  while (!names.empty()) {
    const size_t bar = names.find('|');
    out.push_back(names.substr(0, bar));
    names = bar == std::string_view::npos ? "" : names.substr(bar + 1);
  }
  return out;
}

bool contains_name(std::string_view names, std::string_view name) {
  for (std::string_view one : split_names(names)) {
    if (one == name) return true;
  }
  return false;
}

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (u < 0x20 || u == 0x7f) {
      out += fmt::format("\\u{:04X}", u);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string toml_number(double value) {
  std::string out = fmt::format("{}", value);
  if (out.find_first_of(".en") == std::string::npos) out += ".0";
  return out;
}

template <typename Owner>
std::string toml_value(const Owner& owner, const Key<Owner>& key) {
  struct Print {
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(int v) const { return fmt::format("{}", v); }
    std::string operator()(int64_t v) const { return fmt::format("{}", v); }
    std::string operator()(uint64_t v) const { return fmt::format("{}", v); }
    std::string operator()(double v) const { return toml_number(v); }
    std::string operator()(const std::string& v) const { return toml_string(v); }
    std::string operator()(const std::vector<std::string>& v) const {
      std::string out;
      for (const std::string& item : v) out += (out.empty() ? "" : ", ") + toml_string(item);
      return "[" + out + "]";
    }
    std::string operator()(const Dims& v) const {
      std::string out;
      for (int64_t item : v) out += fmt::format("{}{}", out.empty() ? "" : ", ", item);
      return "[" + out + "]";
    }
    std::string operator()(const std::vector<double>& v) const {
      std::string out;
      for (double item : v) out += (out.empty() ? "" : ", ") + toml_number(item);
      return "[" + out + "]";
    }
    std::string operator()(LossReduction v) const {
      return v == LossReduction::kMean ? "\"mean\"" : "\"sum\"";
    }
  };
  return std::visit([&](auto member) { return Print{}(owner.*member); }, key.member);
}

template <typename Owner>
std::string_view string_value(const Owner& owner, std::string_view name) {
  for (const Key<Owner>& key : keys<Owner>()) {
    if (key.name != name) continue;
    if (const auto* member = std::get_if<std::string Owner::*>(&key.member))
      return owner.*(*member);
  }
  return "";
}

#define TWINRUN_PART(Owner)                                         \
  template std::string toml_value(const Owner&, const Key<Owner>&); \
  template std::string_view string_value(const Owner&, std::string_view)
TWINRUN_PART(Scenario);
TWINRUN_PART(DataSpec);
TWINRUN_PART(ModelSpec);
TWINRUN_PART(LayerSpec);
TWINRUN_PART(LossSpec);
TWINRUN_PART(OptimizerConfig);
TWINRUN_PART(TrainSpec);
TWINRUN_PART(TpuSpec);
TWINRUN_PART(DiagnoseSpec);
#undef TWINRUN_PART

std::string key_table_markdown() {
  std::string out = section<Scenario>("Top level", "");
  out += section<DataSpec>("[data]", "data.");
  out += section<LayerSpec>("[[model.layers]]", "");
  out += section<LossSpec>("[loss]", "loss.");
  out += section<OptimizerConfig>("[optimizer]", "optimizer.");
  out += section<TrainSpec>("[train]", "train.");
  out += section<TpuSpec>("[tpu]", "tpu.");
  out += section<DiagnoseSpec>("[diagnose]", "diagnose.");
  return out;
}

}  // namespace twinrun
