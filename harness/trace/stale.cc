// Looks for gradients that go through a forward call of an earlier step.
#include "harness/trace/stale.h"

#include <unordered_map>
#include <unordered_set>

#include "harness/trace/values.h"

namespace twinrun {

using aten::Call;
using aten::TensorView;

StaleReads stale_reads(const TraceFile& trace) {
  std::unordered_map<uint64_t, int64_t> updated;  // weights, by the call of their last update
  std::unordered_set<uint64_t> found;
  StaleReads out;
  for (const Call& call : trace.calls) {
    if (call.failed || call.composed) continue;
    if (call.optimizer)
      for (const TensorView& w : call.written) updated[w.storage] = call.index;
    if (call.node.empty() || call.forward < 0) continue;
    const Call& forward = trace.calls[static_cast<size_t>(call.forward)];
    out.asked = out.asked || (forward.step > 0 && forward.step == call.step);
    if (forward.step >= call.step) continue;
    for (const TensorView* t : read_by(forward)) {
      const auto update = updated.find(t->storage);
      if (!t->parameter || !t->requires_gradient || update == updated.end() ||
          update->second < call.forward || !found.insert(t->storage).second)
        continue;
      if (out.weights++ > 0) continue;
      out.step = call.step;
      out.op = forward.op;
      out.place = forward.place;
      out.made_in = forward.step;
    }
  }
  return out;
}

}  // namespace twinrun
