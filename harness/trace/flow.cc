// Walks a trace forwards for memory that changes unseen, and backwards from the weights.
#include "harness/trace/flow.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "harness/trace/values.h"

namespace twinrun {
namespace {

using aten::Call;
using aten::TensorView;
using aten::Value;

// Reads sizes and types of its argument, not its values.
bool reads_no_values(const std::string& name) {
  return gives_no_values(name) || name.ends_with("_like") || name.starts_with("aten.new_") ||
         name.starts_with("aten.sym_") || name == "aten.resize" || name == "aten.set";
}
// Collectives write what they are given, which their schema does not say.
bool is_collective(std::string_view op) {
  return op.starts_with("c10d.") || op.starts_with("symm_mem.");
}
// Launches of which the recorder knows the name only: it may read and write anything.
bool is_launch(std::string_view op) { return op.starts_with("triton."); }

// Storages that a call gives values to: what it writes, and what it returns in memory that it was
// not given.
struct Effects {
  std::vector<const TensorView*> read;
  std::vector<uint64_t> written;
  bool views_only = false;      // returns the memory that it was given, and writes nothing
  bool without_memory = false;  // gives a tensor of a layout whose memory is not known
};
// torch.nn.grad.conv2d_input gives memory without values for the input, of which the gradient of the
// input needs the size alone; conv2d_weight the same for the weight.
void leave_out_unread(const Call& call, std::vector<const TensorView*>& read) {
  if (base_name(call.op) != "aten.convolution_backward" || call.args.size() < 3) return;
  const Value& mask = call.args.back();
  if (mask.kind != Value::Kind::kList || mask.items.size() != 3) return;
  for (const auto& [argument, result] : {std::pair(1, 1), std::pair(2, 0)})
    if (mask.items[static_cast<size_t>(result)].integer == 0)
      std::erase(read, &call.args[static_cast<size_t>(argument)].tensor);
}

Effects effects_of(const Call& call) {
  Effects e;
  e.read = read_by(call);
  leave_out_unread(call, e.read);
  std::unordered_set<uint64_t> given;
  for (const TensorView* t : e.read) given.insert(t->storage);
  for (const TensorView& t : call.written) e.written.push_back(t.storage);
  if (is_collective(call.op)) e.written.insert(e.written.end(), given.begin(), given.end());
  std::vector<const TensorView*> returned;
  aten::collect(call.result, returned);
  bool fresh = false;
  for (const TensorView* t : returned) {
    if (given.contains(t->storage) && t->storage != 0) continue;
    fresh = true;
    e.written.push_back(t->storage);
  }
  e.views_only = !fresh && e.written.empty() && !returned.empty();
  e.without_memory = std::ranges::find(e.written, 0U) != e.written.end();
  return e;
}

void numbers_in(const Value& v, std::unordered_set<double>& to) {
  if (v.kind == Value::Kind::kNumber && std::isfinite(v.number) && v.number != std::trunc(v.number))
    to.insert(v.number);
  for (const Value& item : v.items) numbers_in(item, to);
}

// What is known of a storage while the trace is read from its beginning.
struct Memory {
  int64_t last = -1;      // the last call that read or wrote it
  bool computed = false;  // by a recorded call
  bool empty = false;     // has no values yet
};

class Flow {
 public:
  explicit Flow(const TraceFile& trace) : trace_(trace) {
    effects_.reserve(trace.calls.size());
    for (const Call& call : trace.calls) effects_.push_back(effects_of(call));
  }

  UpdatePath find() {
    find_state();
    std::vector<UnseenWrite> changes = unseen_changes();
    walk_back();
    for (UnseenWrite& c : changes) {
      if (out_.on[static_cast<size_t>(c.call)]) out_.unseen.push_back(std::move(c));
    }
    find_partial_steps();
    return std::move(out_);
  }

 private:
  const Effects& of(const Call& call) const { return effects_[static_cast<size_t>(call.index)]; }

  // Weights, and what an optimizer writes; of a loop without an optimizer, what comes from outside
  // and is written. A tensor that is updated by hand is a weight, too: it requires a gradient, and
  // autograd does not follow what is written to it.
  void find_state() {
    std::unordered_set<uint64_t> parameters, leaves, seen, outside, written, by_hand;
    bool optimizer = false;
    for (const Call& call : trace_.calls) {
      if (call.failed) continue;
      const Effects& e = of(call);
      for (const TensorView* t : e.read) {
        if (t->parameter) parameters.insert(t->storage);
        if (t->requires_gradient) leaves.insert(t->storage);
        if (seen.insert(t->storage).second) outside.insert(t->storage);
      }
      for (const uint64_t s : e.written) {
        seen.insert(s);
        written.insert(s);
      }
      for (const TensorView& w : call.written) {
        if (call.optimizer)
          out_.state.insert(w.storage);
        else if (call.node.empty() && (call.without_gradient || !w.requires_gradient))
          by_hand.insert(w.storage);
        optimizer = optimizer || call.optimizer;
      }
    }
    for (const uint64_t s : parameters)
      if (written.contains(s)) out_.state.insert(s);
    for (const uint64_t s : leaves)
      if (by_hand.contains(s)) out_.state.insert(s);
    if (out_.state.empty()) {
      for (const uint64_t s : outside)
        if (written.contains(s)) out_.state.insert(s);
    }
    out_.state.erase(0);
    // Initial values are written to parameters, too; an update comes after something was computed
    // from them.
    std::unordered_set<uint64_t> used;
    bool updated = optimizer;
    for (const Call& call : trace_.calls) {
      if (updated) break;
      const Effects& e = of(call);
      for (const uint64_t s : e.written) updated = updated || (used.contains(s) && is_state(s));
      if (!e.views_only && !reads_no_values(base_name(call.op))) {
        const std::unordered_set<uint64_t> mine(e.written.begin(), e.written.end());
        for (const TensorView* t : e.read)
          if (!mine.contains(t->storage)) used.insert(t->storage);
      }
    }
    out_.without_update = !updated;
  }
  bool is_state(uint64_t storage) const { return out_.state.contains(storage); }

  std::vector<UnseenWrite> unseen_changes() {
    std::vector<UnseenWrite> found;
    std::unordered_map<uint64_t, Memory> memory;
    for (const Call& call : trace_.calls) {
      if (call.failed) continue;
      const Effects& e = of(call);
      const std::string name = base_name(call.op);
      for (const TensorView* t : e.read) {
        if (t->storage == 0 || t->elements() == 0) continue;
        const auto [at, first] = memory.try_emplace(t->storage);
        Memory& m = at->second;
        const bool writes_it = std::ranges::find(e.written, t->storage) != e.written.end();
        const bool reads = !e.views_only && !reads_no_values(name) && !writes_it;
        if (m.empty && reads) {
          found.push_back({call.index, m.last, true, t->type()});
          m.empty = false;
          m.computed = true;
        } else if (t->changed_unseen && !first && !m.empty && is_no_new_input(*t, m, call)) {
          found.push_back({call.index, m.last, false, t->type()});
        }
        m.last = call.index;
      }
      for (const uint64_t s : e.written) {
        if (s == 0) continue;
        Memory& m = memory[s];
        m.empty = gives_no_values(name);
        m.computed = !m.empty;
        m.last = call.index;
      }
    }
    return found;
  }

  // Between two steps a script may put its next batch into memory that PyTorch shares with it. What
  // is trained is no batch.
  bool is_no_new_input(const TensorView& t, const Memory& m, const Call& call) const {
    return m.computed || t.requires_gradient || is_state(t.storage) ||
           (m.last >= 0 && trace_.calls[static_cast<size_t>(m.last)].step == call.step);
  }

  void walk_back() {
    const auto n = trace_.calls.size();
    out_.on.assign(n, out_.without_update);
    if (out_.without_update) return;
    std::unordered_set<uint64_t> live = out_.state;
    // Numbers that a script read from a tensor and gave to a later call.
    std::unordered_set<double> numbers;
    for (size_t i = n; i-- > 0;) {
      const Call& call = trace_.calls[i];
      if (call.failed) continue;
      const Effects& e = effects_[i];
      bool on = is_launch(call.op) || e.without_memory;
      for (const uint64_t s : e.written) on = on || live.contains(s);
      if (e.views_only)
        for (const TensorView* t : e.read) on = on || live.contains(t->storage);
      if (call.result.kind == Value::Kind::kNumber) on = on || numbers.contains(call.result.number);
      if (!on) continue;
      out_.on[i] = true;
      for (const TensorView* t : e.read) live.insert(t->storage);
      for (const Value& v : call.args) numbers_in(v, numbers);
      for (const auto& [key, v] : call.kwargs) numbers_in(v, numbers);
    }
  }

  // A step whose update begins with gradients from outside of the trace.
  void find_partial_steps() {
    if (out_.without_update) return;
    std::map<int32_t, PartialStep> steps;
    std::unordered_set<int32_t> updated;
    for (const Call& call : trace_.calls) {
      if (!out_.on[static_cast<size_t>(call.index)] || call.failed) continue;
      PartialStep& s = steps[call.step];
      if (call.optimizer && call.node.empty()) {
        if (!call.written.empty()) updated.insert(call.step);
        continue;
      }
      // An optimizer that calls the step's closure (LBFGS, SAM) makes its forward pass, too.
      if (call.optimizer) s.forward = true;
      if (of(call).views_only) continue;
      (call.node.empty() ? s.forward : s.backward) = true;
    }
    for (auto& [step, s] : steps) {
      s.step = step;
      // A backward pass may be written by hand, as calls of a forward pass.
      if (updated.contains(step) && !s.forward) out_.partial.push_back(s);
    }
  }

  const TraceFile& trace_;
  std::vector<Effects> effects_;
  UpdatePath out_;
};

}  // namespace

UpdatePath update_path(const TraceFile& trace) { return Flow(trace).find(); }

bool has_recorded_parts(const TraceFile& trace, const Call& call) {
  std::vector<const TensorView*> returned;
  aten::collect(call.result, returned);
  if (!call.composed || returned.empty()) return false;
  // It is recorded after its parts, which it follows at once.
  for (int64_t i = call.index - 1; i >= 0; --i) {
    const Call& part = trace.calls[static_cast<size_t>(i)];
    if (part.step != call.step) return false;
    std::vector<const TensorView*> of_part;
    aten::collect(part.result, of_part);
    if (!part.composed && std::ranges::any_of(of_part, [&](const TensorView* t) {
          return t->storage != 0 && t->storage == returned[0]->storage;
        }))
      return true;
  }
  return false;
}

}  // namespace twinrun
