// Follows the buffers of gradients from update to update.
#include "harness/trace/uncleared.h"

#include <algorithm>
#include <unordered_map>

#include "harness/trace/values.h"

namespace twinrun {
namespace {

using aten::Call;
using aten::TensorView;
using aten::Value;

bool clears_all(const Call& call) {
  const std::string name = base_name(call.op);
  return name == "aten.zero" || name == "aten._foreach_zero" || name == "aten.fill" ||
         name == "aten.copy";
}

}  // namespace

std::optional<UnclearedGradients> uncleared_gradients(const TraceFile& trace) {
  struct Buffer {
    uint64_t storage = 0;
    bool is_used = false;         // an update was made with it
    const Call* added = nullptr;  // the call that added to it after that
  };
  std::unordered_map<uint64_t, Buffer> of_leaf;
  std::unordered_map<uint64_t, uint64_t> leaf_of;  // by the buffer's storage
  const bool optimizes = std::ranges::any_of(trace.calls, &Call::optimizer);
  UnclearedGradients out;
  for (const Call& call : trace.calls) {
    if (call.failed || call.composed) continue;
    if (out.weights > 0 && call.step > out.step + 1) break;
    const Value* variable = named(call, "variable");
    if (variable != nullptr && variable->kind == Value::Kind::kInteger) {
      const auto leaf = static_cast<uint64_t>(variable->integer);
      Buffer& b = of_leaf[leaf];
      const bool adds = base_name(call.op) == "aten.add" && !call.args.empty() &&
                        call.args[0].kind == Value::Kind::kTensor &&
                        call.args[0].tensor.storage == b.storage;
      if (adds && b.is_used && b.added == nullptr) b.added = &call;
      std::vector<const TensorView*> given;
      aten::collect(call.result, given);
      if (given.empty()) continue;
      if (!adds) b = {};
      b.storage = given.front()->storage;
      leaf_of[b.storage] = leaf;
      continue;
    }
    for (const TensorView& w : call.written) {
      // Clipping and scaling change gradients before an update, and optimizers may during it. Whoever
      // writes into the buffer after the update, before anything is added, knows what he does.
      if (const auto leaf = leaf_of.find(w.storage); leaf != leaf_of.end()) {
        Buffer& b = of_leaf[leaf->second];
        const bool clears = clears_all(call) || (!call.optimizer && b.added == nullptr);
        if (b.storage == w.storage && clears) b = {b.storage};
      }
      const bool updates = optimizes ? call.optimizer : call.node.empty() && call.without_gradient;
      const auto of = of_leaf.find(w.storage);
      if (!updates || of == of_leaf.end()) continue;
      Buffer& b = of->second;
      // Another model's loss may add to these gradients, too, before they are cleared.
      if (b.added != nullptr) {
        if (out.weights == 0) {
          out.step = b.added->step;
          out.place = b.added->place;
        }
        out.weights += b.added->step == out.step ? 1 : 0;
        b.added = nullptr;
      }
      b.is_used = b.storage != 0;
    }
  }
  if (out.weights == 0) return std::nullopt;
  return out;
}

}  // namespace twinrun
