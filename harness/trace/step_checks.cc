// Follows gradients, weights and inputs from step to step.
#include "harness/trace/step_checks.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "backends/aten/definitions.h"
#include "harness/trace/backward_passes.h"
#include "harness/trace/function_uses.h"
#include "harness/trace/values.h"

namespace twinrun {
namespace {

using aten::Call;
using aten::TensorView;
using aten::Value;

// Whether a call gives something else with what a storage held before. Not all that a node has kept
// counts: the gradient of a batch normalisation in training does not use the running statistics,
// which the next batch writes. Where it is not known, it may.
bool depends_on(const Call& call, const TensorView& before) {
  Call other = call;
  bool is_put_back = true;
  const auto put_back = [&](auto&& self, Value& v) -> void {
    if (v.kind == Value::Kind::kTensor && v.tensor.storage == before.storage) {
      is_put_back = is_put_back && before.data != nullptr && v.tensor.data != nullptr &&
                    v.tensor.element == before.element && aten::size_of(before.element) > 0 &&
                    v.tensor.first == before.first && reach_of(v.tensor) <= reach_of(before);
      v.tensor.data = before.data;
    }
    for (Value& item : v.items) self(self, item);
  };
  for (Value& v : other.args) put_back(put_back, v);
  for (auto& [name, v] : other.kwargs) put_back(put_back, v);
  if (!is_put_back) return true;
  try {
    const auto is = aten::expected_of(call, {}).results, was = aten::expected_of(other, {}).results;
    for (size_t i = 0; i < std::min(is.size(), was.size()); ++i)
      if (is[i] && was[i] && !std::ranges::equal(is[i]->value, was[i]->value)) return true;
    return false;
  } catch (const aten::Undefined&) {
    return true;
  }
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

bool changed_behind_autograd(const TraceFile& trace, int64_t step, int64_t begin, int64_t end,
                             GradientCheck& out) {
  int64_t looks = int64_t{1} << 24;  // a trace may ask for the square of its calls
  const std::vector<ForwardUse> uses = forward_uses(trace, step, end);
  for (int64_t i = begin; i < end; ++i) {
    const Call& call = trace.calls[static_cast<size_t>(i)];
    if (call.failed || call.composed || call.node.empty() || call.forward < step) continue;
    const Call& forward = trace.calls[static_cast<size_t>(call.forward)];
    std::vector<const TensorView*> then = read_by(forward);
    const auto computed = computed_by(forward, then);
    then.insert(then.end(), computed.begin(), computed.end());
    for (const TensorView* t : read_by(call)) {
      const auto of = [&](const TensorView* f) { return f->storage == t->storage; };
      const auto same = [&](const TensorView* f) { return of(f) && f->version == t->version; };
      const auto kept = std::ranges::find_if(then, of);
      if (t->storage == 0 || kept == then.end() || std::ranges::any_of(then, same) ||
          !depends_on(call, **kept))
        continue;
      const auto writes = [&](const TensorView& w) { return w.storage == t->storage; };
      for (int64_t k = i - 1; k > forward.index && --looks > 0; --k) {
        const Call& writer = trace.calls[static_cast<size_t>(k)];
        if (!writer.node.empty() || std::ranges::none_of(writer.written, writes)) continue;
        // What a Function writes in its own forward pass, before that is over, it may keep.
        const auto is_of_it = [&](const ForwardUse& use) {
          return use.first <= k && k < use.end && call.node == *use.name + "Backward";
        };
        if (std::ranges::any_of(uses, is_of_it)) continue;
        out.node = call.node;
        out.place = writer.place;
        out.changed_by = writer.op;
        out.changed = t->type();
        return true;
      }
    }
  }
  return false;
}

TrainedWeights trained_weights(const TraceFile& trace) {
  // By storage: parameters of an optimizer that had a gradient, their gradients, and parameters
  // that had none.
  std::unordered_set<uint64_t> moved, used;
  std::map<uint64_t, std::string> without, with_gradient;  // their types
  TrainedWeights out;
  for (const Call& update : trace.updates) {
    for (const TensorView* t : named_tensors(update, "parameters")) moved.insert(t->storage);
    for (const TensorView* t : named_tensors(update, "gradients")) used.insert(t->storage);
    if (const Value* v = named(update, "frozen");
        v != nullptr && update.step == trace.updates.front().step)
      out.frozen += std::clamp<int64_t>(v->integer, 0, 1 << 20);
    out.asked = out.asked || named(update, "without") != nullptr;
    for (const TensorView* t : named_tensors(update, "without")) {
      if (t->storage == 0) continue;
      if (out.optimizer.empty()) out.optimizer = update.op;
      without.try_emplace(t->storage, t->type());
    }
  }
  std::erase_if(without, [&](const auto& pair) { return moved.contains(pair.first); });
  std::unordered_map<uint64_t, const TensorView*> parameters;
  std::unordered_map<uint64_t, const Call*> reader;
  for (const Call& call : trace.calls) {
    if (call.failed) continue;
    if (call.node.empty() && !call.optimizer) {
      for (const TensorView* t : read_by(call)) {
        const auto is_it = [&](const TensorView& w) { return w.storage == t->storage; };
        if (!t->parameter || !t->requires_gradient || std::ranges::any_of(call.written, is_it))
          continue;
        parameters.try_emplace(t->storage, t);
        // Not one that gives a view of it, where there is another.
        const auto [at, is_new] = reader.try_emplace(t->storage, &call);
        // What is computed with autograd rather than a copy or an average that the script keeps.
        const Call& before = *at->second;
        if (!is_new && (computed_by(before, read_by(before)).empty() ||
                        (before.without_gradient && !call.without_gradient)))
          at->second = &call;
      }
    }
    // A hook may update the weight whose gradient was just added up.
    const bool updates = std::ranges::any_of(
        call.written, [&](const TensorView& w) { return parameters.contains(w.storage); });
    for (const TensorView& w : call.written) with_gradient.erase(w.storage);
    const auto added = contribution_of(call);
    if (updates || !added) continue;
    const uint64_t leaf = added->leaf;
    // Between the gradient and the update a script may give a parameter other memory
    // (sharpness-aware steps).
    if (used.contains(added->view->storage)) continue;
    if (const auto at = parameters.find(leaf); at != parameters.end() && !moved.contains(leaf))
      with_gradient.try_emplace(leaf, at->second->type());
  }
  out.parameters = static_cast<int64_t>(moved.size() + without.size());
  out.without_gradient = static_cast<int64_t>(without.size());
  out.not_updated = static_cast<int64_t>(with_gradient.size());
  for (const auto& [storage, type] : without) {
    const auto at = reader.find(storage);
    if (!out.type.empty() && (at == reader.end() || !out.op.empty())) continue;
    out.type = trace.shown(storage, type);
    if (at == reader.end()) continue;
    out.op = at->second->op;
    out.place = at->second->place;
  }
  if (!with_gradient.empty()) {
    const auto& [storage, type] = *with_gradient.begin();
    out.not_updated_type = trace.shown(storage, type);
    if (const auto at = reader.find(storage); at != reader.end()) out.place = at->second->place;
  }
  std::multiset<std::string> old, replaced_by;
  for (const auto& [storage, type] : without) old.insert(type);
  for (const auto& [storage, type] : with_gradient)
    if (!without.contains(storage)) replaced_by.insert(type);
  // A step of an optimizer without a backward pass is one that a script makes before it trains; so is
  // what writes initial weights.
  bool backward = false, writes = false;
  for (const Call& call : trace.calls) {
    backward = backward || !call.node.empty();
    writes = writes || (backward && std::ranges::any_of(call.written, [&](const TensorView& w) {
                          return call.optimizer || without.contains(w.storage);
                        }));
  }
  out.is_nothing_updated = backward && !writes && moved.empty() && !without.empty();
  // Single numbers and rows have the same shape by chance.
  const bool matrices = std::ranges::any_of(
      old, [](const std::string& type) { return type.find(',') != std::string::npos; });
  out.is_replaced = !out.is_nothing_updated && matrices && old == replaced_by;
  return out;
}

std::optional<OldCopy> old_copy(const TraceFile& trace) {
  std::unordered_set<uint64_t> weights;
  for (const Call& call : trace.calls)
    for (const TensorView* t : read_by(call))
      if (t->parameter && t->requires_gradient) weights.insert(t->storage);
  struct Copy {
    uint64_t weight = 0;
    const Call* made = nullptr;
  };
  std::unordered_map<uint64_t, Copy> copies;
  std::unordered_map<uint64_t, int64_t> updated;  // weights, by the call of their last update
  const auto is_old = [&](const Copy& copy) {
    const auto at = updated.find(copy.weight);
    return at != updated.end() && at->second > copy.made->index;
  };
  for (const Call& call : trace.calls) {
    if (call.failed || call.composed) continue;
    if (call.optimizer) {
      for (const TensorView& w : call.written) updated[w.storage] = call.index;
      continue;
    }
    if (!call.node.empty()) continue;
    const std::vector<const TensorView*> read = read_by(call), given = computed_by(call, read);
    const bool trains = is_followed(call, read);
    for (const TensorView* t : read) {
      const auto at = copies.find(t->storage);
      if (!trains || at == copies.end() || !is_old(at->second) || t->parameter) continue;
      const Call& made = *at->second.made;
      return OldCopy{call.step, made.step, trace.shown(at->second.weight, t->type()), made.op,
                     made.place};
    }
    std::optional<Copy> made;
    const std::string name = base_name(call.op);
    if (read.size() == 1 && given.size() == 1 && !trains && call.written.empty() &&
        (name == "aten.clone" || name == "aten._to_copy")) {
      if (weights.contains(read[0]->storage)) made = {read[0]->storage, &call};
      if (const auto at = copies.find(read[0]->storage); at != copies.end()) made = at->second;
    }
    for (const TensorView* t : given) copies.erase(t->storage);
    if (made) copies[given[0]->storage] = *made;
  }
  return std::nullopt;
}

OtherWrites other_writes(const TraceFile& trace) {
  OtherWrites out;
  // Storages: what an update moved, and the gradients that it was made with.
  std::unordered_set<uint64_t> weights, used;
  auto update = trace.updates.begin();
  for (const Call& call : trace.calls) {
    for (; update != trace.updates.end(); ++update) {
      const Value* first = named(*update, "first");
      if (first == nullptr || first->integer > call.index) break;
      for (const TensorView* t : named_tensors(*update, "parameters")) weights.insert(t->storage);
      for (const TensorView* t : named_tensors(*update, "gradients")) used.insert(t->storage);
    }
    if (call.failed || call.composed || call.optimizer) continue;
    const bool of_script = call.node.empty();
    for (const TensorView& w : call.written) {
      if (of_script && weights.contains(w.storage) && !out.weights)
        out.weights = CallSite{call.op, call.place};
      if (!used.contains(w.storage)) continue;
      if (of_script && !clears_all(call) && !out.gradients)
        out.gradients = CallSite{call.op, call.place};
      used.erase(w.storage);
    }
    if (const auto added = contribution_of(call)) used.erase(added->view->storage);
  }
  return out;
}

namespace {

// Whether the difference that a call gives is squared, or its absolute value is taken, and all of that
// added up to one number.
bool is_summed_up(const TraceFile& trace, const Call& difference) {
  constexpr int kFew = 4;
  uint64_t value = difference.result.tensor.storage;
  int seen = 0;
  for (size_t i = static_cast<size_t>(difference.index) + 1; i < trace.calls.size() && seen < kFew;
       ++i) {
    const Call& call = trace.calls[i];
    if (!is_work(call) || call.args.empty() || call.args[0].tensor.storage != value) continue;
    const std::string name = base_name(call.op);
    if (name == "aten.mean" || name == "aten.sum") return call.result.tensor.dims.empty();
    if (name != "aten.pow" && name != "aten.abs" && name != "aten.mul" && name != "aten._to_copy")
      return false;
    value = call.result.tensor.storage;
    ++seen;
  }
  return false;
}

}  // namespace

std::optional<CallSite> stretched_loss(const TraceFile& trace) {
  static constexpr std::array<std::string_view, 4> kLosses = {
      "aten.mse_loss", "aten.smooth_l1_loss", "aten.huber_loss", "aten.sub"};
  for (const Call& call : trace.calls) {
    if (!is_work(call) || !call.node.empty() || call.optimizer || call.args.size() < 2) continue;
    const TensorView &a = call.args[0].tensor, &b = call.args[1].tensor;
    const std::string name = base_name(call.op);
    if (std::ranges::find(kLosses, name) == kLosses.end() ||
        call.args[0].kind != Value::Kind::kTensor || call.args[1].kind != Value::Kind::kTensor ||
        !(a.requires_gradient || b.requires_gradient))
      continue;
    // Where PyTorch stretches them before the call, they have one shape, and strides of 0.
    bool of_a = false, of_b = false;
    if (a.dims == b.dims) {
      for (size_t d = 0; d < a.dims.size(); ++d) {
        if (a.dims[d] < 2) continue;
        of_a = of_a || (a.strides[d] == 0 && b.strides[d] != 0);
        of_b = of_b || (b.strides[d] == 0 && a.strides[d] != 0);
      }
    } else if (const TensorView& both = call.result.tensor; is_summed_up(trace, call)) {
      of_a = both.elements() > a.elements();
      of_b = both.elements() > b.elements();
    }
    if (of_a && of_b) return CallSite{call.op, call.place};
  }
  return std::nullopt;
}

std::optional<CallSite> written_before_unscaling(const TraceFile& trace) {
  std::unordered_map<uint64_t, const Call*> writer;  // by gradient, since its last backward pass
  for (const Call& call : trace.calls) {
    if (call.failed || call.composed) continue;
    if (call.op.starts_with("aten._amp_foreach_non_finite_check_and_unscale")) {
      for (const TensorView& w : call.written)
        if (const auto at = writer.find(w.storage); at != writer.end())
          return CallSite{at->second->op, at->second->place};
      writer.clear();
      continue;
    }
    for (const TensorView& w : call.written) {
      const std::string name = base_name(call.op);
      // A number of the script's scales what the scaler divides just as well; a tensor is a clip's.
      const bool clips = name.find("clamp") != std::string::npos ||
                         (name.find("mul") != std::string::npos && call.args.size() > 1 &&
                          call.args[1].kind == Value::Kind::kTensor);
      if (!call.node.empty() || call.optimizer || clears_all(call)) {
        writer.erase(w.storage);
      } else if (clips) {
        writer.try_emplace(w.storage, &call);
      }
    }
  }
  return std::nullopt;
}

std::optional<CallSite> unused_backward_pass(const TraceFile& trace) {
  struct Made {
    const Call* first = nullptr;
    size_t gradients = 0, cleared = 0;
    bool is_used = false;
  };
  std::vector<Made> passes;
  std::unordered_map<int64_t, std::pair<size_t, uint64_t>> added;  // by call: the pass and the leaf
  const auto n = static_cast<int64_t>(trace.calls.size());
  for (int64_t begin = 0, end = 0; begin < n; begin = end) {
    const int32_t number = trace.calls[static_cast<size_t>(begin)].step;
    while (end < n && trace.calls[static_cast<size_t>(end)].step == number) ++end;
    for (const Pass& pass : step_of(trace, begin, end).passes) {
      for (const Contribution& c : pass.contributions) added[c.call] = {passes.size(), c.leaf};
      passes.push_back({.first = &trace.calls[static_cast<size_t>(pass.seeds.front())],
                        .gradients = pass.contributions.size()});
    }
  }
  std::unordered_map<uint64_t, std::vector<size_t>>
      waiting;                                       // passes, by the storage of a gradient
  std::unordered_map<uint64_t, uint64_t> buffer_of;  // by leaf
  const auto clear = [&](uint64_t storage) {
    const auto at = waiting.find(storage);
    if (at == waiting.end()) return;
    for (const size_t pass : at->second) ++passes[pass].cleared;
    waiting.erase(at);
  };
  for (const Call& call : trace.calls) {
    if (call.failed || call.composed) continue;
    if (const auto at = added.find(call.index); at != added.end()) {
      std::vector<const TensorView*> given;
      aten::collect(call.result, given);
      if (given.empty()) continue;
      uint64_t& buffer = buffer_of[at->second.second];
      const uint64_t now = given.front()->storage;
      const std::vector<const TensorView*> read = read_by(call);
      if (std::ranges::any_of(read, [&](const TensorView* t) { return t->storage == buffer; })) {
        if (now != buffer) waiting[now] = std::move(waiting[buffer]);  // a sum in other memory
      } else if (buffer != 0) {
        clear(buffer);  // the gradient was None
      }
      buffer = now;
      waiting[buffer].push_back(at->second.first);
      continue;
    }
    if (!call.node.empty()) continue;
    if (clears_all(call)) {
      for (const TensorView& w : call.written) clear(w.storage);
      continue;
    }
    for (const TensorView* t : read_by(call)) {
      const auto at = waiting.find(t->storage);
      if (at == waiting.end()) continue;
      for (const size_t pass : at->second) passes[pass].is_used = true;
    }
  }
  for (const Made& pass : passes)
    if (!pass.is_used && pass.gradients > 0 && pass.cleared == pass.gradients)
      return CallSite{pass.first->op, pass.first->place};
  return std::nullopt;
}

std::optional<CallSite> evaluates(const TraceFile& trace) {
  const Call* first = nullptr;
  for (const Call& call : trace.calls) {
    const std::string name = base_name(call.op);
    if (call.failed || call.composed || !call.node.empty() ||
        name.find("batch_norm") == std::string::npos)
      continue;
    if (!is_followed(call, read_by(call))) continue;
    constexpr size_t kTraining = 5;
    const bool evaluating =
        name.find("_no_") != std::string::npos ||
        (call.args.size() > kTraining && call.args[kTraining].kind == Value::Kind::kBool &&
         call.args[kTraining].integer == 0);
    if (!evaluating) return std::nullopt;
    if (first == nullptr) first = &call;
  }
  if (first == nullptr) return std::nullopt;
  return CallSite{first->op, first->place};
}

bool repeats_its_batch(const TraceFile& trace) {
  std::map<int32_t, std::vector<const TensorView*>> read;  // by step
  for (const Call& call : trace.calls) {
    if (call.failed || call.composed || call.optimizer || !call.node.empty()) continue;
    const std::vector<const TensorView*> all = read_by(call);
    if (std::ranges::none_of(all, [](const TensorView* t) { return t->parameter; })) continue;
    for (const TensorView* t : all) {
      if (t->parameter || t->requires_gradient || t->elements() < 2) continue;
      if (t->data == nullptr) return false;
      read[call.step].push_back(t);
    }
  }
  if (read.size() < 2) return false;
  // Most batches differ in the first tensor.
  const std::vector<const TensorView*>& first = read.begin()->second;
  for (const auto& [step, other] : read)
    if (other.size() != first.size()) return false;
  for (size_t i = 0; i < first.size(); ++i) {
    const Digest digest = digest_of(*first[i]);
    for (auto step = std::next(read.begin()); step != read.end(); ++step)
      if (digest_of(*step->second[i]) != digest) return false;
  }
  return true;
}

}  // namespace twinrun
