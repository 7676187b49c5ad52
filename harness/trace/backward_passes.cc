// Finds the backward passes of a step.
#include "harness/trace/backward_passes.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "harness/trace/values.h"

namespace twinrun {
namespace {

using aten::Call;
using aten::TensorView;
using aten::Value;

bool is_seed(const Call& call) {
  return call.node.empty() && base_name(call.op) == "aten.ones_like" && !call.args.empty() &&
         call.args[0].kind == Value::Kind::kTensor && call.args[0].tensor.elements() == 1 &&
         aten::is_float(call.args[0].tensor.element) && call.args[0].tensor.requires_gradient;
}

// What a backward call is given that is neither computed in its pass nor known to its forward call,
// and has the dimensions of what that gave: a gradient of the script's.
struct Root {
  int64_t forward = -1;
  const TensorView *output = nullptr, *gradient = nullptr;
  bool several = false;
};
Root root_of(const TraceFile& trace, int64_t begin, const Call& call,
             const std::unordered_set<uint64_t>& computed) {
  Root out;
  if (call.forward < begin || call.forward >= call.index) return out;
  const Call& forward = trace.calls[static_cast<size_t>(call.forward)];
  std::vector<const TensorView*> returned;
  aten::collect(forward.result, returned);
  std::unordered_set<uint64_t> known = computed;
  for (const TensorView* t : read_by(forward)) known.insert(t->storage);
  for (const TensorView* t : returned) known.insert(t->storage);
  for (const TensorView* t : read_by(call)) {
    if (!aten::is_float(t->element) || known.contains(t->storage)) continue;
    const auto output = std::ranges::find_if(returned, [&](const TensorView* r) {
      return aten::is_float(r->element) && r->dims == t->dims;
    });
    if (output == returned.end()) continue;
    out.several = out.gradient != nullptr && out.gradient->storage != t->storage;
    out = {call.forward, *output, t, out.several};
  }
  return out;
}

}  // namespace

bool is_work(const Call& call) {
  return !call.failed && !call.composed && (call.op.starts_with("aten.") || call.graph != nullptr);
}

bool clears_all(const Call& call) {
  const std::string name = base_name(call.op);
  return name == "aten.zero" || name == "aten._foreach_zero" || name == "aten.fill" ||
         name == "aten.copy";
}

std::unordered_set<uint64_t> computed_in(const TraceFile& trace, int64_t begin, int64_t end) {
  std::unordered_set<uint64_t> out;
  for (int64_t i = begin; i < end; ++i) {
    const Call& call = trace.calls[static_cast<size_t>(i)];
    if (!is_work(call)) continue;
    for (const TensorView* t : computed_by(call, read_by(call))) out.insert(t->storage);
  }
  return out;
}

std::optional<Contribution> contribution_of(const Call& call) {
  const Value* variable = named(call, "variable");
  if (variable == nullptr || variable->kind != Value::Kind::kInteger) return std::nullopt;
  const std::string name = base_name(call.op);
  const size_t at = name == "aten.detach" || name == "aten.clone" ? 0 : 1;
  if (name != "aten.detach" && name != "aten.clone" && name != "aten.add" && name != "aten.copy")
    return std::nullopt;
  if (call.args.size() <= at || call.args[at].kind != Value::Kind::kTensor) return std::nullopt;
  return Contribution{call.index, static_cast<uint64_t>(variable->integer), &call.args[at].tensor};
}

Step step_of(const TraceFile& trace, int64_t begin, int64_t end) {
  Step out{begin, end, {}, "", {}, false, false};
  std::unordered_map<std::string, std::string> functions;  // by the names of their nodes
  for (const ScriptFunction& f : trace.functions) functions[f.name + "Backward"] = f.name;
  static constexpr const char* kGiven =
      "a backward pass begins with a gradient that the script gives";
  std::vector<int64_t> seeds;
  bool inside = false;
  std::unordered_set<uint64_t> computed;  // in the last pass
  for (int64_t i = begin; i < end; ++i) {
    const Call& call = trace.calls[static_cast<size_t>(i)];
    out.has_regions = out.has_regions || call.graph != nullptr;
    if ((call.op == "torch.compile.inductor" && call.graph == nullptr) ||
        call.op.starts_with("triton."))
      out.why = "regions that torch.compile made are not evaluated again";
    if (call.op.starts_with("c10d") || call.op.starts_with("_c10d"))
      out.why = "its gradient depends on other processes";
    if (call.left_out) out.why = "bytes were left out of the trace for the budget";
    if (!is_work(call)) continue;
    for (const TensorView* t : read_by(call))
      out.has_half = out.has_half || aten::is_half(t->element);
    if (is_seed(call)) {
      seeds.push_back(i);
      inside = false;
      continue;
    }
    if (call.node.empty()) {
      if (!call.optimizer && !seeds.empty() && !inside) seeds.clear();
      inside = false;
      continue;
    }
    if (!inside && !seeds.empty()) {
      Pass pass{i, i + 1, {}, seeds, nullptr, {}};
      for (const int64_t s : seeds)
        pass.losses.push_back(&trace.calls[static_cast<size_t>(s)].args[0].tensor);
      out.passes.push_back(std::move(pass));
      seeds.clear();
      computed.clear();
    } else if (!inside && std::ranges::none_of(read_by(call), [&](const TensorView* t) {
                 return computed.contains(t->storage);
               })) {
      computed.clear();
      if (const Root root = root_of(trace, begin, call, computed); root.gradient && !root.several) {
        out.passes.push_back({i, i + 1, {root.output}, {root.forward}, root.gradient, {}});
        computed.insert(root.gradient->storage);
      } else {
        out.why = kGiven;
      }
    }
    // Whether it begins with several is not always to be seen.
    if (!out.passes.empty() && out.passes.back().given != nullptr &&
        root_of(trace, begin, call, computed).gradient != nullptr)
      out.why = kGiven;
    inside = true;
    std::vector<const TensorView*> returned;
    aten::collect(call.result, returned);
    for (const TensorView* t : returned) computed.insert(t->storage);
    if (const auto f = functions.find(call.node); f != functions.end())
      out.functions.insert(f->second);
    const auto c = contribution_of(call);
    if (out.passes.empty()) continue;
    Pass& pass = out.passes.back();
    pass.end = i + 1;
    if (!c) continue;
    const auto same = [&](const Contribution& other) { return other.leaf == c->leaf; };
    const auto known = std::ranges::find_if(pass.contributions, same);
    if (known == pass.contributions.end()) {
      pass.contributions.push_back(*c);
    } else if (known->view->dims != c->view->dims) {
      out.why = "several weights lie in one storage";
    }
  }
  std::unordered_set<uint64_t> given, made,
      weights;  // before the pass; made: without autograd, too
  int64_t i = begin;
  for (Pass& pass : out.passes) {
    for (; i < pass.begin; ++i) {
      const Call& call = trace.calls[static_cast<size_t>(i)];
      const auto read = read_by(call);
      for (const TensorView* t : read)
        if (t->parameter) weights.insert(t->storage);
      if (!is_work(call) || call.optimizer) continue;
      for (const TensorView* t : computed_by(call, read)) {
        made.insert(t->storage);
        if (is_followed(call, read)) given.insert(t->storage);
      }
    }
    // What a Function gave is no other: a checkpoint within autograd detaches it.
    for (int64_t k = pass.begin; k < pass.end; ++k) {
      const Call& call = trace.calls[static_cast<size_t>(k)];
      if (base_name(call.op) != "aten.detach" || !call.node.starts_with("torch.utils.checkpoint."))
        continue;
      for (const TensorView* t : read_by(call))
        if (made.contains(t->storage)) given.insert(t->storage);
    }
    // A copy of what the forward pass computed, as checkpointing makes it, is no weight.
    std::erase_if(pass.contributions, [&](const Contribution& c) {
      return given.contains(c.leaf) && !weights.contains(c.leaf);
    });
  }
  std::erase_if(out.passes, [](const Pass& p) { return p.contributions.empty(); });
  return out;
}

std::vector<std::map<int64_t, int64_t>> drawn_again(const TraceFile& trace, int64_t step,
                                                    const Pass& pass) {
  using Kind = std::pair<std::string, aten::Dims>;
  std::map<Kind, std::vector<int64_t>> forward, backward;
  for (int64_t i = step; i < pass.end; ++i) {
    const Call& call = trace.calls[static_cast<size_t>(i)];
    if (!is_work(call) || !draws_at_random(call.op)) continue;
    const auto given = computed_by(call, read_by(call));
    if (!given.empty())
      (i < pass.begin ? forward : backward)[{call.op, given[0]->dims}].push_back(i);
  }
  std::map<int64_t, int64_t> same, reversed;
  for (const auto& [kind, again] : backward) {
    const auto first = forward.find(kind);
    if (first == forward.end() || first->second.size() != again.size()) continue;
    for (size_t k = 0; k < again.size(); ++k) {
      same[again[k]] = first->second[k];
      reversed[again[k]] = first->second[again.size() - 1 - k];
    }
  }
  if (same.empty()) return {};
  if (same == reversed) return {same};
  return {same, reversed};
}

std::vector<std::vector<Pass>> groups_of(const TraceFile& trace, const Step& step) {
  std::vector<std::vector<Pass>> out;
  for (const Pass& pass : step.passes) {
    bool together = !out.empty() && out.back().back().leaves() == pass.leaves();
    for (int64_t i = out.empty() ? 0 : out.back().back().end; together && i < pass.begin; ++i) {
      const Call& call = trace.calls[static_cast<size_t>(i)];
      together = !(call.optimizer && call.node.empty() && !call.written.empty());
    }
    if (together) {
      out.back().push_back(pass);
    } else {
      out.push_back({pass});
    }
  }
  return out;
}

int64_t unscaled_passes(const TraceFile& trace, const Step& step, const std::vector<Pass>& group) {
  const auto scales = [](const Call& call) {
    const std::string name = base_name(call.op);
    return name == "aten.div" || name == "aten.mul" || name == "aten._foreach_div" ||
           name == "aten._foreach_mul" || name == "aten.copy";
  };
  const auto place = [&](const Pass& pass) -> const std::string& {
    return trace.calls[static_cast<size_t>(pass.seeds.front())].place;
  };
  const auto adds = [&](const Contribution& c) {
    return base_name(trace.calls[static_cast<size_t>(c.call)].op) == "aten.add";
  };
  const auto is_cleared_before = [&](const Pass& pass) {
    std::unordered_set<uint64_t> sums;
    for (const Contribution& c : pass.contributions)
      if (adds(c)) sums.insert(trace.calls[static_cast<size_t>(c.call)].args[0].tensor.storage);
    for (int64_t i = (&pass - 1)->end; i < pass.begin; ++i) {
      const Call& call = trace.calls[static_cast<size_t>(i)];
      if (clears_all(call) && std::ranges::any_of(call.written, [&](const TensorView& w) {
            return sums.contains(w.storage);
          }))
        return true;
    }
    return false;
  };
  if (group.size() < 2) return 0;
  for (const Pass& pass : group) {
    if (pass.given != nullptr || pass.losses.size() != 1 || place(pass) != place(group.front()))
      return 0;
    // Where the gradient of the pass before was cleared, nothing is added to it.
    if (&pass != &group.front() &&
        (std::ranges::none_of(pass.contributions, adds) || is_cleared_before(pass)))
      return 0;
    for (int64_t i = pass.begin; i-- > step.begin;) {
      const Call& call = trace.calls[static_cast<size_t>(i)];
      const auto given = computed_by(call, read_by(call));
      if (std::ranges::none_of(
              given, [&](const TensorView* t) { return t->storage == pass.losses[0]->storage; }))
        continue;
      if (scales(call)) return 0;
      break;
    }
  }
  // A gradient that is written after its pass is scaled. Not by its own size: a clip divides by nothing
  // that the passes are counted in.
  std::unordered_set<uint64_t> gradients, of_gradients;
  for (const Contribution& c : group.back().contributions) {
    const Call& call = trace.calls[static_cast<size_t>(c.call)];
    for (const TensorView* t : computed_by(call, read_by(call))) gradients.insert(t->storage);
  }
  for (int64_t i = group.back().end; i < step.end; ++i) {
    const Call& call = trace.calls[static_cast<size_t>(i)];
    const auto read = read_by(call);
    const auto is_size = [&](const TensorView* t) { return of_gradients.contains(t->storage); };
    const bool clips = base_name(call.op) != "aten.copy" && std::ranges::any_of(read, is_size);
    for (const TensorView& w : call.written)
      if (gradients.contains(w.storage) && scales(call) && !clips) return 0;
    const bool follows = std::ranges::any_of(
        read, [&](const TensorView* t) { return gradients.contains(t->storage) || is_size(t); });
    for (const TensorView* t : computed_by(call, read))
      if (follows && !gradients.contains(t->storage)) of_gradients.insert(t->storage);
  }
  return static_cast<int64_t>(group.size());
}

double size_of_step(const TraceFile& trace, const Step& step) {
  double numbers = 0;
  for (int64_t i = step.begin; i < step.end; ++i) {
    const Call& call = trace.calls[static_cast<size_t>(i)];
    if (!is_work(call) || call.optimizer) continue;
    for (const TensorView* t : read_by(call)) numbers += static_cast<double>(t->elements());
  }
  return numbers;
}

}  // namespace twinrun
