// Rules that read a scenario's keys, and rules about layers and losses across samples.
#include <algorithm>
#include <filesystem>
#include <numeric>
#include <system_error>
#include <vector>

#include "device/machine.h"
#include "harness/check/rules.h"
#include "program/base/names.h"
#include "program/graph/shard_plan.h"

namespace twinrun::check {
namespace {

constexpr std::string_view kRemote = "gs://";
constexpr int64_t kShortLoop = 100;  // steps

class KeyRules {
 public:
  KeyRules(const ReadScenario& read, Findings& out)
      : read_(read), s_(read.scenario), source_(read.source), out_(out) {}

  void run() {
    for (const Refused& refused : read_.refused) report(refused);
    shapes();
    data_lasts();
    reductions();
    clipping();
    files();
    cache();
    padding();
    file_sizes();
    waits();
    passes();
  }

 private:
  template <typename... Arguments>
  void add(const Arguments&... arguments) {
    out_.push_back(finding(arguments...));
  }
  int64_t cores() const { return s_.tpu.cores; }
  int64_t per_core() const { return s_.train.batch / cores(); }
  bool refused(Refusal kind) const {
    return std::ranges::find(read_.refused, kind, &Refused::kind) != read_.refused.end();
  }

  // Turns what the scenario reader refuses into a finding of the matching rule.
  void report(const Refused& refused) {
    const Error& e = refused.error;
    switch (refused.kind) {
      case Refusal::kNoBatch:
        return add("batch-missing", e.where, e.what,
                   "shapes are fixed when the step is compiled, and they include the batch size",
                   fmt::format("--set train.batch={}", 128 * cores()));
      case Refusal::kNoSteps:
        return add("steps-missing", e.where, e.what,
                   "the loop over steps runs on the device: its length is part of the program",
                   "--set train.steps=1000");
      case Refusal::kUnevenBatch:
        return add("batch-not-divisible", e.where, e.what,
                   "every core runs the same program on as many samples",
                   fmt::format("--set train.batch={}", nearest_batch()), s_.train.batch, cores());
      case Refusal::kNoFullBatch:
        return add("data-runs-out", e.where, e.what,
                   "a TPU never pads a batch, so a short one is dropped",
                   s_.data.train >= cores()
                       ? fmt::format("--set train.batch={}", s_.data.train / cores() * cores())
                       : "raise data.train");
    }
  }
  int64_t nearest_batch() const {
    return std::max<int64_t>(1, (s_.train.batch + cores() / 2) / cores()) * cores();
  }

  static std::string tensor(const Dims& sample, const char* type) {
    std::string dims = "?";
    for (int64_t d : sample) dims += fmt::format(", {}", d);
    return fmt::format("Tensor(\"IteratorGetNext:0\", shape=({}), dtype={})",
                       sample.empty() ? "?," : dims, type);
  }

  void shapes() {
    const DataSpec& d = s_.data;
    const char* type = d.vocabulary > 0 ? "int32" : "float32";
    if (!d.drop_remainder) {
      add("remainder-kept", source_.where("data", "drop_remainder"), "drop_remainder is false",
          "a batch that may be short has an unknown first dimension, and a step is compiled for "
          "known shapes",
          "--set data.drop_remainder=true", "features", tensor(d.shape, type));
    }
    // Records are parsed during the run, so their shape is unknown; arrays carry theirs into the
    // program.
    if (d.source == "tfrecord" && d.shape.empty() && d.window == 0) {
      add("unknown-shape", source_.where("data", "shape"), "data.shape is missing",
          "the length of a record's array is not known in advance; a step is compiled for known "
          "shapes",
          "set data.shape, or data.window if the features are token ids", "features",
          fmt::format("Tensor(\"IteratorGetNext:0\", shape=({}, ?), dtype={})", s_.train.batch,
                      type));
    }
  }

  void data_lasts() {
    const DataSpec& d = s_.data;
    const int64_t batch = s_.train.batch;
    if (d.repeat || d.train == 0 || batch == 0 || refused(Refusal::kNoFullBatch)) return;
    const int64_t batches = d.train / batch;
    if (s_.train.steps <= batches) return;
    add("data-runs-out", source_.where("data", "repeat"),
        fmt::format("{} samples are {} batch{} of {}; train.steps is {}", d.train, batches,
                    batches == 1 ? "" : "es", batch, s_.train.steps),
        "the loop on the device needs data for every one of its steps; the end of the data is an "
        "error "
        "there, not the end of training",
        batches > 0 ? fmt::format("--set data.repeat=true, or --set train.steps={}", batches)
                    : "--set data.repeat=true");
  }

  void reductions() {
    const bool sum = s_.loss.reduction == LossReduction::kSum;
    if (cores() == 1 || s_.tpu.reduction == "none" || (s_.tpu.reduction == "sum") == sum) return;
    add("reduction-mismatch", source_.where("tpu", "reduction"),
        sum ? fmt::format("loss.reduction is \"sum\", tpu.reduction \"mean\": the gradient is 1/{} "
                          "of the whole batch's sum{}",
                          cores(),
                          per_core() > 0 ? fmt::format(", and {} times its mean", per_core()) : "")
            : fmt::format("loss.reduction is \"mean\", tpu.reduction \"sum\": the gradient is {} "
                          "times the whole batch's mean",
                          cores()),
        "CrossShardOptimizer always sums over the cores; \"mean\" scales each core's loss by "
        "1/cores before that, \"sum\" does not. "
        "The effective learning rate of SGD changes with it, and so do L2 terms and clipping",
        sum ? "--set tpu.reduction=sum" : "--set tpu.reduction=mean");
  }

  void clipping() {
    const OptimizerConfig& o = s_.optimizer;
    if (cores() == 1 || o.clip == "none" || s_.tpu.clipping != "before_all_reduce") return;
    const bool mean = s_.tpu.reduction == "mean";
    add("clip-before-all-reduce", source_.where("tpu", "clipping"),
        fmt::format("each of {} cores clips its own gradient ({} at {}) before the all-reduce",
                    cores(), o.clip, o.clip_at),
        fmt::format("a core's gradient is noisier than the batch's{}; the sum of clipped gradients "
                    "is not the clipped sum",
                    mean ? fmt::format(", and \"mean\" has scaled it by 1/{0}, so {1} acts as {2}",
                                       cores(), o.clip_at, o.clip_at * static_cast<double>(cores()))
                         : ""),
        "--set tpu.clipping=after_all_reduce");
  }

  // Sources that tf.data reads by its own ops, which run on the TPU's host. Arrays (npy, npz, hdf5)
  // are read by the user's Python process.
  void files() {
    static constexpr std::string_view kReadByOps[] = {"tfrecord", "text", "idx", "cifar10"};
    const DataSpec& d = s_.data;
    if (std::ranges::find(kReadByOps, d.source) == std::end(kReadByOps)) return;
    std::vector<std::string> local;
    for (const auto* files : {&d.files, &d.eval_files}) {
      for (const std::string& file : *files) {
        const bool own = file.starts_with('/') || file.starts_with(kRemote);
        const std::string path = own || d.dir.empty() ? file : d.dir + "/" + file;
        if (!path.starts_with(kRemote)) local.push_back(path);
      }
    }
    if (local.empty() && d.files.empty() && !d.dir.starts_with(kRemote)) local = {d.dir + "/"};
    if (local.empty()) return;
    add("local-files", source_.where("data", d.dir.empty() ? "files" : "dir"),
        fmt::format("{}{}", local[0],
                    local.size() > 1 ? fmt::format(" and {} more", local.size() - 1) : ""),
        "the ops that read files run on the TPU's host, which for a remote TPU (a TPU Node, Colab) "
        "is another machine; on a TPU "
        "VM this is no problem",
        "copy them to a bucket: --set data.dir=gs://BUCKET/PATH (for the TPU; twinrun itself reads "
        "local files)",
        local[0]);
  }

  void cache() {
    const std::string& path = s_.data.cache;
    if (path == "none" || path == "memory" || path.starts_with(kRemote)) return;
    add("file-cache", source_.where("data", "cache"), path,
        "the op that caches runs on the TPU's host, which for a remote TPU is another machine; on "
        "a TPU VM the file must hold all "
        "decoded samples, and each host has one of its own",
        "--set data.cache=memory, or a path in a bucket (gs://BUCKET/PATH)", path);
  }

  static std::string first_of(std::vector<std::string> all) {
    constexpr size_t kMax = 6;
    const size_t more = all.size() > kMax ? all.size() - kMax : 0;
    all.resize(all.size() - more);
    return join(all, ", ") + (more > 0 ? fmt::format(" and {} more", more) : "");
  }

  // TensorFlow's rule of thumb: files of 10 MB at least, better of 100 MB.
  void file_sizes() {
    constexpr size_t kMany = 10;
    constexpr uintmax_t kSmall = 10'000'000;
    std::vector<uintmax_t> sizes;
    for (const std::string& path : s_.data.files) {
      std::error_code missing;
      const uintmax_t size =
          std::filesystem::file_size(std::filesystem::path(s_.data.dir) / path, missing);
      if (!missing) sizes.push_back(size);
    }
    if (sizes.size() < kMany) return;
    std::ranges::nth_element(sizes, sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2));
    const uintmax_t median = sizes[sizes.size() / 2];
    if (median >= kSmall) return;
    add("file-sizes", source_.where("data", "files"),
        fmt::format("{} files, half of them below {:.1f} MB", sizes.size(),
                    static_cast<double>(median) / 1e6),
        "every file costs a request before its first byte comes: from a bucket, files of 10 MB at "
        "least, better of 100 MB, are read at the network's speed",
        "join them to files of about 100 MB, ten times as many as there are hosts");
  }

  // The rule of thumb of the TPU performance guide: samples per core in multiples of 8 with
  // features in multiples of 128, or samples in multiples of 128 with features in multiples of 8.
  void padding() {
    if (s_.train.batch == 0) return;
    const bool eights = per_core() % tpu::kSublanes == 0, lanes = per_core() % tpu::kLanes == 0;
    std::vector<std::string> bad, narrow;
    for (const size_t i : hidden_layers(s_.model)) {
      const LayerSpec& layer = s_.model.layers[i];
      const int64_t features = layer.features();
      if (features < tpu::kLanes) narrow.push_back(fmt::format("{} ({})", layer.name, features));
      const bool fits =
          (eights && features % tpu::kLanes == 0) || (lanes && features % tpu::kSublanes == 0);
      if (!fits) bad.push_back(fmt::format("{} ({})", layer.name, features));
    }
    if (!narrow.empty())
      add("narrow-layers", source_.where("model", "layers"),
          fmt::format("fewer than {} features: {}", tpu::kLanes, first_of(narrow)),
          "the matrix unit multiplies 128 x 128 at a time: a layer of 64 features takes as long as "
          "one of 128",
          "twinrun profile says what 128 features would cost");
    if (bad.empty()) return;
    const int64_t step = tpu::kSublanes * cores();
    add("padding", source_.where(eights ? "model" : "train", eights ? "layers" : "batch"),
        fmt::format("{} samples per core; features of {}", per_core(), first_of(bad)),
        "arrays are stored in tiles of 8 x 128: samples per core in multiples of 8 with features "
        "in "
        "multiples of 128, or samples in "
        "multiples of 128 with features in multiples of 8, waste nothing",
        !eights
            ? fmt::format("--set train.batch={}", (s_.train.batch + step - 1) / step * step)
            : "choose features in multiples of 128, or samples per core in multiples of 128 with "
              "features in multiples of 8");
  }

  // Settings by which the device waits for the host. `twinrun profile` gives the time that this
  // costs.
  void waits() {
    if (s_.data.prefetch == 0)
      add("no-prefetch", source_.where("data", "prefetch"), "prefetch is 0",
          "the device waits for each batch from its first byte on", "--set data.prefetch=2");
    const int64_t loop = s_.tpu.iterations_per_loop;
    if (loop > 0 && loop < std::min(kShortLoop, s_.train.steps))
      add("short-loops", source_.where("tpu", "iterations_per_loop"),
          fmt::format("the host takes over after every {} of {} steps", loop, s_.train.steps),
          "between two loops the device is idle during session calls, infeed and the "
          "transfer of the state to the host and back",
          fmt::format("--set tpu.iterations_per_loop={}", std::min(kShortLoop, s_.train.steps)));
  }

  void passes() {
    const int passes = s_.tpu.precision == "high" ? 3 : s_.tpu.precision == "highest" ? 6 : 1;
    if (passes == 1) return;
    add("several-passes", source_.where("tpu", "precision"),
        fmt::format("precision is \"{}\": {} passes of bfloat16", s_.tpu.precision, passes),
        "the matrix unit multiplies bfloat16; more of an operand's bits take more passes",
        "--set tpu.precision=default");
  }

  const ReadScenario& read_;
  const Scenario& s_;
  const Source& source_;
  Findings& out_;
};

std::vector<std::string> layers_of(const Program& p, std::string_view cause) {
  std::vector<std::string> names;
  for (const Coupling& c : p.couplings) {
    if (c.cause == cause) names.push_back(c.layer);
  }
  return names;
}

// The first few by name; a finding's `ops` has them all.
std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kMax = 6;
  if (names.size() <= kMax) return join(names, ", ");
  return fmt::format("{} and {} more layers", join({names.begin(), names.begin() + kMax}, ", "),
                     names.size() - kMax);
}

}  // namespace

void check_keys(const ReadScenario& read, Findings& out) { KeyRules(read, out).run(); }

void check_couplings(const ReadScenario& read, const Program& forward, Findings& out) {
  const Scenario& s = read.scenario;
  const int64_t cores = s.tpu.cores, per_core = forward.batch / cores;
  if (cores == 1) return;
  const auto add = [&](std::string_view id, const char* section, const char* key,
                       const std::vector<std::string>& layers, const std::string& what,
                       const char* why, std::string fix) {
    if (layers.empty()) return;
    out.push_back(finding(id, read.source.where(section, key), listed(layers) + ": " + what, why,
                          std::move(fix)));
    out.back().ops = layers;
  };
  const bool synced = s.tpu.batchnorm == "synced";
  const int64_t together = !synced ? 1 : s.tpu.batchnorm_group > 0 ? s.tpu.batchnorm_group : cores;
  if (per_core * together < tpu::kSmallBatchPerCore) {
    const int64_t enough = (tpu::kSmallBatchPerCore + together - 1) / together * cores;
    const bool sync_helps = !synced && per_core * cores >= tpu::kSmallBatchPerCore;
    add("small-batch-norm", "train", "batch", layers_of(forward, "batch_norm"),
        fmt::format("statistics of {} samples ({} a core{})", per_core * together, per_core,
                    together > 1 ? fmt::format(", {} cores together", together) : ""),
        "a core normalises by the mean and variance of what it sees itself; of few samples they "
        "are "
        "noise, and the moving averages that evaluation uses are those of core 0",
        fmt::format("--set train.batch={}{}", enough,
                    sync_helps ? ", or --set tpu.batchnorm=synced" : ""));
  }
  if (s.tpu.batchwise == "per_core")
    add("batch-wise-per-core", "tpu", "batchwise", layers_of(forward, "batch_wise"),
        fmt::format("{} samples instead of {}", per_core, forward.batch),
        "pairs, triplets and statistics across samples are made of one core's share of the batch: "
        "fewer, and other ones",
        "--set tpu.batchwise=gathered");
  if (s.tpu.token_mean == "per_core")
    add("weighted-mean-per-core", "tpu", "token_mean", layers_of(forward, "token_mean"),
        fmt::format("divides by the sum of weights of {} samples", per_core),
        "cores with few tokens count as much as cores with many", "--set tpu.token_mean=global");
}

}  // namespace twinrun::check
