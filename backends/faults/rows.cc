// Indexing faults of whole rows (samples, entries of an embedding): rows lost, shifted or swapped.
#include <algorithm>
#include <numeric>

#include "backends/faults/kind.h"
#include "program/base/philox.h"

namespace twinrun {
namespace {

using Unit = FaultMagnitude::Unit;

bool has_rows(const Program& p, ValueId id) {
  const Op& op = op_at(p, id);
  return computed_f32(p, id) && op.type.rank() > 0 && op.type.dims[0] > 1;
}

// Reorders the rows of the outermost dimension: row i of the result comes from row source[i].
void move_rows(Strike& s, const std::vector<int64_t>& source) {
  const Tensor from = s.output;
  const auto to = s.own_output();
  const auto rows = static_cast<int64_t>(source.size()), row = from.elements() / rows;
  for (int64_t r = 0; r < rows; ++r)
    std::copy_n(from.as<float>().begin() + source[static_cast<size_t>(r)] * row, row,
                to.begin() + r * row);
}
std::vector<int64_t> rows_in_order(const Strike& s) {
  std::vector<int64_t> rows(static_cast<size_t>(s.output.dims()[0]));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

void shifted_rows(Strike& s) {
  auto rows = rows_in_order(s);
  const auto n = static_cast<int64_t>(rows.size());
  std::rotate(rows.begin(), rows.end() - static_cast<int64_t>(s.magnitude()) % n, rows.end());
  move_rows(s, rows);
}
void swapped_samples(Strike& s) {
  auto rows = rows_in_order(s);
  const auto n = static_cast<uint32_t>(rows.size());
  const uint32_t a = bounded(s.random(1), n), b = bounded(s.random(2), n - 1);
  std::swap(rows[a], rows[b < a ? b : b + 1]);
  move_rows(s, rows);
}
// Zeroes a share of the rows: at least one, the same rows in every step.
void zero_rows(Strike& s) {
  const auto n = static_cast<uint32_t>(s.output.dims()[0]);
  const auto out = s.own_output();
  const size_t row = out.size() / n;
  const uint32_t sure = bounded(s.random(0, false), n);
  for (uint32_t r = 0; r < n; ++r) {
    const bool hit = r == sure || s.random(1 + r, false) * 0x1p-32 < s.magnitude();
    if (hit) std::fill_n(out.begin() + static_cast<int64_t>(r * row), row, 0.0f);
  }
}

}  // namespace

std::vector<FaultKind> row_faults() {
  return {
      results("zero_rows", "any f32 op with rows", "some rows are 0, always the same ones",
              has_rows, zero_rows,
              {Unit::kNumber,
               0.25,
               "probability that a row is 0 (one row always is)",
               {0, 0.01, 0.1, 0.25, 0.5}}),
      results("shifted_rows", "any f32 op with rows", "rows come some places too late, in a ring",
              has_rows, shifted_rows, {Unit::kCount, 1, "number of places"}),
      results("swapped_samples", "any f32 op with rows", "two rows change places, drawn each step",
              has_rows, swapped_samples),
  };
}

}  // namespace twinrun
