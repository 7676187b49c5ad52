// Inputs, state, linear maps, shapes and activations. Normalisation, sequences, losses and exchange
// across cores are in normalization.cc, sequences.cc, losses.cc and across_cores.cc.
#include "program/graph/layers.h"

#include <algorithm>

#include "program/graph/initializer.h"

namespace twinrun {
namespace {

Window make_window(const Dims& image, int64_t size, int64_t stride, const Padding& padding,
                   int64_t dilation = 1) {
  Window w;
  for (int i = 0; i < 2; ++i) {
    w.size[i] = size;
    w.stride[i] = stride;
    w.dilation[i] = dilation;
    if (padding.kind == Padding::Kind::kCells) w.pad_low[i] = w.pad_high[i] = padding.cells;
    if (padding.kind != Padding::Kind::kSame) continue;
    const int64_t in = image[static_cast<size_t>(i) + 1];
    const int64_t out = (in + stride - 1) / stride;
    const int64_t total = std::max<int64_t>(0, (out - 1) * stride + dilation * (size - 1) + 1 - in);
    w.pad_low[i] = total / 2;
    w.pad_high[i] = total - total / 2;
  }
  return w;
}

// x in reverse order along one axis: its slices, concatenated backwards.
ValueId reversed(GraphBuilder b, ValueId x, int64_t axis) {
  const int64_t n = b.type(x).dims[static_cast<size_t>(axis)];
  const std::string local = "reverse" + std::to_string(axis) + "_";
  ValueId out = kNoValue;
  for (int64_t i = n; i-- > 0;) {
    const ValueId one = b.slice(x, axis, i, i + 1, local + "slice" + std::to_string(i));
    out = out == kNoValue ? one : b.concatenate(out, one, axis, local + std::to_string(i));
  }
  return out;
}

int64_t product(const Dims& dims, size_t from) {
  int64_t n = 1;
  for (size_t i = from; i < dims.size(); ++i) n *= dims[i];
  return n;
}

}  // namespace

Layers::Layers(Mode mode, int64_t batch, const SampleType& sample, uint64_t seed,
               const Sharding& sharding)
    : mode_(mode), seed_(seed), sharding_(sharding), root_(program_.graph) {
  program_.batch = batch;
  program_.sharding = sharding;
  const auto input = [&](const std::string& name, TensorType type, bool per_core) {
    if (per_core) type.dims.insert(type.dims.begin(), batch);
    const ValueId id = root_.parameter(name, std::move(type));
    program_.inputs.push_back({name, id, per_core});
    return id;
  };
  const bool tokens = sample.dtype == DType::kI32;
  features_ = x_ = input(tokens ? "tokens" : "images", {sample.dtype, sample.features}, true);
  labels_ = input("labels", {DType::kI32, sample.labels}, true);
  if (sample.weighted) weights_ = input("weights", {DType::kF32, sample.features}, true);
  sample_ids_ = input("sample_ids", {DType::kI32, {}}, true);
  step_ = input("step", {DType::kI32, {}}, false);
  input("learning_rate", {DType::kF32, {}}, false);
}

const Dims& Layers::shape() const { return program_.graph.type(x_).dims; }

ValueId Layers::state(const std::string& name, Dims dims, StateRole role, Initializer init) {
  const ValueId own = declared(name, std::move(dims), role, init);
  if (std::ranges::find(left_out_, name) == left_out_.end()) return own;
  GraphBuilder b = root_.scope(name);
  return b.broadcast_scalar(b.constant(0, DType::kF32, "unused"), own, "unused_zeros");
}

// A layer that is applied twice has only one state.
ValueId Layers::declared(const std::string& name, Dims dims, StateRole role, Initializer init) {
  if (const StateVar* known = program_.find_state(name)) {
    if (known->type.dims != dims) {
      throw GraphError(name + ": applied to other shapes it would be " + to_string(dims) +
                       ", and it is " + to_string(known->type.dims));
    }
    return known->id;
  }
  StateVar var;
  var.name = name;
  var.type = {DType::kF32, std::move(dims)};
  var.role = role;
  var.init = init;
  var.id = root_.parameter(name, var.type);
  program_.state.push_back(var);
  return var.id;
}

ValueId Layers::parameter(const std::string& name, const Dims& dims, Initializer init) {
  if (init.fan_in == 0) {
    const Fans fans = fans_of(dims);
    init.fan_in = fans.in;
    init.fan_out = fans.out;
  }
  if (const Status fits = check_initializer(init, dims); !fits)
    throw GraphError(name + ": " + fits.error().what);
  return state(name, dims, StateRole::kParameter, init);
}

void Layers::couple(const std::string& cause, const std::string& layer) {
  const Coupling coupling{cause, layer};
  const bool known = std::ranges::find(program_.couplings, coupling) != program_.couplings.end();
  if (mode_ == Mode::kTraining && !known) program_.couplings.push_back(coupling);
}

void Layers::expect_rank(const std::string& name, const char* what, size_t rank,
                         const char* form) const {
  if (shape().size() == rank) return;
  throw GraphError(name + ": " + what + " needs " + form + ", found " + to_string(shape()));
}
void Layers::expect_image(const std::string& name, const char* what) const {
  expect_rank(name, what, 4, "[batch, height, width, channels]");
}

// ---- linear maps

void Layers::add_bias(const std::string& name, int64_t units, bool wanted) {
  if (!wanted) return;
  GraphBuilder b = root_.scope(name);
  const ValueId c = state(name + "/bias", {units}, StateRole::kParameter, {});
  x_ = b.add(x_, b.broadcast_trailing(c, x_, "bias_broadcast"), "add_bias");
}

void Layers::dense(const std::string& name, int64_t units, const WeightOptions& weights) {
  const Dims full = shape();
  if (full.size() != 2 && full.size() != 3) {
    throw GraphError(name + ": dense needs [batch, features], found " + to_string(full) +
                     "; put a flatten layer before it");
  }
  const int64_t features = full.back();
  GraphBuilder b = root_.scope(name);
  if (full.size() == 3) x_ = b.reshape(x_, {full[0] * full[1], features}, "rows");
  const ValueId w = parameter(name + "/kernel", {features, units}, weights.kernel);
  x_ = b.dot(x_, w);
  add_bias(name, units, weights.bias);
  if (full.size() == 3) x_ = b.reshape(x_, {full[0], full[1], units}, "sequence");
}

Window Layers::window_for(const ConvolutionOptions& c) const {
  return make_window(shape(), c.kernel, c.stride, c.padding, c.dilation);
}

void Layers::conv2d(const std::string& name, const ConvolutionOptions& c) {
  expect_image(name, "conv2d");
  const Window window = window_for(c);
  GraphBuilder b = root_.scope(name);
  ValueId w =
      parameter(name + "/kernel", {c.kernel, c.kernel, shape()[3], c.filters}, c.weights.kernel);
  if (c.flipped) w = reversed(b, reversed(b, w, 0), 1);
  if (c.transposed) w = b.transpose(w, {1, 0, 2, 3}, "sides_exchanged");
  x_ = b.convolution(x_, w, window);
  add_bias(name, c.filters, c.weights.bias);
}

void Layers::depthwise_conv2d(const std::string& name, const ConvolutionOptions& c) {
  expect_image(name, "depthwise_conv2d");
  const int64_t channels = shape()[3], outputs = channels * c.filters;
  const Window window = window_for(c);
  GraphBuilder b = root_.scope(name);
  // The fans of Keras's kernel layout.
  const Fans fans = fans_of({c.kernel, c.kernel, channels, c.filters});
  Initializer init = c.weights.kernel;
  init.fan_in = fans.in;
  init.fan_out = fans.out;
  const ValueId w = parameter(name + "/kernel", {c.kernel, c.kernel, 1, outputs}, init);
  x_ = b.convolution(x_, w, window, "convolution", channels);
  add_bias(name, outputs, c.weights.bias);
}

void Layers::conv2d_transpose(const std::string& name, const ConvolutionOptions& c) {
  expect_image(name, "conv2d_transpose");
  const Dims in = shape();
  Dims out{in[0], 0, 0, c.filters};
  for (size_t i : {1u, 2u}) {
    out[i] = c.padding.kind == Padding::Kind::kSame
                 ? in[i] * c.stride
                 : (in[i] - 1) * c.stride + std::max(c.kernel, c.stride) - 2 * c.padding.cells;
  }
  const Window window = make_window(out, c.kernel, c.stride, c.padding);
  GraphBuilder b = root_.scope(name);
  const ValueId w =
      parameter(name + "/kernel", {c.kernel, c.kernel, c.filters, in[3]}, c.weights.kernel);
  x_ = b.convolution_input_grad(x_, w, out, window, "convolution_transpose");
  add_bias(name, c.filters, c.weights.bias);
}

// ---- shape

void Layers::pool(const std::string& name, const PoolOptions& pool, Reducer reducer) {
  expect_image(name, "pooling");
  Window window = make_window(shape(), pool.window, pool.stride, pool.padding);
  GraphBuilder b = root_.scope(name);
  if (pool.count_padding || (pool.zeros && reducer == Reducer::kMax)) {
    for (int i = 0; i < 2; ++i) {
      x_ = b.pad(x_, i + 1, window.pad_low[i], window.pad_high[i], i == 0 ? "pad_rows" : "pad");
      window.pad_low[i] = window.pad_high[i] = 0;
    }
  }
  x_ = b.reduce_window(x_, window, reducer);
}

void Layers::global_pool(const std::string& name, Reducer reducer) {
  if (shape().size() < 3)
    expect_image(name, reducer == Reducer::kMax ? "global_max_pool" : "global_avg_pool");
  const auto rank = static_cast<int64_t>(shape().size());
  const Dims inner = other_dims(rank, {0, rank - 1});
  x_ = root_.scope(name).reduce(x_, inner, reducer, "pool");
}

void Layers::flatten(const std::string& name, bool channels_first) {
  if (channels_first && shape().size() == 4)
    x_ = root_.scope(name).transpose(x_, {0, 3, 1, 2}, "channels_first");
  x_ = root_.scope(name).reshape(x_, {shape()[0], product(shape(), 1)});
}

void Layers::reshape(const std::string& name, const Dims& sample) {
  Dims dims = sample;
  dims.insert(dims.begin(), shape()[0]);
  x_ = root_.scope(name).reshape(x_, dims);
}

void Layers::add(const std::string& name, const std::vector<ValueId>& values) {
  GraphBuilder b = root_.scope(name);
  x_ = values.front();
  for (size_t i = 1; i < values.size(); ++i) x_ = b.add(x_, values[i]);
}

void Layers::concatenate(const std::string& name, const std::vector<ValueId>& values) {
  GraphBuilder b = root_.scope(name);
  x_ = values.front();
  const auto last = static_cast<int64_t>(shape().size()) - 1;
  for (size_t i = 1; i < values.size(); ++i) x_ = b.concatenate(x_, values[i], last);
}

// As tf.math.l2_normalize: x rsqrt(max(sum x^2, epsilon)).
void Layers::l2_normalize(const std::string& name, double epsilon) {
  GraphBuilder b = root_.scope(name);
  const auto last = static_cast<int64_t>(shape().size()) - 1;
  const Dims kept = other_dims(last);
  const ValueId squares = b.reduce(b.mul(x_, x_, "square"), {last}, Reducer::kSum, "squares");
  const ValueId inverse =
      b.unary(OpKind::kRsqrt, b.binary_scalar(OpKind::kMaximum, squares, epsilon, "at_least"));
  x_ = b.mul(x_, b.broadcast(inverse, shape(), kept, "inverse_broadcast"), "normalize");
}

// ---- activations

// The gradient of a maximum goes to the second operand where both are equal, so the order of
// operands chooses it.
void Layers::at_least(GraphBuilder b, ValueId other, std::string_view at_zero) {
  const ValueId to_other = b.binary(OpKind::kMaximum, x_, other);
  const ValueId to_x = at_zero == "none" ? to_other : b.binary(OpKind::kMaximum, other, x_, "own");
  x_ = at_zero == "half"
           ? b.binary_scalar(OpKind::kMultiply, b.add(to_other, to_x, "both"), 0.5, "half")
           : to_x;
}

void Layers::relu(const std::string& name, std::string_view at_zero) {
  GraphBuilder b = root_.scope(name);
  if (at_zero == "none") {
    x_ = b.binary_scalar(OpKind::kMaximum, x_, 0.0);
    return;
  }
  at_least(b, b.broadcast_scalar(b.constant(0, b.type(x_).dtype, "zero"), x_, "zeros"), at_zero);
}

void Layers::leaky_relu(const std::string& name, double slope, std::string_view at_zero) {
  GraphBuilder b = root_.scope(name);
  at_least(b, b.binary_scalar(OpKind::kMultiply, x_, slope, "leak"), at_zero);
}

void Layers::gelu(const std::string& name, bool tanh_form) {
  GraphBuilder b = root_.scope(name);
  ValueId inner = kNoValue;
  if (tanh_form) {
    const ValueId cube = b.mul(b.mul(x_, x_, "square"), x_, "cube");
    const ValueId sum =
        b.add(x_, b.binary_scalar(OpKind::kMultiply, cube, 0.044715, "bend"), "bent");
    inner = b.unary(OpKind::kTanh,
                    b.binary_scalar(OpKind::kMultiply, sum, 0.7978845608028654, "scaled"));
  } else {
    inner =
        b.unary(OpKind::kErf, b.binary_scalar(OpKind::kMultiply, x_, 0.7071067811865476, "scaled"));
  }
  const ValueId twice_share = b.binary_scalar(OpKind::kAdd, inner, 1.0, "one_plus");
  x_ = b.mul(b.binary_scalar(OpKind::kMultiply, x_, 0.5, "half"), twice_share, "gelu");
}

void Layers::silu(const std::string& name) {
  GraphBuilder b = root_.scope(name);
  x_ = b.mul(x_, b.unary(OpKind::kLogistic, x_), "silu");
}

void Layers::quick_gelu(const std::string& name) {
  GraphBuilder b = root_.scope(name);
  const ValueId inner = b.binary_scalar(OpKind::kMultiply, x_, 1.702, "scaled");
  x_ = b.mul(x_, b.unary(OpKind::kLogistic, inner), "quick_gelu");
}

void Layers::hard_sigmoid(const std::string& name, double slope) {
  GraphBuilder b = root_.scope(name);
  const ValueId line = b.binary_scalar(
      OpKind::kAdd, b.binary_scalar(OpKind::kMultiply, x_, slope, "slope"), 0.5, "line");
  x_ = b.binary_scalar(OpKind::kMinimum, b.binary_scalar(OpKind::kMaximum, line, 0.0, "at_least_0"),
                       1.0, "at_most_1");
}

void Layers::relu6(const std::string& name) {
  GraphBuilder b = root_.scope(name);
  x_ = b.binary_scalar(OpKind::kMinimum, b.binary_scalar(OpKind::kMaximum, x_, 0.0, "at_least_0"),
                       6.0, "at_most_6");
}

void Layers::unary(const std::string& name, OpKind kind) { x_ = root_.scope(name).unary(kind, x_); }

// ---- the input

void Layers::scale_and_offset(double scale, double offset) {
  GraphBuilder b = root_.scope("input");
  if (scale != 1) x_ = b.binary_scalar(OpKind::kMultiply, x_, scale, "scaled");
  if (offset != 0) x_ = b.binary_scalar(OpKind::kAdd, x_, offset, "offset");
}

void Layers::reverse_channels() {
  expect_image("data", "reversed channels");
  x_ = reversed(root_.scope("input"), x_, 3);
}

void Layers::exchange_sides() {
  expect_image("data", "height and width exchanged");
  x_ = root_.scope("input").transpose(x_, {0, 2, 1, 3}, "sides_exchanged");
}

void Layers::shift_labels(int64_t offset) {
  if (offset == 0) return;
  GraphBuilder b = root_.scope("input");
  const ValueId shifted =
      b.binary_scalar(OpKind::kAdd, labels_, static_cast<double>(offset), "shifted_labels");
  labels_ = b.binary_scalar(OpKind::kMaximum, shifted, 0, "labels_from_0");
}

// ---- random values and the finished program

void Layers::noise(const std::string& name, int64_t units) {
  GraphBuilder b = root_.scope(name);
  const ValueId u = b.rng_uniform(step_, sample_ids_, {program_.batch, units}, seed_, streams_++);
  x_ = b.binary_scalar(OpKind::kSubtract, b.binary_scalar(OpKind::kMultiply, u, 2.0, "double"), 1.0,
                       "noise");
}

void Layers::dropout(const std::string& name, const DropoutOptions& dropout) {
  if (mode_ == Mode::kInference) return;
  GraphBuilder b = root_.scope(name);
  const ValueId u = b.rng_uniform(step_, sample_ids_, shape(), seed_, streams_++);
  const auto splat = [&](double v, std::string_view local) {
    return b.broadcast_scalar(b.constant(v, DType::kF32, local), x_, std::string(local) + "s");
  };
  const ValueId keep =
      dropout.keeps_low ? b.compare(CompareKind::kLt, u, splat(1.0 - dropout.rate, "rate"), "keep")
                        : b.compare(CompareKind::kGe, u, splat(dropout.rate, "rate"), "keep");
  const ValueId scaled =
      dropout.scaled ? b.mul(x_, splat(1.0 / (1.0 - dropout.rate), "inverse_keep"), "scale") : x_;
  x_ = b.select(keep, scaled, splat(0.0, "zero"), "select");
}

Program Layers::finish(const OptimizerSpec& optimizer) {
  program_.optimizer = optimizer;
  std::vector<std::string>& stopped = program_.optimizer.stopped;
  stopped.insert(stopped.end(), left_out_.begin(), left_out_.end());
  return std::move(program_);
}

Program build_forward(Mode mode, int64_t batch, const SampleType& sample, uint64_t seed,
                      const OptimizerSpec& optimizer, const Definition& define) {
  const auto recipe =
      std::make_shared<const Recipe>([=](int64_t per_replica, const Sharding& sharding) {
        Layers net(mode, per_replica, sample, seed, sharding);
        define(net);
        return net.finish(optimizer);
      });
  Program p = (*recipe)(batch, {});
  p.recipe = recipe;
  return p;
}

}  // namespace twinrun
