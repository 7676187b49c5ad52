// Normalisation over a batch, a sample or groups of channels, and the standard deviation over
// groups of samples.
#include <algorithm>

#include "program/graph/layers.h"

namespace twinrun {

void Layers::update_statistic(const std::string& name, ValueId batch_value, double momentum) {
  StateVar& var = program_.state[static_cast<size_t>(program_.state_index(name))];
  GraphBuilder b = GraphBuilder(program_.graph, "", Phase::kUpdate).derived(name, Phase::kUpdate);
  // A layer that is applied twice updates its statistics twice.
  ValueId old = var.next == kNoValue ? var.id : var.next;
  if (var.next == kNoValue && sharding_.cores > 1 && sharding_.statistics == Statistics::kFromFirst)
    old = first_cores(old);
  const ValueId gap = b.sub(old, batch_value, "gap");
  var.next = b.sub(old, b.binary_scalar(OpKind::kMultiply, gap, 1.0 - momentum, "part"), "update");
}

ValueId Layers::mean_of_squares(GraphBuilder b, const Dims& reduced) {
  return b.reduce(b.mul(x_, x_, "square"), reduced, Reducer::kMean, "mean_of_squares");
}

// E[x^2] - E[x]^2, but not below 0, since rounding may make it negative (as in Flax:
// flax/linen/normalization.py, _compute_stats).
ValueId Layers::variance_of(GraphBuilder b, ValueId of_squares, ValueId mean) {
  const ValueId gap = b.sub(of_squares, b.mul(mean, mean, "square_of_mean"), "one_pass");
  return b.binary_scalar(OpKind::kMaximum, gap, 0.0, "variance");
}

void Layers::batch_norm(const std::string& name, const NormOptions& norm) {
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
  if (mode_ == Mode::kTraining && !norm.by_running) {
    Dims reduced;
    int64_t count = 1;  // number of elements that the statistics are computed from
    for (int64_t i = 0; i + 1 < static_cast<int64_t>(dims.size()); ++i) {
      reduced.push_back(i);
      count *= dims[static_cast<size_t>(i)];
    }
    const int64_t own_count = count;
    const bool alone = sharding_.cores == 1 || sharding_.batchnorm == BatchNormSync::kPerCore;
    if (!alone)
      count *= sharding_.batchnorm_group > 0 ? sharding_.batchnorm_group : sharding_.cores;
    const ValueId own_mean = b.reduce(x_, reduced, Reducer::kMean, "mean");
    mean = mean_over_cores(own_mean);
    centred = centre();
    if (!alone && sharding_.batchnorm == BatchNormSync::kAveraged) {
      variance = mean_over_cores(own_moments(b, reduced, own_mean, own_count).variance);
    } else if (sharding_.variance == Sharding::Variance::kOnePass) {
      variance = variance_of(b, mean_over_cores(mean_of_squares(b, reduced)), mean);
    } else if (sharding_.variance == Sharding::Variance::kMeanHeld) {
      const ValueId held = mean_over_cores(
          b.reduce(x_, reduced, Reducer::kMean, "held_mean", /*stop_gradient=*/true));
      const ValueId gap =
          b.sub(x_, b.broadcast_trailing(held, x_, "held_mean_broadcast"), "held_centre");
      variance =
          mean_over_cores(b.reduce(b.mul(gap, gap, "square"), reduced, Reducer::kMean, "variance"));
    } else {
      variance = mean_over_cores(
          b.reduce(b.mul(centred, centred, "square"), reduced, Reducer::kMean, "variance"));
    }
    Moments running{mean, variance, count};
    if (sharding_.cores > 1 && sharding_.statistics != Statistics::kAsNormalised) {
      if (!alone) running = own_moments(b.scope("running"), reduced, own_mean, own_count);
      if (sharding_.statistics == Statistics::kGlobal)
        running = moments_of_all(b.scope("running"), running);
      if (sharding_.statistics == Statistics::kAveraged)
        running = {mean_over_all_cores(running.mean), mean_over_all_cores(running.variance),
                   running.count};
    }
    update_statistic(name + "/moving_mean", running.mean, norm.momentum);
    ValueId unbiased = running.variance;
    using Running = NormOptions::Running;
    if (norm.running == Running::kUnbiased ||
        (norm.running == Running::kTensorFlow && dims.size() == 4)) {
      GraphBuilder u = GraphBuilder(program_.graph, name, Phase::kUpdate);
      const ValueId bessel = u.constant(bessel_factor(running.count), DType::kF32, "bessel");
      unbiased = u.mul(running.variance, u.broadcast_scalar(bessel, running.variance, "bessels"),
                       "unbiased_variance");
    }
    update_statistic(name + "/moving_variance", unbiased, norm.momentum);
    couple("batch_norm", name);
  } else {
    centred = centre();
  }
  const ValueId inverse =
      b.unary(OpKind::kRsqrt, b.binary_scalar(OpKind::kAdd, variance, norm.epsilon, "add_epsilon"));
  const ValueId scale = b.mul(gamma, inverse, "scale");
  const ValueId scaled =
      b.mul(centred, b.broadcast_trailing(scale, x_, "scale_broadcast"), "normalize");
  x_ = b.add(scaled, b.broadcast_trailing(beta, x_, "beta_broadcast"), "shift");
}

ValueId Layers::normalised(GraphBuilder b, ValueId x, const Dims& dims, const NormOptions& norm) {
  const Dims full = b.type(x).dims;
  const Dims kept = other_dims(static_cast<int64_t>(full.size()), dims);
  const ValueId mean = b.reduce(x, dims, Reducer::kMean, "mean");
  const ValueId centred = b.sub(x, b.broadcast(mean, full, kept, "mean_broadcast"), "centre");
  ValueId variance = b.reduce(b.mul(centred, centred, "square"), dims, Reducer::kMean, "variance");
  if (norm.unbiased) {
    int64_t count = 1;
    for (const int64_t dim : dims) count *= full[static_cast<size_t>(dim)];
    variance =
        b.binary_scalar(OpKind::kMultiply, variance, bessel_factor(count), "unbiased_variance");
  }
  if (norm.beside_root) {
    const ValueId below = b.binary_scalar(
        OpKind::kAdd, b.unary(OpKind::kSqrt, variance, "deviation"), norm.epsilon, "add_epsilon");
    return b.div(centred, b.broadcast(below, full, kept, "deviation_broadcast"), "normalize");
  }
  const ValueId inverse =
      b.unary(OpKind::kRsqrt, b.binary_scalar(OpKind::kAdd, variance, norm.epsilon, "add_epsilon"));
  return b.mul(centred, b.broadcast(inverse, full, kept, "inverse_broadcast"), "normalize");
}

void Layers::scale_and_shift(const std::string& name) {
  GraphBuilder b = root_.scope(name);
  const int64_t channels = shape().back();
  const ValueId gamma =
      state(name + "/gamma", {channels}, StateRole::kParameter, {Initializer::Kind::kConstant, 1});
  const ValueId beta = state(name + "/beta", {channels}, StateRole::kParameter, {});
  x_ = b.mul(x_, b.broadcast_trailing(gamma, x_, "gamma_broadcast"), "scale");
  x_ = b.add(x_, b.broadcast_trailing(beta, x_, "beta_broadcast"), "shift");
}

void Layers::layer_norm(const std::string& name, const NormOptions& norm) {
  const auto last = static_cast<int64_t>(shape().size()) - 1;
  Dims dims{last};
  if (norm.over_tokens) dims = other_dims(last + 1, {0});
  x_ = normalised(root_.scope(name), x_, dims, norm);
  scale_and_shift(name);
}

void Layers::group_norm(const std::string& name, int64_t groups, const NormOptions& norm) {
  expect_image(name, "group_norm");
  const Dims full = shape();
  if (full[3] % groups != 0) {
    throw GraphError(name + ": " + std::to_string(full[3]) + " channels do not make " +
                     std::to_string(groups) + " groups");
  }
  GraphBuilder b = root_.scope(name);
  x_ = b.reshape(x_, {full[0], full[1], full[2], groups, full[3] / groups}, "groups");
  x_ = b.reshape(normalised(b, x_, {1, 2, 4}, norm), full, "channels");
  scale_and_shift(name);
}

void Layers::minibatch_stddev(const std::string& name, int64_t group) {
  expect_image(name, "minibatch_stddev");
  const Dims own = shape();
  GraphBuilder b = root_.scope(name);
  ValueId x = x_;
  if (gathers()) x = gather_cores(name, x);
  const Dims full = b.type(x).dims;
  const int64_t n = full[0], size = std::min(group, n), groups = n / size;
  if (n % size != 0) {
    throw GraphError(name + ": a batch of " + std::to_string(n) + " does not make groups of " +
                     std::to_string(size) + " samples; allowed: up to " + std::to_string(size) +
                     ", or multiples of it");
  }
  const Dims split{size, groups, full[1], full[2], full[3]};
  const ValueId y = b.reshape(x, split, "groups");
  const ValueId mean = b.reduce(y, {0}, Reducer::kMean, "mean");
  const ValueId centred =
      b.sub(y, b.broadcast(mean, split, {1, 2, 3, 4}, "mean_broadcast"), "centre");
  const ValueId variance =
      b.reduce(b.mul(centred, centred, "square"), {0}, Reducer::kMean, "variance");
  const ValueId deviation = b.unary(
      OpKind::kSqrt, b.binary_scalar(OpKind::kAdd, variance, 1e-8, "add_epsilon"), "deviation");
  const ValueId average = b.reduce(deviation, {1, 2, 3}, Reducer::kMean, "average");
  ValueId per_sample =
      b.reshape(b.broadcast(average, {size, groups}, {1}, "tile"), {n}, "per_sample");
  if (gathers()) per_sample = own_rows(name, per_sample);
  const ValueId channel = b.broadcast(per_sample, {own[0], own[1], own[2], 1}, {0}, "channel");
  x_ = b.concatenate(x_, channel, 3);
  couple("batch_wise", name);
}

}  // namespace twinrun
