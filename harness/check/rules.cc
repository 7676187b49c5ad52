// The table of rules. Messages are quoted from the TPU software stacks of their time, as found in
// their sources and in public logs.
#include "harness/check/rules.h"

#include <algorithm>
#include <stdexcept>

#include "program/base/names.h"

namespace twinrun {
namespace check {
namespace {

using enum Severity;

constexpr std::string_view kEstimator = "tensorflow/estimator v1.14 tpu_estimator.py";
constexpr std::string_view kX64 =
    "While rewriting computation to not contain X64 element types, XLA encountered an HLO for "
    "which this rewriting is not "
    "implemented: {}";

constexpr Rule kRules[] = {
    {"batch-missing", kError, "train.batch is missing", "`train_batch_size` cannot be `None`",
     kEstimator},
    {"steps-missing", kError, "train.steps is missing",
     "For TPU training, one of `steps` or `max_steps` must be set. Cannot be both `None`.",
     kEstimator},
    {"batch-not-divisible", kError, "the batch cannot be shared evenly by the cores",
     "train batch size {} must be divisible by number of replicas {}", kEstimator},
    {"remainder-kept", kError, "batches may be short: the first dimension is unknown",
     "The {} to the model returned by input_fn must have static shape. Tensor: {}", kEstimator},
    {"unknown-shape", kError, "the shape of a sample is known from the data alone",
     "The {} to the model returned by input_fn must have static shape. Tensor: {}", kEstimator},
    {"dynamic-shape", kError, "a size that is known only at run time",
     "Reshape's input dynamic dimension is decomposed into multiple output dynamic dimensions, but "
     "the constraint is ambiguous "
     "and XLA can't infer the output dimension {}",
     "keras-team/keras-hub#443"},
    {"data-runs-out", kError, "the samples end before the steps do",
     "Error recorded from infeed: End of sequence", "google-research/bert#486, tensorflow/tpu#132"},
    {"infeed-type", kWarning, "an input of a type that TensorFlow's infeed does not take",
     "TypeError: {} is not a supported TPU infeed type. Supported types are: {}",
     "tensorflow python/tpu/ops/tpu_ops.py"},
    {"unsupported-dtype", kError,
     "float16 and 8-bit floats: a core computes in float32 and bfloat16",
     "Error while lowering: {}: Unsupported XLA type", "pytorch/xla#2939"},
    {"wide-dtype", kError, "float64 and complex128", kX64,
     "pytorch/xla#2627, EnzymeAD/Enzyme-JAX#2126"},
    {"wide-integer", kWarning,
     "64-bit integers: pairs of 32-bit ones, and not every op has that form", kX64,
     "pytorch/xla#2627"},
    {"unsupported-op", kError, "an op without a form for TPUs",
     "Compilation failure: Detected unsupported operations when trying to compile graph {} on "
     "XLA_TPU_JIT: {}",
     "tensorflow/tpu#176"},
    {"not-constant", kError, "a size, an axis or a number of results that depends on data",
     "Input {} to node `{}` with op {} must be a compile-time constant",
     "thevasudevgupta/gsoc-wav2vec2#32, tensorflow/tensorflow#53051"},
    {"pinned-device", kError, "an op of the step that is pinned to a CPU or a GPU",
     "Cannot assign a device for operation {}", "tensorflow core/common_runtime/placer.cc"},
    {"no-all-reduce", kError, "several cores, and nothing sums their gradients",
     "CrossShardOptimizer must be used for model training on TPUs.", kEstimator},
    {"reduction-mismatch", kWarning, "the loss and the all-reduce are reduced in two ways", "",
     "tensorflow python/tpu/tpu_optimizer.py"},
    {"clip-before-all-reduce", kWarning, "each core clips a gradient of its own",
     "Gradient clipping in the optimizer (by setting clipnorm or clipvalue) is currently "
     "unsupported when using a distribution "
     "strategy.",
     "TensorSpeech/TensorFlowTTS#657"},
    {"small-batch-norm", kWarning, "batch norm over fewer than 32 samples", "",
     "Cloud TPU's troubleshooting guide"},
    {"batch-wise-per-core", kWarning, "a layer or loss across samples sees those of one core", "",
     "tensorflow/tpu: the model function gets the batch of one core"},
    {"weighted-mean-per-core", kWarning, "a weighted mean divides by the weights of one core", "",
     "TensorFlow's tutorial custom_training.ipynb"},
    {"stateful-random", kWarning, "random numbers whose seed a TPU ignores", "",
     "tensorflow compiler/tf2xla/kernels/random_ops.cc"},
    {"default-random", kWarning, "random numbers by the backend's own algorithm", "",
     "jax jax/random.py"},
    {"not-replayed", kWarning,
     "an instruction that twinrun cannot repeat: `diagnose` refuses the step", "",
     "docs/guides/import.md"},
    {"local-files", kWarning, "a remote TPU's host cannot read the files of your machine",
     "File system scheme '[local]' not implemented (file: '{}')",
     "tensorflow/models#3724, tensorflow/tensorflow#32651"},
    {"file-cache", kWarning, "a remote TPU's host cannot write a cache on your machine",
     "File system scheme '[local]' not implemented (file: '{}')",
     "tensorflow/tensorflow#49177: tf.data's ops run on that host"},
    {"padding", kNote, "sizes that fill tiles of 8 x 128 badly", "",
     "cloud.google.com/tpu/docs/performance-guide"},
    {"narrow-layers", kNote, "layers of fewer features than the matrix unit is wide", "",
     "cloud.google.com/tpu/docs/performance-guide"},
    {"file-sizes", kNote, "many files too small to be read fast", "",
     "tensorflow.org/tutorials/load_data/tfrecord"},
    {"unknown-batch", kNote, "an input whose batch is unknown: each size is compiled anew", "",
     "tensorflow.org/guide/tpu"},
    {"no-prefetch", kNote, "no batch is made while a step runs", "",
     "tensorflow.org/guide/data_performance"},
    {"short-loops", kNote, "the host takes over after fewer than 100 steps", "",
     "tensorflow/estimator v1.14 tpu_config.py"},
    {"several-passes", kNote, "matrix products in three or six passes", "",
     "jax jax/_src/lax/lax.py"},
};

}  // namespace
}  // namespace check

std::string_view to_string(Severity severity) {
  return severity == Severity::kError     ? "error"
         : severity == Severity::kWarning ? "warning"
                                          : "note";
}

std::vector<std::string> severity_names() {
  std::vector<std::string> names;
  for (const Severity s : {Severity::kError, Severity::kWarning, Severity::kNote})
    names.emplace_back(to_string(s));
  return names;
}

Result<Severity> find_severity(const std::string& word) {
  const std::vector<std::string> words = severity_names();
  const auto it = std::ranges::find(words, word);
  if (it != words.end()) return static_cast<Severity>(it - words.begin());
  return Error{fmt::format("'{}' is not a severity; accepted: {}", word, join(words, ", ")),
               "--fail-on", did_you_mean(word, words)};
}

std::span<const Rule> rules() { return check::kRules; }

const Rule& rule(std::string_view id) {
  const auto* found = std::ranges::find(check::kRules, id, &Rule::id);
  if (found == std::end(check::kRules)) throw std::logic_error("no rule " + std::string(id));
  return *found;
}

}  // namespace twinrun
