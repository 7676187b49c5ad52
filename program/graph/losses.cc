// Losses: the loss of each item (a sample or a token), then the sum, mean or weighted mean over a
// core's items.
#include "program/graph/layers.h"

namespace twinrun {
ValueId Layers::one_hot(GraphBuilder b, int64_t classes) {
  Dims full = b.type(labels_).dims;
  full.push_back(classes);
  const auto last = static_cast<int64_t>(full.size()) - 1;
  const ValueId index =
      b.broadcast(b.iota({classes}, 0, DType::kI32, "classes"), full, {last}, "class_index");
  const ValueId labels = b.broadcast(labels_, full, other_dims(last), "label_broadcast");
  return b.convert(b.compare(CompareKind::kEq, index, labels, "is_label"), DType::kF32, "one_hot");
}

ValueId Layers::targets(GraphBuilder b, int64_t classes, double smoothing) {
  const ValueId hot = one_hot(b, classes);
  if (smoothing == 0) return hot;
  const ValueId kept = b.binary_scalar(OpKind::kMultiply, hot, 1 - smoothing, "kept");
  return b.binary_scalar(OpKind::kAdd, kept, smoothing / static_cast<double>(classes), "smoothed");
}

void Layers::check_logits(const char* loss, int64_t classes) {
  Dims expected = program_.graph.type(labels_).dims;
  expected.push_back(classes);
  if (shape() != expected) {
    throw GraphError(std::string(loss) + " over " + std::to_string(classes) +
                     " classes needs a last layer of shape " +
                     (expected.size() == 2 ? "[batch, " : "[batch, tokens, ") +
                     std::to_string(classes) + "], found " + to_string(shape()));
  }
  program_.outputs.push_back({"logits", x_});
}

void Layers::set_loss(ValueId value) {
  program_.loss = value;
  program_.outputs.push_back({"loss", value});
}

ValueId Layers::counted(GraphBuilder b, int64_t ignored) {
  const ValueId never =
      b.broadcast_scalar(b.constant(static_cast<double>(ignored), DType::kI32, "ignored_label"),
                         labels_, "ignored_labels");
  return b.convert(b.compare(CompareKind::kNe, labels_, never, "is_counted"), DType::kF32,
                   "counted");
}

ValueId Layers::reduce_loss(GraphBuilder b, ValueId per_item, const LossOptions& loss) {
  const ValueId value = over_items(b, per_item, loss);
  if (loss.scale == 1 || mode_ == Mode::kInference) return value;
  return b.binary_scalar(OpKind::kMultiply, value, loss.scale, "scaled_value");
}

ValueId Layers::over_items(GraphBuilder b, ValueId per_item, const LossOptions& loss) {
  // If every core has the items of the whole batch, each core sums only its own. Otherwise every
  // item would count once per core.
  const bool of_all = b.type(per_item).dims[0] != program_.batch;
  if (of_all && loss.reduction == Reducer::kSum) per_item = own_rows("loss", per_item);
  const Dims items = b.type(per_item).dims;
  if (loss.ignored >= 0 && !loss.weighted && b.type(labels_).dims == items) {
    const ValueId counts = counted(b, loss.ignored);
    const Dims all = other_dims(static_cast<int64_t>(items.size()));
    const ValueId total =
        b.reduce(b.mul(per_item, counts, "not_ignored"), all, Reducer::kSum, "total");
    if (loss.reduction == Reducer::kSum) return total;
    const ValueId count = b.reduce(counts, all, Reducer::kSum, "count");
    return b.div(total, divisor(b, count, items[0]), "value");
  }
  if (!loss.weighted)
    return b.reduce(per_item, other_dims(static_cast<int64_t>(items.size())), loss.reduction,
                    "value");
  if (weights_ == kNoValue) {
    throw GraphError("loss: a weighted mean needs data with weights (sequences of unequal length)");
  }
  ValueId weights = weights_;
  if (items.size() == 1) weights = b.reduce(weights_, {1}, Reducer::kSum, "weights");
  if (b.type(weights).dims != items) weights = gather_cores("loss/weights", weights);
  const ValueId total =
      b.reduce(b.mul(per_item, weights, "weighted"), other_dims(static_cast<int64_t>(items.size())),
               Reducer::kSum, "weighted_sum");
  if (loss.reduction == Reducer::kSum) return total;
  const ValueId weight = b.reduce(weights, other_dims(static_cast<int64_t>(items.size())),
                                  Reducer::kSum, "total_weight");
  return b.div(total, divisor(b, weight, items[0]), "value");
}

// What a mean over a core's items divides by: their own weight, or the core's equal share of the
// weight of all cores. `rows`: of the items; a core that has the whole batch's needs no share.
ValueId Layers::divisor(GraphBuilder b, ValueId weight, int64_t rows) {
  if (mode_ != Mode::kTraining || rows != program_.batch) return weight;
  couple("token_mean", "loss");
  if (sharding_.cores == 1 || sharding_.token_mean != Scope::kGlobal) return weight;
  return b.binary_scalar(OpKind::kDivide, b.all_reduce(weight, "weight_of_all"), sharding_.cores,
                         "weight_per_core");
}

void Layers::softmax_cross_entropy(int64_t classes, const LossOptions& loss) {
  check_logits("softmax_cross_entropy", classes);
  GraphBuilder b = root_.scope("loss");
  const auto last = static_cast<int64_t>(shape().size()) - 1;
  const ValueId scores = loss.of_probabilities ? softmax(b.scope("twice"), x_) : x_;
  const ValueId log_share = log_softmax(b, scores, "log_softmax");
  const ValueId picked = b.reduce(b.mul(log_share, targets(b, classes, loss.smoothing), "pick"),
                                  {last}, Reducer::kSum, "picked");
  set_loss(reduce_loss(b, b.unary(OpKind::kNegate, picked, "per_sample"), loss));
}

// log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|))
ValueId Layers::softplus(GraphBuilder b, ValueId x) {
  const ValueId small = b.unary(OpKind::kNegate, b.unary(OpKind::kAbs, x), "minus_abs");
  const ValueId rest = b.unary(OpKind::kLog1p, b.unary(OpKind::kExponential, small));
  return b.add(b.binary_scalar(OpKind::kMaximum, x, 0.0, "positive"), rest, "softplus");
}

// max(x, 0) - x z + log1p(exp(-|x|)), as tf.nn.sigmoid_cross_entropy_with_logits.
void Layers::sigmoid_cross_entropy(int64_t classes, const LossOptions& loss) {
  check_logits("sigmoid_cross_entropy", classes);
  GraphBuilder b = root_.scope("loss");
  const auto last = static_cast<int64_t>(shape().size()) - 1;
  const ValueId product = b.mul(x_, targets(b, classes, loss.smoothing), "product");
  const ValueId each = b.sub(softplus(b, x_), product, "each");
  set_loss(reduce_loss(b, b.reduce(each, {last}, loss.over_classes, "per_sample"), loss));
}

void Layers::mean_squared_error(int64_t classes, const LossOptions& loss) {
  check_logits("mean_squared_error", classes);
  GraphBuilder b = root_.scope("loss");
  const auto last = static_cast<int64_t>(shape().size()) - 1;
  const ValueId gap = b.sub(x_, targets(b, classes, loss.smoothing), "gap");
  const ValueId per_sample =
      b.reduce(b.mul(gap, gap, "square"), {last}, loss.over_classes, "per_sample");
  set_loss(reduce_loss(b, per_sample, loss));
}

// ---- losses over pairs of samples

Layers::Pairs Layers::pairs(GraphBuilder b, const char* loss) {
  if (shape().size() != 2 || program_.graph.type(labels_).rank() != 1) {
    throw GraphError(std::string(loss) + " needs a last layer of shape [batch, features] and one " +
                     "label per sample, found " + to_string(shape()) + " and " +
                     to_string(program_.graph.type(labels_)));
  }
  program_.outputs.push_back({"embeddings", x_});
  Pairs p;
  p.embeddings = x_;
  p.labels = labels_;
  if (gathers()) {
    p.embeddings = gather_cores("loss/embeddings", x_);
    p.labels = gather_cores("loss/labels", labels_);
  }
  p.n = b.type(p.labels).dims[0];
  const Dims square{p.n, p.n};
  const ValueId row = b.broadcast(p.labels, square, {0}, "label_of_row");
  const ValueId column = b.broadcast(p.labels, square, {1}, "label_of_column");
  const ValueId equal = b.compare(CompareKind::kEq, row, column, "equal");
  p.self = b.compare(CompareKind::kEq, b.iota(square, 0, DType::kI32, "row"),
                     b.iota(square, 1, DType::kI32, "column"), "self");
  const ValueId no = b.broadcast_scalar(b.constant(0, DType::kPred, "no"), equal, "nos");
  p.same = b.select(p.self, no, equal, "same");
  couple("batch_wise", "loss");
  return p;
}

void Layers::triplet(double margin, bool hardest, const LossOptions& loss) {
  GraphBuilder b = root_.scope("loss");
  const Pairs p = pairs(b, "triplet");
  const Dims square{p.n, p.n};
  const ValueId norms =
      b.reduce(b.mul(p.embeddings, p.embeddings, "square"), {1}, Reducer::kSum, "norms");
  const ValueId sum = b.add(b.broadcast(norms, square, {0}, "norm_of_row"),
                            b.broadcast(norms, square, {1}, "norm_of_column"), "norm_sum");
  const ValueId products = b.dot(p.embeddings, p.embeddings, 1, 1, "products");
  const ValueId squared = b.binary_scalar(
      OpKind::kMaximum,
      b.sub(sum, b.binary_scalar(OpKind::kMultiply, products, 2.0, "twice"), "difference"), 0.0,
      "squared");
  // Epsilon keeps the argument away from zero, where the square root is not differentiable.
  const ValueId distance = b.unary(
      OpKind::kSqrt, b.binary_scalar(OpKind::kAdd, squared, 1e-12, "add_epsilon"), "distance");
  const auto splat = [&](double v, std::string_view local) {
    return b.broadcast_scalar(b.constant(v, DType::kF32, local), distance,
                              std::string(local) + "s");
  };
  if (!hardest) {
    // The loss of anchor i: the mean of max(0, d(i, p) - d(i, q) + margin) over all p of its class
    // and q of others.
    const Dims cube{p.n, p.n, p.n};
    const ValueId positive = b.convert(p.same, DType::kF32, "is_positive");
    const ValueId negative =
        b.convert(b.compare(CompareKind::kNe, b.broadcast(p.labels, square, {0}, "label_of_anchor"),
                            b.broadcast(p.labels, square, {1}, "label_of_other"), "differ"),
                  DType::kF32, "is_negative");
    const ValueId gap = b.sub(b.broadcast(distance, cube, {0, 1}, "to_positive"),
                              b.broadcast(distance, cube, {0, 2}, "to_negative"), "gap");
    const ValueId hinge = b.binary_scalar(
        OpKind::kMaximum, b.binary_scalar(OpKind::kAdd, gap, margin, "add_margin"), 0.0, "hinge");
    const ValueId valid = b.mul(b.broadcast(positive, cube, {0, 1}, "positives"),
                                b.broadcast(negative, cube, {0, 2}, "negatives"), "valid");
    const ValueId total = b.reduce(b.mul(hinge, valid, "counted"), {1, 2}, Reducer::kSum, "total");
    const ValueId pairs_of =
        b.mul(b.reduce(positive, {1}, Reducer::kSum, "count_positives"),
              b.reduce(negative, {1}, Reducer::kSum, "count_negatives"), "count");
    const ValueId count = b.binary_scalar(OpKind::kMaximum, pairs_of, 1.0, "at_least_one");
    set_loss(reduce_loss(b, b.div(total, count, "per_sample"), loss));
    return;
  }
  const ValueId farthest = b.reduce(b.select(p.same, distance, splat(0, "none"), "positives"), {1},
                                    Reducer::kMax, "farthest");
  // Samples of another class: not of the same class, and not the sample itself.
  const ValueId far = splat(-1e9, "far");
  const ValueId minus = b.unary(OpKind::kNegate, distance, "minus_distance");
  const ValueId others = b.select(p.self, far, b.select(p.same, far, minus, "negatives"), "others");
  const ValueId nearest = b.reduce(others, {1}, Reducer::kMax, "minus_nearest");
  const ValueId gap = b.add(farthest, nearest, "gap");
  const ValueId hinge =
      b.binary_scalar(OpKind::kMaximum, b.binary_scalar(OpKind::kAdd, gap, margin, "add_margin"),
                      0.0, "per_sample");
  set_loss(reduce_loss(b, hinge, loss));
}

void Layers::contrastive(double temperature, const LossOptions& loss) {
  GraphBuilder b = root_.scope("loss");
  const Pairs p = pairs(b, "contrastive");
  const Dims square{p.n, p.n};
  const ValueId products = b.dot(p.embeddings, p.embeddings, 1, 1, "products");
  const ValueId similarity =
      b.binary_scalar(OpKind::kMultiply, products, 1.0 / temperature, "similarity");
  const auto splat = [&](double v, std::string_view local) {
    return b.broadcast_scalar(b.constant(v, DType::kF32, local), similarity,
                              std::string(local) + "s");
  };
  const ValueId others = b.select(p.self, splat(-1e9, "never"), similarity, "others");
  const ValueId log_share = log_softmax(b, others, "log_share");
  const ValueId picked =
      b.reduce(b.select(p.same, log_share, splat(0, "zero"), "pick"), {1}, Reducer::kSum, "picked");
  const ValueId count = b.binary_scalar(
      OpKind::kMaximum,
      b.reduce(b.convert(p.same, DType::kF32, "is_same"), {1}, Reducer::kSum, "count"), 1.0,
      "at_least_one");
  const ValueId mean = b.div(picked, count, "mean_over_positives");
  set_loss(reduce_loss(b, b.unary(OpKind::kNegate, mean, "per_sample"), loss));
}

void Layers::gan(ValueId real, ValueId fake, const std::string& discriminator,
                 const std::string& generator, Reducer reduction) {
  GraphBuilder b = root_.scope("loss");
  for (ValueId logits : {real, fake}) {
    if (b.type(logits).dims != Dims{program_.batch, 1}) {
      throw GraphError("gan needs a discriminator that ends in [batch, 1], found " +
                       to_string(b.type(logits)));
    }
  }
  const auto loss_of = [&](ValueId x, std::string_view local) {
    return b.reduce(x, {0, 1}, reduction, local);
  };
  const auto minus = [&](ValueId x, std::string_view local) {
    return b.unary(OpKind::kNegate, x, local);
  };
  const ValueId of_real = softplus(b.scope("real"), minus(real, "minus_real"));
  const ValueId of_fake = softplus(b.scope("fake"), fake);
  const ValueId judge = loss_of(b.add(of_real, of_fake, "judged"), "value");
  const ValueId deceive =
      loss_of(softplus(b.scope("deceived"), minus(fake, "minus_fake")), "generator_value");
  program_.outputs.push_back({"judged", real});
  program_.outputs.push_back({"deceived", fake});
  program_.outputs.push_back({"generator_loss", deceive});
  program_.objectives = {{judge, discriminator}, {deceive, generator}};
  set_loss(judge);
}

}  // namespace twinrun
