#include "program/graph/layers.h"

namespace twinrun {
namespace {

// TF's SAME: output ceil(in / stride), the odd padding cell goes to the high side.
Window make_window(const Dims& image, int64_t size, int64_t stride, bool same) {
  Window w;
  for (int i = 0; i < 2; ++i) {
    w.size[i] = size;
    w.stride[i] = stride;
    if (!same) continue;
    const int64_t in = image[static_cast<size_t>(i) + 1];
    const int64_t out = (in + stride - 1) / stride;
    const int64_t total = std::max<int64_t>(0, (out - 1) * stride + size - in);
    w.pad_low[i] = total / 2;
    w.pad_high[i] = total - total / 2;
  }
  return w;
}

}  // namespace

Layers::Layers(Mode mode, int64_t batch, Dims sample, uint64_t seed)
    : mode_(mode), seed_(seed), root_(program_.graph) {
  program_.batch = batch;
  Dims image{batch};
  image.insert(image.end(), sample.begin(), sample.end());
  x_ = root_.parameter("images", {DType::kF32, image}, true);
  labels_ = root_.parameter("labels", {DType::kI32, {batch}}, true);
  sample_ids_ = root_.parameter("sample_ids", {DType::kI32, {batch}}, true);
  step_ = root_.parameter("step", {DType::kI32, {}}, false);
  const ValueId lr = root_.parameter("learning_rate", {DType::kF32, {}}, false);
  program_.inputs = {{"images", x_, true},
                     {"labels", labels_, true},
                     {"sample_ids", sample_ids_, true},
                     {"step", step_, false},
                     {"learning_rate", lr, false}};
}

const Dims& Layers::shape() const { return program_.graph.type(x_).dims; }

ValueId Layers::state(const std::string& name, Dims dims, StateRole role, Initializer init) {
  StateVar var;
  var.name = name;
  var.type = {DType::kF32, std::move(dims)};
  var.role = role;
  var.init = init;
  var.id = root_.parameter(name, var.type, false);
  program_.state.push_back(var);
  return var.id;
}

void Layers::dense(const std::string& name, int64_t units, bool bias) {
  if (shape().size() != 2) {
    throw GraphError(name + ": dense needs [batch, features], found " + to_string(shape()) +
                     "; put a flatten layer before it");
  }
  const int64_t features = shape()[1];
  GraphBuilder b = root_.scope(name);
  const ValueId w = state(name + "/kernel", {features, units}, StateRole::kParameter,
                          {Initializer::Kind::kGlorotUniform, 0, features, units});
  x_ = b.dot(x_, w);
  if (bias) {
    const ValueId c = state(name + "/bias", {units}, StateRole::kParameter, {});
    x_ = b.add(x_, b.broadcast_trailing(c, x_, "bias_broadcast"), "add_bias");
  }
}

void Layers::conv2d(const std::string& name, int64_t filters, int64_t kernel, int64_t stride,
                    bool same, bool bias) {
  if (shape().size() != 4) {
    throw GraphError(name + ": conv2d needs [batch, height, width, channels], found " +
                     to_string(shape()));
  }
  const int64_t channels = shape()[3];
  const Window window = make_window(shape(), kernel, stride, same);
  GraphBuilder b = root_.scope(name);
  const ValueId w =
      state(name + "/kernel", {kernel, kernel, channels, filters}, StateRole::kParameter,
            {Initializer::Kind::kGlorotUniform, 0, kernel * kernel * channels,
             kernel * kernel * filters});
  x_ = b.convolution(x_, w, window);
  if (bias) {
    const ValueId c = state(name + "/bias", {filters}, StateRole::kParameter, {});
    x_ = b.add(x_, b.broadcast_trailing(c, x_, "bias_broadcast"), "add_bias");
  }
}

void Layers::pool(const std::string& name, int64_t window, int64_t stride, bool same,
                  Reducer reducer) {
  if (shape().size() != 4) {
    throw GraphError(name + ": pooling needs [batch, height, width, channels], found " +
                     to_string(shape()));
  }
  x_ = root_.scope(name).reduce_window(x_, make_window(shape(), window, stride, same), reducer);
}

void Layers::flatten(const std::string& name) {
  int64_t features = 1;
  for (size_t i = 1; i < shape().size(); ++i) features *= shape()[i];
  x_ = root_.scope(name).reshape(x_, {shape()[0], features});
}

void Layers::relu(const std::string& name) {
  x_ = root_.scope(name).binary_scalar(OpKind::kMaximum, x_, 0.0);
}

void Layers::update_statistic(const std::string& name, ValueId batch_value, double momentum) {
  StateVar& var = program_.state[static_cast<size_t>(program_.state_index(name))];
  GraphBuilder b = GraphBuilder(program_.graph, "", Phase::kUpdate).derived(name, Phase::kUpdate);
  const ValueId gap = b.sub(var.id, batch_value, "gap");
  var.next =
      b.sub(var.id, b.binary_scalar(OpKind::kMultiply, gap, 1.0 - momentum, "part"), "update");
}

void Layers::batch_norm(const std::string& name, double momentum, double epsilon) {
  const Dims dims = shape();
  const int64_t channels = dims.back();
  GraphBuilder b = root_.scope(name);
  const ValueId gamma =
      state(name + "/gamma", {channels}, StateRole::kParameter, {Initializer::Kind::kConstant, 1});
  const ValueId beta = state(name + "/beta", {channels}, StateRole::kParameter, {});
  ValueId mean = state(name + "/moving_mean", {channels}, StateRole::kStatistic, {});
  ValueId variance = state(name + "/moving_variance", {channels}, StateRole::kStatistic,
                           {Initializer::Kind::kConstant, 1});
  ValueId centred = kNoValue;
  const auto centre = [&] {
    return b.sub(x_, b.broadcast_trailing(mean, x_, "mean_broadcast"), "centre");
  };
  if (mode_ == Mode::kTraining) {
    Dims reduced;
    for (int64_t i = 0; i + 1 < static_cast<int64_t>(dims.size()); ++i) reduced.push_back(i);
    mean = b.reduce(x_, reduced, Reducer::kMean, "mean", /*batch_statistic=*/true);
    centred = centre();
    variance =
        b.reduce(b.mul(centred, centred, "square"), reduced, Reducer::kMean, "variance", true);
    update_statistic(name + "/moving_mean", mean, momentum);
    ValueId unbiased = variance;
    if (dims.size() == 4) {
      GraphBuilder u = GraphBuilder(program_.graph, name, Phase::kUpdate);
      unbiased = u.mul(
          variance, u.broadcast_scalar(u.bessel(dims[0] * dims[1] * dims[2]), variance, "bessels"),
          "unbiased_variance");
    }
    update_statistic(name + "/moving_variance", unbiased, momentum);
  } else {
    centred = centre();
  }
  const ValueId inverse =
      b.unary(OpKind::kRsqrt, b.binary_scalar(OpKind::kAdd, variance, epsilon, "add_epsilon"));
  const ValueId scale = b.mul(gamma, inverse, "scale");
  const ValueId scaled =
      b.mul(centred, b.broadcast_trailing(scale, x_, "scale_broadcast"), "normalize");
  x_ = b.add(scaled, b.broadcast_trailing(beta, x_, "beta_broadcast"), "shift");
}

void Layers::dropout(const std::string& name, double rate) {
  if (mode_ == Mode::kInference) return;
  GraphBuilder b = root_.scope(name);
  const ValueId u = b.rng_uniform(step_, sample_ids_, shape(), seed_, streams_++);
  const auto splat = [&](double v, std::string_view local) {
    return b.broadcast_scalar(b.constant(v, DType::kF32, local), x_, std::string(local) + "s");
  };
  const ValueId keep = b.compare(CompareKind::kGe, u, splat(rate, "rate"), "keep");
  const ValueId scaled = b.mul(x_, splat(1.0 / (1.0 - rate), "inverse_keep"), "scale");
  x_ = b.select(keep, scaled, splat(0.0, "zero"), "select");
}

ValueId Layers::one_hot(GraphBuilder b, int64_t classes) {
  const int64_t batch = program_.batch;
  const ValueId index = b.broadcast(b.iota({classes}, 0, DType::kI32, "classes"), {batch, classes},
                                    {1}, true, "class_index");
  const ValueId labels = b.broadcast(labels_, {batch, classes}, {0}, true, "label_broadcast");
  return b.convert(b.compare(CompareKind::kEq, index, labels, "is_label"), DType::kF32, "one_hot");
}

void Layers::check_logits(const char* loss, int64_t classes) {
  if (shape().size() != 2 || shape()[1] != classes) {
    throw GraphError(std::string(loss) + " over " + std::to_string(classes) +
                     " classes needs a last layer of shape [batch, " + std::to_string(classes) +
                     "], found " + to_string(shape()));
  }
  program_.outputs.push_back({"logits", x_});
}

void Layers::softmax_cross_entropy(int64_t classes, Reducer reduction) {
  check_logits("softmax_cross_entropy", classes);
  GraphBuilder b = root_.scope("loss");
  const Dims full = shape();
  const auto rows = [&](ValueId v, std::string_view local) {
    return b.broadcast(v, full, {0}, true, local);
  };
  const ValueId largest =
      b.reduce(x_, {1}, Reducer::kMax, "largest", false, /*stop_gradient=*/true);
  const ValueId shifted = b.sub(x_, rows(largest, "largest_broadcast"), "shift");
  const ValueId total =
      b.reduce(b.unary(OpKind::kExponential, shifted), {1}, Reducer::kSum, "sum_exp");
  const ValueId log_softmax =
      b.sub(shifted, rows(b.unary(OpKind::kLog, total), "log_broadcast"), "log_softmax");
  const ValueId picked =
      b.reduce(b.mul(log_softmax, one_hot(b, classes), "pick"), {1}, Reducer::kSum, "picked");
  program_.loss = b.reduce(b.unary(OpKind::kNegate, picked, "per_sample"), {0}, reduction, "value");
  program_.outputs.push_back({"loss", program_.loss});
}

void Layers::mean_squared_error(int64_t classes, Reducer reduction) {
  check_logits("mean_squared_error", classes);
  GraphBuilder b = root_.scope("loss");
  const ValueId gap = b.sub(x_, one_hot(b, classes), "gap");
  const ValueId per_sample = b.reduce(b.mul(gap, gap, "square"), {1}, Reducer::kMean, "per_sample");
  program_.loss = b.reduce(per_sample, {0}, reduction, "value");
  program_.outputs.push_back({"loss", program_.loss});
}

Program Layers::finish(const OptimizerSpec& optimizer) {
  program_.optimizer = optimizer;
  return std::move(program_);
}

}  // namespace twinrun
