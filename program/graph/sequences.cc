// Layers over [batch, tokens, units]: embeddings, attention, means over tokens, and the softmax
// that losses share.
#include <cmath>

#include "program/graph/layers.h"

namespace twinrun {

void Layers::embedding(const std::string& name, int64_t vocabulary, int64_t units,
                       const Initializer& init, const EmbeddingOptions& embedding) {
  if (program_.graph.type(x_).dtype != DType::kI32) {
    throw GraphError(name + ": embedding needs token ids, i32 [batch, tokens], found " +
                     to_string(program_.graph.type(x_)));
  }
  const ValueId table = parameter(name + "/embeddings", {vocabulary, units}, init);
  GraphBuilder b = root_.scope(name);
  const ValueId tokens = x_;
  x_ = b.gather(table, tokens);
  if (embedding.padding_index >= 0) {
    // The same rows, but read through a value with stop_gradient, so that no gradient goes back to
    // the table.
    const ValueId kept = b.reduce(b.reshape(table, {vocabulary, units, 1}, "rows"), {2},
                                  Reducer::kMax, "kept_rows", /*stop_gradient=*/true);
    const ValueId index = b.broadcast_scalar(
        b.constant(static_cast<double>(embedding.padding_index), DType::kI32, "padding_index"),
        tokens, "padding_indices");
    const ValueId is_padding = b.broadcast(b.compare(CompareKind::kEq, tokens, index, "is_padding"),
                                           shape(), {0, 1}, "is_padding_broadcast");
    x_ = b.select(is_padding, b.gather(kept, tokens, "kept_gather"), x_, "padding_kept");
  }
  if (embedding.factor != 1)
    x_ = b.binary_scalar(OpKind::kMultiply, x_, embedding.factor, "scaled");
}

void Layers::position_embedding(const std::string& name, const Initializer& init) {
  expect_rank(name, "position_embedding", 3, "[batch, tokens, units]");
  const Dims full = shape();
  const ValueId table = parameter(name + "/embeddings", {full[1], full[2]}, init);
  GraphBuilder b = root_.scope(name);
  x_ = b.add(x_, b.broadcast(table, full, {1, 2}, "positions"), "add_positions");
}

Layers::Exponentials Layers::exponentials(GraphBuilder b, ValueId x) {
  Exponentials e;
  e.full = b.type(x).dims;
  const auto last = static_cast<int64_t>(e.full.size()) - 1;
  e.rows = other_dims(last);
  const ValueId largest = b.reduce(x, {last}, Reducer::kMax, "largest", /*stop_gradient=*/true);
  e.shifted = b.sub(x, b.broadcast(largest, e.full, e.rows, "largest_broadcast"), "shift");
  e.each = b.unary(OpKind::kExponential, e.shifted);
  e.total = b.reduce(e.each, {last}, Reducer::kSum, "sum_exp");
  return e;
}

ValueId Layers::softmax(GraphBuilder b, ValueId x) {
  const Exponentials e = exponentials(b, x);
  return b.div(e.each, b.broadcast(e.total, e.full, e.rows, "sum_broadcast"), "softmax");
}

ValueId Layers::log_softmax(GraphBuilder b, ValueId x, std::string_view local) {
  const Exponentials e = exponentials(b, x);
  const ValueId log = b.unary(OpKind::kLog, e.total);
  return b.sub(e.shifted, b.broadcast(log, e.full, e.rows, "log_broadcast"), local);
}

void Layers::attention(const std::string& name, const AttentionOptions& attention,
                       const WeightOptions& weights) {
  const int64_t heads = attention.heads;
  expect_rank(name, "attention", 3, "[batch, tokens, units]");
  const Dims full = shape();
  const int64_t batch = full[0], tokens = full[1], units = full[2], size = units / heads;
  if (units % heads != 0) {
    throw GraphError(name + ": " + std::to_string(units) + " units do not make " +
                     std::to_string(heads) + " heads");
  }
  if (attention.masked && weights_ == kNoValue) {
    throw GraphError(name +
                     ": masked attention needs data with weights (sequences of unequal length)");
  }
  GraphBuilder b = root_.scope(name);
  const ValueId input = x_;
  const auto project = [&](const std::string& which) {  // [batch, heads, tokens, size]
    x_ = input;
    dense(name + "/" + which, units, weights);
    if (attention.interleaved)
      return root_.scope(name + "/" + which)
          .transpose(b.reshape(x_, {batch, tokens, size, heads}, which + "_heads"), {0, 3, 1, 2});
    return root_.scope(name + "/" + which)
        .transpose(b.reshape(x_, {batch, tokens, heads, size}, which + "_heads"), {0, 2, 1, 3});
  };
  ValueId query = project("query");
  if (attention.scaled)
    query =
        b.binary_scalar(OpKind::kMultiply, query,
                        1.0 / std::sqrt(static_cast<double>(attention.by_all_units ? units : size)),
                        "scaled_query");
  const ValueId key = project("key"), value = project("value");
  ValueId scores = b.dot(query, key, 1, 1, "scores", 2);
  const Dims square{batch, heads, tokens, tokens};
  const ValueId never =
      b.broadcast_scalar(b.constant(-1e9, DType::kF32, "never"), scores, "nevers");
  if (attention.causal) {
    const ValueId from = b.iota({tokens, tokens}, 0, DType::kI32, "from");
    const ValueId to = b.iota({tokens, tokens}, 1, DType::kI32, "to");
    const ValueId past = b.compare(CompareKind::kGe, from, to, "past");
    scores = b.select(b.broadcast(past, square, {2, 3}, "pasts"), scores, never, "causal");
  }
  if (attention.masked) {
    const ValueId zero = b.broadcast_scalar(b.constant(0, DType::kF32, "zero"), weights_, "zeros");
    const ValueId real = b.compare(CompareKind::kGt, weights_, zero, "real");
    scores = b.select(b.broadcast(real, square, {0, 3}, "reals"), scores, never, "masked");
  }
  const ValueId mixed = b.dot(softmax(b, scores), value, 1, 0, "mixed", 2);
  const Dims by_token = attention.interleaved ? Dims{0, 2, 3, 1} : Dims{0, 2, 1, 3};
  x_ = b.reshape(b.transpose(mixed, by_token, "by_token"), full, "joined");
  dense(name + "/output", units, weights);
}

void Layers::masked_mean(const std::string& name) {
  expect_rank(name, "masked_mean", 3, "[batch, tokens, units]");
  if (weights_ == kNoValue) {
    throw GraphError(name + ": masked_mean needs data with weights (sequences of unequal length)");
  }
  const Dims full = shape();
  GraphBuilder b = root_.scope(name);
  const ValueId weighted = b.mul(x_, b.broadcast(weights_, full, {0, 1}, "weights"), "weighted");
  const ValueId sum = b.reduce(weighted, {1}, Reducer::kSum, "sum");
  const ValueId count = b.reduce(weights_, {1}, Reducer::kSum, "count");
  x_ = b.div(sum, b.broadcast(count, {full[0], full[2]}, {0}, "counts"), "mean");
}

}  // namespace twinrun
