// Lowers dot with any batch and contracting dimensions: transposes and reshapes the operands to
// [batch, m, k] . [batch, k, n], unless they are matrices under leading batch dimensions already.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "program/import/site.h"

namespace twinrun {
namespace {

struct Side {
  Dims batch, contract, other;  // indices of dimensions
  Dims sizes(const Dims& dims, const Dims& which) const {
    Dims out;
    for (int64_t d : which) out.push_back(dims[static_cast<size_t>(d)]);
    return out;
  }
};

Side side(const Site& s, size_t operand, const char* prefix) {
  Side out;
  const int64_t rank = s.type(operand).rank();
  out.batch = list_attribute(s.in, std::string(prefix) + "_batch_dims", false);
  out.contract = list_attribute(s.in, std::string(prefix) + "_contracting_dims", false);
  std::vector<int> seen(static_cast<size_t>(rank), 0);
  for (const Dims* list : {&out.batch, &out.contract}) {
    for (int64_t d : *list) {
      if (d < 0 || d >= rank || seen[static_cast<size_t>(d)]++ > 0)
        s.refuse(fmt::format("{} dimensions {} of rank {}", prefix, to_string(*list), rank));
    }
  }
  for (int64_t d = 0; d < rank; ++d) {
    if (seen[static_cast<size_t>(d)] == 0) out.other.push_back(d);
  }
  return out;
}

Dims counted(int64_t n) {
  Dims out(static_cast<size_t>(n));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

// A matrix under leading batch dimensions; `contract` is the one of its two dimensions that is
// summed over.
struct Matrix {
  ValueId value;
  int contract;
};

Matrix matrix(Site& s, ValueId x, const Side& side, int preferred, const char* local) {
  const TensorType t = s.b.type(x);
  const auto batch = static_cast<int64_t>(side.batch.size());
  const bool plain =
      side.batch == counted(batch) && t.rank() == batch + 2 && side.contract.size() == 1;
  if (plain) return {x, static_cast<int>(side.contract[0] - batch)};
  Dims order = side.batch;
  const Dims& first = preferred == 1 ? side.other : side.contract;
  const Dims& second = preferred == 1 ? side.contract : side.other;
  order.insert(order.end(), first.begin(), first.end());
  order.insert(order.end(), second.begin(), second.end());
  Dims dims = side.sizes(t.dims, side.batch);
  dims.push_back(product(side.sizes(t.dims, first)));
  dims.push_back(product(side.sizes(t.dims, second)));
  const ValueId moved = s.transpose(x, order, std::string(local) + "_transpose");
  return {s.reshape(moved, dims, std::string(local) + "_reshape"), preferred};
}

ValueId dot(Site& s) {
  s.expect(2);
  if (!is_floating(s.type(0).dtype) || !is_floating(s.type(1).dtype))
    s.refuse(fmt::format("dot of {} and {}; allowed: f32, bf16", to_string(s.type(0)),
                         to_string(s.type(1))));
  const Side l = side(s, 0, "lhs"), r = side(s, 1, "rhs");
  const Dims ld = s.type(0).dims, rd = s.type(1).dims;
  if (l.sizes(ld, l.batch) != r.sizes(rd, r.batch) ||
      l.sizes(ld, l.contract) != r.sizes(rd, r.contract))
    s.refuse(fmt::format("dot of {} and {}: batch or contracted sizes differ", to_string(s.type(0)),
                         to_string(s.type(1))));
  const std::string precision = text_attribute(s.in, "operand_precision");
  if (precision.find("high") != std::string::npos)
    s.note(
        "operand_precision of a dot is not followed: the engine's precision holds for all "
        "(tpu.precision)");
  // A dot of bf16 with an f32 result sums in f32: the factors are converted to f32, which is exact,
  // and our dot of f32 sums in f32.
  DType work = s.type(0).dtype == s.type(1).dtype ? s.type(0).dtype : DType::kF32;
  if (s.result().dtype == DType::kF32) work = DType::kF32;
  const ValueId wide_lhs = s.convert(s.x[0], work, "lhs_f32");
  const ValueId wide_rhs = s.convert(s.x[1], work, "rhs_f32");
  const Matrix a = matrix(s, wide_lhs, l, 1, "lhs"), b = matrix(s, wide_rhs, r, 0, "rhs");
  ValueId y =
      s.b.dot(a.value, b.value, a.contract, b.contract, s.name(), static_cast<int>(l.batch.size()));
  Dims dims = l.sizes(ld, l.batch);
  for (int64_t d : l.other) dims.push_back(ld[static_cast<size_t>(d)]);
  for (int64_t d : r.other) dims.push_back(rd[static_cast<size_t>(d)]);
  y = s.reshape(y, dims, "result");
  return s.convert(y, s.result().dtype, "result_dtype");
}

}  // namespace

void add_dot(LoweringTable& table) { table["dot"] = dot; }

}  // namespace twinrun
