// Embeddings and bags of embeddings, with their gradients.
#include <algorithm>

#include "backends/aten/definitions.h"
#include "backends/aten/totals.h"

namespace twinrun::aten {
namespace {

int64_t rows_of(const TensorView& weight) {
  if (weight.dims.size() != 2) throw Undefined("embeddings that are not a matrix");
  return weight.dims[0];
}
void need_rows(const Checked<int64_t>& index, int64_t rows) {
  if (std::ranges::any_of(index, [&](int64_t i) { return i < 0 || i >= rows; }))
    throw Undefined("an index out of range");
}

Array lookup(const Arguments& a, size_t weight_at, size_t index_at, std::string_view index_name) {
  const int64_t rows = rows_of(a.view(weight_at, "weight"));
  const Array weight = a.array(weight_at, "weight");
  const TensorView& indices = a.view(index_at, index_name);
  const Checked<int64_t> index = integers_of(indices);
  need_rows(index, rows);
  const int64_t width = weight.dims[1];
  Dims dims = indices.dims;
  dims.push_back(width);
  Array out = empty_array(std::move(dims), true);
  for (size_t i = 0; i < index.size(); ++i) {
    std::copy_n(weight.value.begin() + index[i] * width, width,
                out.value.begin() + static_cast<int64_t>(i) * width);
  }
  return out;
}
Expected embedding(const Arguments& a) { return lookup(a, 0, 1, "indices"); }
// functional.embedding(input, weight, padding_idx, max_norm, ...)
Expected functional_embedding(const Arguments& a) {
  if (a.has(3, "max_norm")) throw Undefined("embeddings that are scaled in place to a norm");
  return lookup(a, 1, 0, "input");
}

Expected embedding_dense_backward(const Arguments& a) {
  const Array dy = a.array(0, "grad_output");
  const Checked<int64_t> index = integers_of(a.view(1, "indices"));
  const int64_t rows = a.integer(2, "num_weights", 0), skip = a.integer(3, "padding_idx", -1);
  const bool by_count = a.flag(4, "scale_grad_by_freq", false);
  const double half = half_unit(a.view(0, "grad_output").element);
  if (dy.dims.empty()) throw Undefined("a gradient without dimensions");
  const int64_t width = dy.dims.back();
  if (std::ranges::any_of(index, [&](int64_t i) { return i != skip && (i < 0 || i >= rows); }))
    throw Undefined("an index out of range");
  Array out = empty_array({rows, width});  // first: it refuses sizes that the trace cannot hold
  Checked<int64_t> uses(static_cast<size_t>(allowed_count({rows})), 0);
  for (const int64_t i : index) {
    if (i != skip) ++uses[static_cast<size_t>(i)];
  }
  Checked<Total> totals(static_cast<size_t>(rows * width));
  for (size_t i = 0; i < index.size(); ++i) {
    if (index[i] == skip) continue;
    const auto n = static_cast<double>(uses[static_cast<size_t>(index[i])]);
    for (int64_t c = 0; c < width; ++c) {
      Estimate e = dy.at(static_cast<int64_t>(i) * width + c);
      // Each term is multiplied with 1 / n, or the sum divided by n.
      if (by_count && n > 1) e = a.m.div(e, exactly(n));
      if (by_count && n > 1) e.radius += half * std::fabs(e.value);
      totals[static_cast<size_t>(index[i] * width + c)].add(e);
    }
  }
  for (int64_t i = 0; i < out.size(); ++i) out.set(i, totals[static_cast<size_t>(i)].of(a.m, half));
  return out;
}

constexpr int64_t kBagSum = 0, kBagMean = 1, kBagMax = 2;

Expected bag(const Arguments& a) {
  const Arithmetic& m = a.m;
  const int64_t rows = rows_of(a.view(0, "weight"));
  const Array weight = a.array(0, "weight");
  const Checked<int64_t> index = integers_of(a.view(1, "indices"));
  Checked<int64_t> offsets = integers_of(a.view(2, "offsets"));
  const int64_t mode = a.integer(4, "mode", kBagSum);
  const std::optional<Array> scales = a.maybe(6, "per_sample_weights");
  int64_t skip = a.integer(8, "padding_idx", -1);
  if (skip < -1) skip += rows;  // counted from the end; -1 stands for none
  need_rows(index, rows);
  const auto n = static_cast<int64_t>(index.size());
  // The last offset is where the last bag ends, or there is none, and it takes the rest.
  if (!a.flag(7, "include_last_offset", false)) offsets.push_back(n);
  if (offsets.empty()) throw Undefined("bags without an offset");
  if (mode < kBagSum || mode > kBagMax) throw Undefined("a bag of an unknown mode");
  const auto bags = static_cast<int64_t>(offsets.size()) - 1;
  const int64_t width = weight.dims[1];
  // Old kernels of half precision add into the result.
  const double half = half_unit(a.view(0, "weight").element);
  Array out = empty_array({bags, width});
  take_steps(kStepsOfOne * static_cast<double>(n) * static_cast<double>(width));
  for (int64_t b = 0; b < bags; ++b) {
    const int64_t begin = offsets[static_cast<size_t>(b)];
    const int64_t end = offsets[static_cast<size_t>(b + 1)];
    if (begin < 0 || begin > end || end > n) throw Undefined("offsets out of range");
    for (int64_t c = 0; c < width; ++c) {
      Total total;
      double best = -kInfinity;
      int64_t members = 0;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = index[static_cast<size_t>(i)];
        if (row == skip) continue;
        ++members;
        const Estimate w = weight.at(row * width + c);
        best = Arithmetic::max({best}, w).value;
        total.add(scales ? m.mul(w, scales->at(i)) : w);
      }
      Estimate e = total.of(m, half);
      if (mode == kBagMax) e = exactly(members == 0 ? 0 : best);
      if (mode == kBagMean && members > 1) {
        e = m.div(e, exactly(static_cast<double>(members)));
        e.radius += half * std::fabs(e.value);
      }
      out.set(b * width + c, e);
    }
  }
  Expected expected(std::move(out));
  for (size_t i = 1; a.has_result(i); ++i) expected.results.emplace_back(std::nullopt);
  return expected;
}

// Of the bags as offset2bag gives them, one number for each index.
Expected bag_gradient(const Arguments& a, bool dense) {
  const Arithmetic& m = a.m;
  // The general call has `offsets` before offset2bag, and `sparse` before per_sample_weights.
  const size_t more = dense ? 0 : 1;
  const Array dy = a.array(0, "grad");
  if (dy.dims.size() != 2) throw Undefined("a gradient of bags that is not a matrix");
  const Checked<int64_t> index = integers_of(a.view(1, "indices"));
  const TensorView& to = a.view(2 + more, "offset2bag");
  const Array sizes = a.array(3 + more, "bag_size");
  const int64_t rows = a.integer(5 + more, "num_weights", 0);
  const bool by_count = a.flag(6 + more, "scale_grad_by_freq", false);
  const int64_t mode = a.integer(7 + more, "mode", kBagSum);
  if (!dense && a.flag(9, "sparse", false)) throw Undefined("a sparse gradient");
  const size_t scales_at = dense ? 8 : 10;
  const std::optional<Array> scales = a.maybe(scales_at, "per_sample_weights");
  const int64_t skip = a.integer(scales_at + 1, "padding_idx", -1);
  const double half = half_unit(a.view(0, "grad").element);
  const int64_t width = dy.dims[1], bags = dy.dims[0];
  need_rows(index, rows);
  Array out = empty_array({rows, width});
  take_steps(kStepsOfOne * static_cast<double>(index.size()) * static_cast<double>(width));
  Checked<Total> totals(static_cast<size_t>(rows * width));
  if (mode == kBagMax) {
    // Row b, column c: the index that gave the bag's maximum, -1 for none.
    const Checked<int64_t> from = integers_of(a.view(4 + more, "maximum_indices"));
    if (static_cast<int64_t>(from.size()) != bags * width)
      throw Undefined("maximum indices of another shape");
    for (int64_t i = 0; i < bags * width; ++i) {
      const int64_t row = from[static_cast<size_t>(i)];
      // An empty bag has no maximum; its entry may be -1 or left at 0.
      if (row < 0 || sizes.at(i / width).value == 0) continue;
      if (row >= rows) throw Undefined("an index out of range");
      totals[static_cast<size_t>(row * width + i % width)].add(dy.at(i));
    }
  } else {
    Checked<int64_t> bag_of = integers_of(to);
    if (bag_of.size() != index.size()) {
      // The forward call of the sum may leave it empty: the offsets have the bags.
      if (dense) throw Undefined("bags that are not recorded");
      const Checked<int64_t> offsets = integers_of(a.view(2, "offsets"));
      bag_of.assign(index.size(), -1);
      for (size_t i = 0; i < index.size(); ++i) {
        const auto at = std::ranges::upper_bound(offsets, static_cast<int64_t>(i));
        bag_of[i] = at - offsets.begin() - 1;
      }
    }
    Checked<int64_t> uses(static_cast<size_t>(allowed_count({rows})), 0);
    for (const int64_t i : index) ++uses[static_cast<size_t>(i)];
    for (size_t i = 0; i < index.size(); ++i) {
      if (index[i] == skip) continue;
      const int64_t b = bag_of[i];
      if (b < 0 || b >= bags) throw Undefined("a bag out of range");
      for (int64_t c = 0; c < width; ++c) {
        Estimate e = dy.at(b * width + c);
        int roundings = 0;
        if (scales) e = m.mul(e, scales->at(static_cast<int64_t>(i))), ++roundings;
        double divisor = 1;
        if (by_count) divisor = static_cast<double>(uses[static_cast<size_t>(index[i])]);
        if (divisor > 1) e = m.div(e, exactly(divisor)), ++roundings;
        if (mode == kBagMean) e = m.div(e, exactly(std::fmax(1, sizes.at(b).value))), ++roundings;
        // Products of half precision are stored before they are added.
        e.radius += roundings * half * 1.01 * std::fabs(e.value);
        totals[static_cast<size_t>(index[i] * width + c)].add(e);
      }
    }
  }
  for (int64_t i = 0; i < out.size(); ++i) out.set(i, totals[static_cast<size_t>(i)].of(m, half));
  return out;
}
Expected bag_backward(const Arguments& a) { return bag_gradient(a, false); }
Expected bag_dense_backward(const Arguments& a) { return bag_gradient(a, true); }

constexpr Definition kEmbeddingDefinitions[] = {
    {"aten.embedding", embedding},
    {"aten.embedding_dense_backward", embedding_dense_backward},
    {"aten._embedding_bag", bag},
    {"aten._embedding_bag_forward_only", bag},
    {"aten._embedding_bag_backward", bag_backward},
    {"aten._embedding_bag_dense_backward", bag_dense_backward},
    {"torch.nn.functional.embedding", functional_embedding},
};

}  // namespace

std::span<const Definition> embedding_definitions() { return kEmbeddingDefinitions; }

}  // namespace twinrun::aten
