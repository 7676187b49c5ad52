// Indexing faults: lost or misplaced terms and elements at tails, padding, strides, borders and
// overlapping writes.
#include <algorithm>
#include <limits>
#include <set>

#include "backends/faults/kind.h"
#include "backends/faults/terms.h"
#include "device/machine.h"
#include "program/base/bits.h"

namespace twinrun {
namespace {

using Unit = FaultMagnitude::Unit;
constexpr auto kByOp = std::numeric_limits<double>::quiet_NaN();

bool dot(const Program& p, ValueId id) { return is_dot(op_at(p, id)); }
// A tensor as `count` matrices of its last two dimensions.
struct Planes {
  int64_t count, rows, columns;
  explicit Planes(const TensorType& type) {
    const Dims& d = type.dims;
    columns = d.empty() ? 1 : d.back();
    rows = d.size() < 2 ? 1 : d[d.size() - 2];
    count = rows * columns == 0 ? 0 : type.elements() / (rows * columns);
  }
};

// The first operand whose planes (last two dimensions) can be read in the wrong order; -1 if there
// is none. `square`: only operands whose shape survives a transposition.
int misread_operand(const Program& p, ValueId id, bool square) {
  const Op& op = op_at(p, id);
  if (class_of(op.kind) == OpClass::kCollective) return -1;
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const TensorType& type = p.graph.type(op.operands[i]);
    const Planes planes(type);
    if (type.dtype != DType::kF32 || planes.rows < 2 || planes.columns < 2) continue;
    if (!square || planes.rows == planes.columns) return static_cast<int>(i);
  }
  return -1;
}
bool has_square(const Program& p, ValueId id) { return misread_operand(p, id, true) >= 0; }
bool has_plane(const Program& p, ValueId id) { return misread_operand(p, id, false) >= 0; }

// ---- tails and padding

// Drops the last partial tile of 128 of the flat k, or a whole tile if 128 divides K. The magnitude
// sets the number of terms instead.
void drop_k_tail(Strike& s) {
  const int64_t k = k_size(s.op(), s.inputs);
  const int64_t partial = k % tpu::kLanes != 0 ? k % tpu::kLanes : std::min(k, tpu::kLanes);
  const int64_t tail =
      s.fault.magnitude ? std::min(k, static_cast<int64_t>(*s.fault.magnitude)) : partial;
  s.inputs = without_k_tail(s.op(), s.inputs, tail);
  s.recompute();
}

int64_t padding_of(const Strike& s) {
  const int64_t k = k_size(s.op(), s.inputs);
  return (k + tpu::kLanes - 1) / tpu::kLanes * tpu::kLanes - k;
}

// The padding cells still hold the first terms of k, so these terms count twice.
void padding_leak(Strike& s) {
  const int64_t k = k_size(s.op(), s.inputs);
  const auto most = s.fault.magnitude ? static_cast<int64_t>(*s.fault.magnitude) : tpu::kLanes;
  const int64_t leaking = std::min({k, padding_of(s), most});
  if (leaking == 0) return;
  const Tensor extra = s.computed(without_k_tail(s.op(), s.inputs, k - leaking));
  const auto out = s.own_output();
  for (size_t i = 0; i < out.size(); ++i) out[i] += extra.as<float>()[i];
}

// The padding cells hold NaN and take part in the sum.
void padding_nan(Strike& s) {
  if (padding_of(s) == 0) return;
  for (float& v : s.own_output()) v = from_bits(kCanonicalNaN);
}

// ---- strides

void transposed(Strike& s) {
  const auto i = static_cast<size_t>(misread_operand(*s.site.program, s.site.id, true));
  const auto x = s.own_input(i);
  const Planes p(s.inputs[i].type());
  const int64_t n = p.rows;
  for (int64_t t = 0; t < p.count; ++t) {
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t c = 0; c < r; ++c)
        std::swap(x[static_cast<size_t>((t * n + r) * n + c)],
                  x[static_cast<size_t>((t * n + c) * n + r)]);
    }
  }
  s.recompute();
}

// Reads a row-major plane as if it were column-major.
void wrong_stride(Strike& s) {
  const auto i = static_cast<size_t>(misread_operand(*s.site.program, s.site.id, false));
  const Tensor original = s.inputs[i];
  const std::span<const float> from = original.as<float>();
  const auto to = s.own_input(i);
  const Planes p(original.type());
  for (int64_t t = 0; t < p.count; ++t) {
    for (int64_t r = 0; r < p.rows; ++r) {
      for (int64_t c = 0; c < p.columns; ++c) {
        const int64_t plane = t * p.rows * p.columns;
        to[static_cast<size_t>(plane + r * p.columns + c)] =
            from[static_cast<size_t>(plane + c * p.rows + r)];
      }
    }
  }
  s.recompute();
}

// ---- edges of the result

bool is_image(const Program& p, ValueId id) {
  const Op& op = op_at(p, id);
  const OpClass c = class_of(op.kind);
  return (c == OpClass::kDot || c == OpClass::kWindow) && is_f32(op) && op.type.rank() == 4 &&
         op.kind != OpKind::kConvolutionKernelGrad && op.kind != OpKind::kDotGeneral;
}
void border(Strike& s) {
  const Dims& d = s.output.dims();
  const auto out = s.own_output();
  for (size_t i = 0; i < out.size(); ++i) {
    const auto e = static_cast<int64_t>(i);
    const int64_t w = e / d[3] % d[2], h = e / d[3] / d[2] % d[1];
    if (h == 0 || w == 0 || h == d[1] - 1 || w == d[2] - 1)
      out[i] *= static_cast<float>(s.magnitude());
  }
}

// The last partial tile of 8 x 128, in the corner, is never written; the memory was zero.
void edge_tile(Strike& s) {
  const Planes p(s.output.type());
  if (p.rows % tpu::kSublanes == 0 && p.columns % tpu::kLanes == 0) return;
  const int64_t row = (p.rows - 1) / tpu::kSublanes * tpu::kSublanes;
  const int64_t column = (p.columns - 1) / tpu::kLanes * tpu::kLanes;
  const auto out = s.own_output();
  for (int64_t e = 0; e < s.output.elements(); ++e) {
    if (e / p.columns % p.rows >= row && e % p.columns >= column) out[static_cast<size_t>(e)] = 0;
  }
}

void lane(Strike& s) {
  const auto n = std::max<size_t>(2, static_cast<size_t>(s.magnitude()));
  const auto out = s.own_output();
  for (size_t i = n - 1; i < out.size(); i += n) out[i] = out[i - 1];
}

// ---- lost and misplaced contributions

bool scatters(const Program& p, ValueId id) {
  const OpKind k = op_at(p, id).kind;
  return has_terms(p, id) &&
         (k == OpKind::kScatterAdd || k == OpKind::kSelectAndScatter || k == OpKind::kAvgPoolGrad);
}
// Changes only elements with several contributions: elsewhere assignment gives the engine's own
// result.
void assign_not_add(Strike& s) {
  const Tensor last =
      add_up(s.op(), s.inputs, {}, [](float, double term) { return static_cast<float>(term); });
  std::vector<int> count(static_cast<size_t>(s.output.elements()), 0);
  for_each_term(s.op(), s.inputs,
                [&](const SumTerm& t) { ++count[static_cast<size_t>(t.result)]; });
  const auto out = s.own_output();
  for (size_t i = 0; i < out.size(); ++i) {
    if (count[i] > 1) out[i] = last.as<float>()[i];
  }
}

bool selects(const Program& p, ValueId id) {
  return op_at(p, id).kind == OpKind::kSelectAndScatter && has_terms(p, id);
}
void wrong_tie(Strike& s) {
  const auto add = [](float sum, double term) { return sum + static_cast<float>(term); };
  const Tensor first = add_up(s.op(), s.inputs, {}, add);
  const Tensor last = add_up(s.op(), s.inputs, {.ties = Ties::kLast}, add);
  const auto out = s.own_output();
  for (size_t i = 0; i < out.size(); ++i) {
    if (to_bits(first.as<float>()[i]) != to_bits(last.as<float>()[i])) out[i] = last.as<float>()[i];
  }
}

bool loses_terms(const Program& p, ValueId id) {
  const Op& op = op_at(p, id);
  if (op.kind == OpKind::kAdd || op.kind == OpKind::kSubtract) return is_f32(op);
  return (op.kind == OpKind::kReduce || op.kind == OpKind::kScatterAdd) && has_terms(p, id);
}
void lost_term(Strike& s) {
  const Op& op = s.op();
  if (op.kind == OpKind::kAdd || op.kind == OpKind::kSubtract) {
    s.output = s.inputs[0];
    return;
  }
  std::set<int64_t> met;  // elements of the result that had their first term
  const size_t last = s.inputs.size() - 1;
  const auto x = s.own_input(last);
  for_each_term(op, s.inputs, [&](const SumTerm& t) {
    if (met.insert(t.result).second) x[static_cast<size_t>(t.b)] = 0;
  });
  s.recompute();
}

}  // namespace

std::vector<FaultKind> indexing_faults() {
  return {
      computes(
          "drop_k_tail", "dots",
          "the last partial tile of 128 of the flat k contributes nothing (a whole tile if 128 "
          "divides K)",
          dot, drop_k_tail, {Unit::kCount, kByOp, "number of terms", {1, 2, 8, 32, 128}}),
      computes(
          "padding_leak", "dots",
          "padding cells of the last tile of 128 of k hold the first terms and count them again; "
          "nothing if 128 divides K",
          dot_f32, padding_leak,
          {Unit::kCount, kByOp, "largest number of cells", {1, 2, 8, 32, 128}}),
      results("padding_nan", "dots", "the padding cells of the last tile of 128 of k hold NaN",
              dot_f32, padding_nan),
      computes("transposed", "a square operand", "the first such one is read transposed",
               has_square, transposed),
      computes("wrong_stride", "an operand of two dimensions or more",
               "the first such one is read column by column", has_plane, wrong_stride),
      results("border", "images that convolutions, pooling and their gradients give",
              "the outer rows and columns times a factor", is_image, border,
              {Unit::kNumber, 0, "factor", {0, 0.5, 0.99, 2}}),
      results("edge_tile", "any f32 op",
              "the last partial tile of 8 x 128 is not written: 0; nothing if whole tiles fill the "
              "result",
              computed_f32, edge_tile),
      results("lane", "any f32 op", "every nth element holds its neighbour's value", computed_f32,
              lane, {Unit::kCount, 128, "number n", {2, 8, 32, 128}}),
      results("assign_not_add", "scatter_add, select_and_scatter, avg_pool_grad",
              "where several contributions meet, only the last one is kept", scatters,
              assign_not_add),
      results("wrong_tie", "select_and_scatter",
              "of equal maxima the last one gets the gradient instead of the first", selects,
              wrong_tie),
      computes("lost_term", "add, subtract, sums and means, scatter_add",
               "an addition gives its first operand; of a sum's terms the first is missing",
               loses_terms, lost_term),
  };
}

}  // namespace twinrun
