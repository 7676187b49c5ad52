// Splits dots of stacked matrices and grouped convolutions into several simple ones. The oracle and
// the screen handle only simple dots and convolutions.
//
//   for (int64_t i = 0; has_parts(op) && i < part_count(op, inputs); ++i) {
//     const Part p = part_of(op, inputs, i); ...
//   }
#pragma once

#include <span>
#include <vector>

#include "program/base/tensor.h"
#include "program/ops/op.h"

namespace twinrun::oracle {

struct Part {
  Op op;
  std::vector<Tensor> inputs;
};

inline bool has_parts(const Op& op) {
  return op.attrs.groups > 1 || (op.kind == OpKind::kDotGeneral && op.type.rank() > 2);
}
int64_t part_count(const Op& op, std::span<const Tensor> inputs);
Part part_of(const Op& op, std::span<const Tensor> inputs, int64_t i);
Tensor part_of_result(const Op& op, const Tensor& output, int64_t i);
// Where the elements of a part are in the whole result: element e of part i is element
// placement_of(op, i)(e).
struct Placement {
  int64_t first, run, stride;  // runs of `run` elements, whose starts are `stride` apart
  int64_t operator()(int64_t e) const { return first + e / run * stride + e % run; }
};
Placement placement_of(const Op& op, int64_t i);

}  // namespace twinrun::oracle
