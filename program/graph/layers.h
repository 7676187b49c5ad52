// Layers as graph code: each takes the current value, appends ops under its own scope, declares its state with how to
// initialise it, and leaves its result as the current value.
//
//   Program forward = build_forward(Mode::kTraining, /*batch=*/256, {{28, 28, 1}}, /*seed=*/7, optimizer, [](Layers& net) {
//     net.conv2d("conv1", {.filters = 16, .kernel = 3});
//     net.relu("relu1");  net.flatten("flatten1");  net.dense("dense1", 10);
//     net.softmax_cross_entropy(10, Reducer::kMean);
//   });
//   Program core = shard(forward, {.cores = 8});   // the same layers, for one of eight replicas
//
// A layer that lets samples of a batch meet (batch norm, minibatch standard deviation, losses over pairs, weighted means)
// asks the sharding what it may see, and notes itself in Program::couplings.
#pragma once

#include <string>

#include "program/graph/program.h"

namespace twinrun {

enum class Mode : uint8_t { kTraining, kInference };

// One sample as the model gets it.
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

// Cells around an image. kSame: TensorFlow's, output ceil(in / stride), the odd cell on the high side. kCells: `cells` on every
// side, as PyTorch has it.
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
  bool flipped =
      false;  // the kernel is applied turned by 180 degrees: a convolution proper, not a cross-correlation
  bool transposed = false;  // ... with its height and width exchanged
  WeightOptions weights = {};
};

struct PoolOptions {
  int64_t window = 2, stride = 2;
  Padding padding = {};
  bool count_padding = false;  // a mean divides by the whole window at the border, too
  bool zeros = false;          // a maximum takes the padding for zeros
};

// Of a layer that divides by a standard deviation.
struct NormOptions {
  double epsilon = 1e-3;
  double momentum = 0.99;  // of batch norm's running statistics
  // The running variance. kTensorFlow: Bessel corrected for images, biased for [batch, features].
  enum class Running : uint8_t { kTensorFlow, kBiased, kUnbiased } running = Running::kTensorFlow;
  bool by_running = false;  // batch norm trains with its running statistics, which stay as they are
  bool unbiased = false;    // layer and group norm divide by the unbiased deviation
  bool beside_root =
      false;  // layer and group norm add epsilon to the deviation, not to the variance
  bool over_tokens =
      false;  // layer norm is over all of a sample, not over its last dimension alone
};

struct AttentionOptions {
  int64_t heads = 1;
  bool causal = false, masked = false;
  bool scaled = true;         // scores times 1 / sqrt(units / heads)
  bool by_all_units = false;  // ... times 1 / sqrt(units)
  bool interleaved = false;   // unit u belongs to head u % heads, else to head u / (units / heads)
};

struct EmbeddingOptions {
  double factor = 1;           // of what is looked up
  int64_t padding_index = -1;  // the token whose row never learns; -1: none
};

struct DropoutOptions {
  double rate = 0.5;
  bool scaled = true;      // what is kept is divided by 1 - rate
  bool keeps_low = false;  // keeps where uniform < 1 - rate, else where uniform >= rate
};

struct LossOptions {
  Reducer reduction = Reducer::kMean;  // over the samples (or tokens) of a core
  double smoothing = 0;                // label smoothing: (1 - s) one-hot + s / classes
  bool weighted = false;               // sum(w l) / sum(w) with the sample's weights
  Reducer over_classes =
      Reducer::kMean;  // of one sample's squared errors or sigmoid cross entropies
  bool of_probabilities =
      false;             // softmax cross entropy is given softmax(logits) as if they were logits
  double scale = 1;      // of the whole, in training
  int64_t ignored = -1;  // samples of this label do not count, nor in the mean's divisor
};

class Layers {
 public:
  Layers(Mode mode, int64_t batch, const SampleType& sample, uint64_t seed,
         const Sharding& sharding = {});

  // The current value, batch first. Every layer throws GraphError where it does not fit.
  ValueId value() const { return x_; }
  void set(ValueId value) { x_ = value; }
  const Dims& shape() const;

  // ---- linear maps. Kernels are [in, out], [h, w, in, out] (transposed: [h, w, out, in]; depthwise: [h, w, 1, in * m]).
  void dense(const std::string& name, int64_t units,
             const WeightOptions& weights = {});  // last dimension
  void conv2d(const std::string& name, const ConvolutionOptions& c);
  void depthwise_conv2d(const std::string& name, const ConvolutionOptions& c);
  // Output in * stride (same) or (in - 1) * stride + kernel (valid), as Keras has it.
  void conv2d_transpose(const std::string& name, const ConvolutionOptions& c);
  // i32 [batch, tokens] -> [batch, tokens, units]
  void embedding(const std::string& name, int64_t vocabulary, int64_t units,
                 const Initializer& init, const EmbeddingOptions& embedding = {});
  // Adds a learned row per position.
  void position_embedding(const std::string& name, const Initializer& init);
  // Multi-head self-attention over [batch, tokens, units], softmax(q k' / sqrt(units / heads)) v (Vaswani et al. 2017); a
  // masked pair's score is -1e9, as Keras has it. masked: keys of weight 0 are not looked at.
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
  // `at_zero`: the gradient where x is exactly 0: that of what is below (none), of what is above (full), or halfway between.
  void relu(const std::string& name, std::string_view at_zero = "none");
  void leaky_relu(const std::string& name, double slope, std::string_view at_zero = "none");
  void gelu(const std::string& name,
            bool tanh_form);  // x/2 (1 + erf(x/sqrt 2)), Hendrycks & Gimpel 2016, or its tanh form
  void silu(const std::string& name);
  void quick_gelu(const std::string& name);                  // x / (1 + exp(-1.702 x))
  void hard_sigmoid(const std::string& name, double slope);  // min(max(slope x + 1/2, 0), 1)
  void relu6(const std::string& name);                       // min(max(x, 0), 6)
  void unary(const std::string& name, OpKind kind);          // logistic, tanh

  // ---- normalisation
  // Training: statistics of the batch (biased variance); running statistics moving -= (moving - batch) * (1 - momentum), their
  // variance Bessel corrected for images as TF's fused kernel does (tf2xla/kernels/batch_norm_op.cc), not for [batch, features].
  // Inference: running statistics.
  void batch_norm(const std::string& name, const NormOptions& norm);
  void layer_norm(const std::string& name, const NormOptions& norm);  // last dimension
  void group_norm(const std::string& name, int64_t groups,
                  const NormOptions& norm);  // Wu & He 2018
  // Appends to images one channel: the mean over pixels and channels of the standard deviation over groups of
  // min(group, batch) samples (Karras et al. 2017; member g of group m is sample g * M + m).
  void minibatch_stddev(const std::string& name, int64_t group);
  // Training: keeps x / (1 - rate) where uniform >= rate, else +0. Inference: identity.
  void dropout(const std::string& name, const DropoutOptions& dropout);

  // ---- what a script does to its input
  void scale_and_offset(double scale, double offset);  // x scale + offset
  void reverse_channels();                             // of images: RGB <-> BGR
  void exchange_sides();                               // of images: height <-> width
  void shift_labels(int64_t offset);                   // labels below 0 become 0
  // A parameter that is there, of a layer that does not use it: it is read as zero, and its gradient is zero.
  void leave_out(const std::string& parameter) { left_out_.push_back(parameter); }

  // ---- sources besides the sample
  void noise(const std::string& name, int64_t units);  // [batch, units], uniform in [-1, 1)

  // ---- losses (losses.cc)
  void softmax_cross_entropy(int64_t classes, const LossOptions& loss);
  void sigmoid_cross_entropy(int64_t classes,
                             const LossOptions& loss);  // against one-hot, mean over classes
  void mean_squared_error(int64_t classes,
                          const LossOptions& loss);  // against one-hot, mean over classes
  // Over pairs of a batch, by label. Triplet (Hermans et al. 2017), Euclidean: max(0, margin + d(positive) - d(negative)), the
  // hardest (farthest of its class, nearest of another: "batch hard") or the mean over all ("batch all"). Contrastive: supervised, Khosla et al. 2020, eq. 2.
  void triplet(double margin, bool hardest, const LossOptions& loss);
  void contrastive(double temperature, const LossOptions& loss);
  // Of logits of real and generated samples: softplus(-real) + softplus(fake) for the parameters below `discriminator`,
  // softplus(-fake) for those below `generator` (Goodfellow et al. 2014, the non-saturating form).
  void gan(ValueId real, ValueId fake, const std::string& discriminator,
           const std::string& generator, Reducer reduction);

  void output(const std::string& name, ValueId value) { program_.outputs.push_back({name, value}); }
  // The current value is what the layer of that name gives.
  void end_layer(const std::string& name) { program_.layers.push_back({name, x_}); }
  ValueId features() const { return features_; }
  Program finish(const OptimizerSpec& optimizer);

 private:
  ValueId state(const std::string& name, Dims dims, StateRole role, Initializer init);
  ValueId declared(const std::string& name, Dims dims, StateRole role, Initializer init);
  // Fans are Keras's of `dims` unless the initializer has its own.
  ValueId parameter(const std::string& name, const Dims& dims, Initializer init);
  void add_bias(const std::string& name, int64_t units, bool wanted);
  // The larger one of x and `other`, of which one is above the other on either side of 0.
  void at_least(GraphBuilder b, ValueId other, std::string_view at_zero);
  void couple(const std::string& cause, const std::string& layer);  // in training, once a layer
  void update_statistic(const std::string& name, ValueId batch_value, double momentum);
  void expect_image(const std::string& name, const char* what) const;
  void expect_rank(const std::string& name, const char* what, size_t rank, const char* form) const;
  Window window_for(const ConvolutionOptions& c) const;

  // Across cores (collectives.cc).
  ValueId replica_id();
  ValueId mean_over_cores(ValueId statistic);  // batch norm's, over its group
  ValueId mean_over_all_cores(ValueId statistic);
  ValueId first_cores(ValueId held);
  // The mean and the biased variance of the core's own rows; of all cores'.
  struct Moments {
    ValueId mean, variance;
    int64_t count;  // of elements behind them
  };
  Moments own_moments(GraphBuilder b, const Dims& reduced, ValueId mean, int64_t count);
  Moments moments_of_all(GraphBuilder b, const Moments& own);
  ValueId mean_of_squares(GraphBuilder b, const Dims& reduced);           // of x_
  ValueId variance_of(GraphBuilder b, ValueId of_squares, ValueId mean);  // in one pass
  ValueId global_rows(GraphBuilder b, int64_t n);
  ValueId gather_cores(const std::string& name, ValueId x);  // [batch, ..] -> [cores * batch, ..]
  ValueId own_rows(const std::string& name, ValueId x);      // and back
  bool gathers() const { return sharding_.cores > 1 && sharding_.batchwise == Scope::kGlobal; }

  void scale_and_shift(const std::string& name);  // by gamma and beta, per channel
  // x normalised: (x - mean) / sqrt(variance + epsilon) over `dims`.
  ValueId normalised(GraphBuilder b, ValueId x, const Dims& dims, const NormOptions& norm);
  // Over the last dimension, shifted by the largest: exp(x - max) and their sums.
  struct Exponentials {
    ValueId shifted, each, total;
    Dims full, rows;  // x's dimensions; those of `total` among them
  };
  Exponentials exponentials(GraphBuilder b, ValueId x);
  ValueId softmax(GraphBuilder b, ValueId x);
  ValueId log_softmax(GraphBuilder b, ValueId x, std::string_view local);
  ValueId softplus(GraphBuilder b, ValueId x);
  ValueId one_hot(GraphBuilder b, int64_t classes);
  ValueId targets(GraphBuilder b, int64_t classes, double smoothing);
  ValueId reduce_loss(GraphBuilder b, ValueId per_item, const LossOptions& loss);
  ValueId over_items(GraphBuilder b, ValueId per_item, const LossOptions& loss);
  ValueId counted(GraphBuilder b,
                  int64_t ignored);  // [batch]: 1, or 0 for samples of an ignored label
  void set_loss(ValueId value);
  void check_logits(const char* loss, int64_t classes);
  struct Pairs {
    ValueId embeddings, labels, same;  // [n, d], [n], pred [n, n] without the diagonal
    ValueId self;                      // pred [n, n]: the diagonal
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

// n / max(1, n - 1): what turns a biased variance over n elements into an unbiased one.
inline double bessel_factor(int64_t n) {
  return static_cast<double>(n) / static_cast<double>(n > 1 ? n - 1 : 1);
}

}  // namespace twinrun
