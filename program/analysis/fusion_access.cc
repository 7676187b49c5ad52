// How a fused op reads its operands: broadcasts, reshapes and reductions as accesses to flat
// elements.
#include <algorithm>

#include "program/analysis/fusion.h"

namespace twinrun {

Access access_of(const Graph& graph, ValueId id) {
  const Op& op = graph.op(id);
  const ValueId x = op.operands[0];
  if (op.kind == OpKind::kReshape) return {x, 1, graph.type(x).elements()};
  const Dims &from = graph.type(x).dims, &to = op.type.dims;
  std::vector<bool> walks(to.size(), false);
  for (size_t i = 0; i < from.size(); ++i)
    walks[static_cast<size_t>(op.attrs.dims[i])] = from[i] != 1;
  // From the innermost dimension outwards: repeated dimensions, then walked ones, then repeated
  // ones. An Access cannot express any other order.
  Access access{x, 1, 1};
  int stage = 0;
  for (size_t i = to.size(); i-- > 0;) {
    if (to[i] == 1) continue;
    if (walks[i]) {
      if (stage == 2) return {x, 1, 0};
      stage = 1;
      access.period *= to[i];
    } else if (stage == 0) {
      access.inner *= to[i];
    } else {
      stage = 2;
    }
  }
  if (access.period == 1) access.inner = 1;
  return access;
}

int64_t reduce_columns(const Graph& graph, ValueId id) {
  const Op& op = graph.op(id);
  const Dims& dims = graph.type(op.operands[0]).dims;
  int64_t columns = 1;
  bool kept = false;
  for (size_t i = 0; i < dims.size(); ++i) {
    const bool gone =
        std::ranges::find(op.attrs.dims, static_cast<int64_t>(i)) != op.attrs.dims.end();
    if (gone && kept && dims[i] != 1) return 0;
    if (gone) continue;
    columns *= dims[i];
    kept = kept || dims[i] != 1;
  }
  return columns;
}

}  // namespace twinrun
