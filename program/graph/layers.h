// Layers as graph code: each takes the current value, appends ops under its own scope, declares its
// state and how to initialise it, and leaves its result as the current value. scenarios/model.h
// calls them; the result is a Program.
//
//   Program forward = build_forward(
//       Mode::kTraining, /*batch=*/256, {{28, 28, 1}}, /*seed=*/7, optimizer, [](Layers& net) {
//         net.conv2d("conv1", {.filters = 16, .kernel = 3});
//         net.relu("relu1");  net.flatten("flatten1");  net.dense("dense1", 10);
//         net.softmax_cross_entropy(10, {.reduction = Reducer::kMean});
//       });
//   Program core = shard(forward, {.cores = 8});   // the same layers, for one of eight replicas
//
// A layer in which samples of a batch interact (batch norm, minibatch standard deviation, losses
// over pairs, weighted means) reads from the sharding whose samples it covers, and records itself
// in Program::couplings.
#pragma once

#include <string>

#include "program/graph/program.h"

namespace twinrun {

enum class Mode : uint8_t { kTraining, kInference };

// The shape and type of one sample of the model's input.
struct SampleType {
  Dims features;              // f32 [h, w, c] or [features]; i32 [tokens]
  DType dtype = DType::kF32;  // i32: token ids
  Dims labels = {};           // i32: one class, or one per token
  bool weighted = false;      // f32 weights of the tokens, 0 at padding
  int64_t vocabulary = 0;     // token ids are below it
  int64_t classes = 0;        // labels are below it
};

struct WeightOptions {
  Initializer kernel = {Initializer::Kind::kGlorotUniform};
  bool bias = true;
};

// Cells around an image. kSame: as in TensorFlow, output ceil(in / stride), with the odd cell on
// the high side. kCells: `cells` on every side, as in PyTorch.
struct Padding {
  enum class Kind : uint8_t { kSame, kValid, kCells } kind = Kind::kSame;
  int64_t cells = 0;
};
inline Padding same_or_valid(bool same) {
  return {same ? Padding::Kind::kSame : Padding::Kind::kValid};
}

struct ConvolutionOptions {
  int64_t filters = 0;  // depthwise: outputs per channel
  int64_t kernel = 1, stride = 1, dilation = 1;
  Padding padding = {};
  // The kernel is applied rotated by 180 degrees: a true convolution, not a cross-correlation.
  bool flipped = false;
  bool transposed = false;  // the kernel is applied with its height and width exchanged
  WeightOptions weights = {};
};

struct PoolOptions {
  int64_t window = 2, stride = 2;
  Padding padding = {};
  bool count_padding = false;  // a mean divides by the size of the whole window at the border, too
  bool zeros = false;          // a maximum treats the padding as zeros
};

// Options of a layer that divides by a standard deviation.
struct NormOptions {
  double epsilon = 1e-3;
  double momentum = 0.99;  // of batch norm's running statistics
  // The running variance. kTensorFlow: Bessel-corrected for images, biased for [batch, features].
  enum class Running : uint8_t { kTensorFlow, kBiased, kUnbiased } running = Running::kTensorFlow;
  // Batch norm trains with its running statistics and does not update them.
  bool by_running = false;
  bool unbiased = false;  // layer and group norm divide by the unbiased deviation
  // Layer and group norm add epsilon to the deviation, not to the variance.
  bool beside_root = false;
  // Layer norm is over all dimensions of a sample, not over the last one alone.
  bool over_tokens = false;
};

struct AttentionOptions {
  int64_t heads = 1;
  bool causal = false, masked = false;
  bool scaled = true;         // scores times 1 / sqrt(units / heads)
  bool by_all_units = false;  // if scaled, scores times 1 / sqrt(units) instead
  bool interleaved = false;   // unit u belongs to head u % heads, else to head u / (units / heads)
};

struct EmbeddingOptions {
  double factor = 1;           // by which the rows that are looked up are multiplied
  int64_t padding_index = -1;  // the token whose row gets no gradient; -1: none
};

struct DropoutOptions {
  double rate = 0.5;
  bool scaled = true;      // elements that are kept are divided by 1 - rate
  bool keeps_low = false;  // keeps where uniform < 1 - rate, else where uniform >= rate
};

struct LossOptions {
  Reducer reduction = Reducer::kMean;  // over the samples (or tokens) of a core
  double smoothing = 0;                // label smoothing: (1 - s) one-hot + s / classes
  bool weighted = false;               // sum(w l) / sum(w) with the sample's weights
  // Over one sample's squared errors or sigmoid cross entropies.
  Reducer over_classes = Reducer::kMean;
  // Softmax cross entropy is computed from softmax(logits) as if they were logits.
  bool of_probabilities = false;
  double scale = 1;      // factor of the whole loss, in training
  int64_t ignored = -1;  // samples of this label count neither in the sum nor in the mean's divisor
};

class Layers {
 public:
  Layers(Mode mode, int64_t batch, const SampleType& sample, uint64_t seed,
         const Sharding& sharding = {});

  // The current value, with the batch as its first dimension. A layer throws GraphError where the
  // value does not fit.
  ValueId value() const { return x_; }
  void set(ValueId value) { x_ = value; }
  const Dims& shape() const;

  // ---- linear maps
  // Kernels are [in, out], [h, w, in, out] (transposed: [h, w, out, in]; depthwise: [h, w, 1, in *
  // m]). Over the last dimension.
  void dense(const std::string& name, int64_t units, const WeightOptions& weights = {});
  void conv2d(const std::string& name, const ConvolutionOptions& c);
  void depthwise_conv2d(const std::string& name, const ConvolutionOptions& c);
  // Output size in * stride (same) or (in - 1) * stride + max(kernel, stride) (valid), as in Keras.
  void conv2d_transpose(const std::string& name, const ConvolutionOptions& c);
  // i32 [batch, tokens] -> [batch, tokens, units]
  void embedding(const std::string& name, int64_t vocabulary, int64_t units,
                 const Initializer& init, const EmbeddingOptions& embedding = {});
  // Adds to each token a trained vector that depends on its position only: one row per position of
  // a [tokens, units] table.
  void position_embedding(const std::string& name, const Initializer& init);
  // Multi-head self-attention over [batch, tokens, units], softmax(q k' / sqrt(units / heads)) v
  // (Vaswani et al. 2017). The score of a masked pair is -1e9, as in Keras. `masked` masks keys of
  // weight 0.
  void attention(const std::string& name, const AttentionOptions& attention,
                 const WeightOptions& weights);

  // ---- shape
  void pool(const std::string& name, const PoolOptions& pool, Reducer reducer);
  void global_pool(const std::string& name, Reducer reducer);  // over all but batch and channels
  void masked_mean(const std::string& name);  // over tokens, by the sample's weights
  void flatten(const std::string& name, bool channels_first = false);
  void reshape(const std::string& name, const Dims& sample);
  void add(const std::string& name, const std::vector<ValueId>& values);
  void concatenate(const std::string& name, const std::vector<ValueId>& values);  // last dimension
  void l2_normalize(const std::string& name, double epsilon);                     // last dimension

  // ---- activations
  // `at_zero` is the gradient where x is exactly 0: that of negative x ("none"), that of positive x
  // ("full"), or the mean of both ("half").
  void relu(const std::string& name, std::string_view at_zero = "none");
  void leaky_relu(const std::string& name, double slope, std::string_view at_zero = "none");
  // x/2 (1 + erf(x/sqrt 2)), Hendrycks & Gimpel 2016, or its tanh form.
  void gelu(const std::string& name, bool tanh_form);
  void silu(const std::string& name);
  void quick_gelu(const std::string& name);                  // x / (1 + exp(-1.702 x))
  void hard_sigmoid(const std::string& name, double slope);  // min(max(slope x + 1/2, 0), 1)
  void relu6(const std::string& name);                       // min(max(x, 0), 6)
  void unary(const std::string& name, OpKind kind);          // logistic, tanh

  // ---- normalisation
  // Training normalises by the statistics of the batch (biased variance) and updates the running
  // statistics: moving -= (moving - batch) * (1 - momentum). Their variance is Bessel-corrected for
  // images, as in TF's fused kernel (tf2xla/kernels/batch_norm_op.cc), but not for [batch,
  // features]. Inference normalises by the running statistics.
  void batch_norm(const std::string& name, const NormOptions& norm);
  void layer_norm(const std::string& name, const NormOptions& norm);  // last dimension
  // Wu & He 2018.
  void group_norm(const std::string& name, int64_t groups, const NormOptions& norm);
  // Appends one channel to images: the mean over pixels and channels of the standard deviation over
  // groups of min(group, batch) samples (Karras et al. 2017; with M groups, member g of group m is
  // sample g * M + m).
  void minibatch_stddev(const std::string& name, int64_t group);
  // Training: x / (1 - rate) where uniform >= rate, else +0. Inference: identity.
  void dropout(const std::string& name, const DropoutOptions& dropout);

  // ---- changes of the input
  void scale_and_offset(double scale, double offset);  // x scale + offset
  void reverse_channels();                             // of images: RGB <-> BGR
  void exchange_sides();                               // of images: height <-> width
  void shift_labels(int64_t offset);                   // labels below 0 become 0
  // The parameter exists, but its layer does not use it: it is read as zero, and its gradient is
  // zero.
  void leave_out(const std::string& parameter) { left_out_.push_back(parameter); }

  // ---- sources besides the sample
  void noise(const std::string& name, int64_t units);  // [batch, units], uniform in [-1, 1)

  // ---- losses (losses.cc)
  void softmax_cross_entropy(int64_t classes, const LossOptions& loss);
  // Against one-hot labels, mean over classes (LossOptions::over_classes).
  void sigmoid_cross_entropy(int64_t classes, const LossOptions& loss);
  void mean_squared_error(int64_t classes, const LossOptions& loss);
  // Over pairs of a batch, by label. Triplet (Hermans et al. 2017), with Euclidean distances:
  // max(0, margin + d(positive) - d(negative)) for the hardest pair of each anchor (farthest of its
  // class, nearest of another: "batch hard") or averaged over all pairs ("batch all"). Contrastive:
  // supervised, Khosla et al. 2020, eq. 2.
  void triplet(double margin, bool hardest, const LossOptions& loss);
  void contrastive(double temperature, const LossOptions& loss);
  // From the logits of real and generated samples: softplus(-real) + softplus(fake) is the
  // objective of the parameters below `discriminator`, softplus(-fake) that of those below
  // `generator` (Goodfellow et al. 2014, the non-saturating form).
  void gan(ValueId real, ValueId fake, const std::string& discriminator,
           const std::string& generator, Reducer reduction);

  void output(const std::string& name, ValueId value) { program_.outputs.push_back({name, value}); }
  // Records the current value as the output of the layer of that name.
  void end_layer(const std::string& name) { program_.layers.push_back({name, x_}); }
  ValueId features() const { return features_; }
  Program finish(const OptimizerSpec& optimizer);

 private:
  ValueId state(const std::string& name, Dims dims, StateRole role, Initializer init);
  ValueId declared(const std::string& name, Dims dims, StateRole role, Initializer init);
  // The fans are those of Keras for `dims`, unless the initializer has its own.
  ValueId parameter(const std::string& name, const Dims& dims, Initializer init);
  void add_bias(const std::string& name, int64_t units, bool wanted);
  // The larger of x and `other`. The two are equal at x = 0; x is larger on one side of 0, `other`
  // on the other side.
  void at_least(GraphBuilder b, ValueId other, std::string_view at_zero);
  void couple(const std::string& cause, const std::string& layer);  // in training, once per layer
  void update_statistic(const std::string& name, ValueId batch_value, double momentum);
  void expect_image(const std::string& name, const char* what) const;
  void expect_rank(const std::string& name, const char* what, size_t rank, const char* form) const;
  Window window_for(const ConvolutionOptions& c) const;

  // Across cores (across_cores.cc).
  ValueId replica_id();
  ValueId mean_over_cores(ValueId statistic);  // of batch norm, over its group
  ValueId mean_over_all_cores(ValueId statistic);
  ValueId first_cores(ValueId held);
  // The mean and the biased variance of the core's own rows, or of the rows of all cores.
  struct Moments {
    ValueId mean, variance;
    int64_t count;  // number of elements that they are computed from
  };
  Moments own_moments(GraphBuilder b, const Dims& reduced, ValueId mean, int64_t count);
  Moments moments_of_all(GraphBuilder b, const Moments& own);
  ValueId mean_of_squares(GraphBuilder b, const Dims& reduced);           // of x_
  ValueId variance_of(GraphBuilder b, ValueId of_squares, ValueId mean);  // in one pass
  ValueId global_rows(GraphBuilder b, int64_t n);
  ValueId gather_cores(const std::string& name, ValueId x);  // [batch, ..] -> [cores * batch, ..]
  ValueId own_rows(const std::string& name, ValueId x);      // [cores * batch, ..] -> [batch, ..]
  bool gathers() const { return sharding_.cores > 1 && sharding_.batchwise == Scope::kGlobal; }

  void scale_and_shift(const std::string& name);  // by gamma and beta, per channel
  // x normalised: (x - mean) / sqrt(variance + epsilon) over `dims`.
  ValueId normalised(GraphBuilder b, ValueId x, const Dims& dims, const NormOptions& norm);
  // Over the last dimension, with the largest element subtracted: x - max, exp(x - max), and their
  // sum.
  struct Exponentials {
    ValueId shifted, each, total;
    Dims full, rows;  // sizes of x; the dimensions of x that `total` keeps
  };
  Exponentials exponentials(GraphBuilder b, ValueId x);
  ValueId softmax(GraphBuilder b, ValueId x);
  ValueId log_softmax(GraphBuilder b, ValueId x, std::string_view local);
  ValueId softplus(GraphBuilder b, ValueId x);
  ValueId one_hot(GraphBuilder b, int64_t classes);
  ValueId targets(GraphBuilder b, int64_t classes, double smoothing);
  ValueId reduce_loss(GraphBuilder b, ValueId per_item, const LossOptions& loss);
  ValueId over_items(GraphBuilder b, ValueId per_item, const LossOptions& loss);
  ValueId divisor(GraphBuilder b, ValueId weight, int64_t rows);
  // Of the shape of the labels: 1, or 0 where the label is the ignored one.
  ValueId counted(GraphBuilder b, int64_t ignored);
  void set_loss(ValueId value);
  void check_logits(const char* loss, int64_t classes);
  struct Pairs {
    // [n, d]; [n]; pred [n, n]: labels are equal, without the diagonal.
    ValueId embeddings, labels, same;
    ValueId self;  // pred [n, n]: the diagonal
    int64_t n;
  };
  Pairs pairs(GraphBuilder b, const char* loss);

  Mode mode_;
  std::vector<std::string> left_out_;
  uint64_t seed_;
  Sharding sharding_;
  uint32_t streams_ = 0;
  Program program_;
  GraphBuilder root_;
  ValueId x_, features_, labels_, weights_ = kNoValue, sample_ids_, step_, replica_ = kNoValue;
};

// A forward pass that shard() and rebatch() can build again.
using Definition = std::function<void(Layers& net)>;
Program build_forward(Mode mode, int64_t batch, const SampleType& sample, uint64_t seed,
                      const OptimizerSpec& optimizer, const Definition& define);

// n / max(1, n - 1): the factor that turns a biased variance over n elements into an unbiased one.
inline double bessel_factor(int64_t n) {
  return static_cast<double>(n) / static_cast<double>(n > 1 ? n - 1 : 1);
}

}  // namespace twinrun
