// Finds the uses of Functions of the script in a step: what each was given and gave is recorded.
#include "harness/trace/function_uses.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>

#include "harness/trace/backward_graph.h"
#include "harness/trace/values.h"

namespace twinrun {
namespace {

using aten::Call;
using aten::TensorView;
using aten::Value;

int64_t integer_of(const Call& record, std::string_view name) {
  const Value* v = named(record, name);
  return v != nullptr && v->kind == Value::Kind::kInteger ? v->integer : -1;
}
// Where there is none, it is not of floating point, or PyTorch had a None: nullptr.
const TensorView* float_at(const std::vector<Value>& values, size_t i) {
  if (i >= values.size() || values[i].kind != Value::Kind::kTensor) return nullptr;
  const TensorView& t = values[i].tensor;
  return aten::is_float(t.element) ? &t : nullptr;
}

// Two operands may be the same tensor: then its gradient is the sum of both.
void add_input(const TensorView& view, const TensorView* gradient, FunctionUse& use) {
  const auto is_it = [&](const FunctionUse::Input& i) {
    return i.view->storage == view.storage && i.view->first == view.first &&
           i.view->dims == view.dims && i.view->strides == view.strides;
  };
  auto at = std::ranges::find_if(use.inputs, is_it);
  if (at == use.inputs.end()) at = use.inputs.insert(at, FunctionUse::Input{&view, {}});
  if (gradient != nullptr) at->gradients.push_back(gradient);
}

FunctionUse use_of(const ScriptFunction& function, const Call& forward, const Call& backward) {
  FunctionUse use;
  use.function = &function;
  use.is_found = true;
  use.first = integer_of(forward, "first");
  use.last = forward.index - 1;
  use.begin = integer_of(backward, "first");
  use.end = backward.index;
  const std::vector<Value>& given = named(forward, "inputs")->items;
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i].kind != Value::Kind::kTensor || !given[i].tensor.requires_gradient) continue;
    if (const TensorView* input = float_at(given, i); input != nullptr) {
      add_input(*input, float_at(backward.result.items, i), use);
    } else {  // of complex numbers
      use.inputs.clear();
      return use;
    }
  }
  for (size_t i = 0; i < forward.result.items.size(); ++i) {
    const TensorView* output = float_at(forward.result.items, i);
    const TensorView* gradient = float_at(named(backward, "gradients")->items, i);
    if (output != nullptr && gradient != nullptr) use.outputs.emplace_back(output, gradient);
  }
  return use;
}

}  // namespace

std::vector<ForwardUse> forward_uses(const TraceFile& trace, int64_t begin, int64_t end) {
  std::vector<ForwardUse> out;
  int64_t looks = int64_t{1} << 24;  // a trace may say that its uses lie within each other
  for (const Call& record : trace.uses) {
    const Value* inputs = named(record, "inputs");
    const int64_t first = integer_of(record, "first");
    if (inputs == nullptr || first < 0 || first > record.index || first >= end ||
        record.index < begin)
      continue;
    ForwardUse& use = out.emplace_back();
    use.name = &record.op;
    use.first = first;
    use.end = record.index;
    std::unordered_set<uint64_t> known;
    for (size_t i = 0; i < inputs->items.size(); ++i) {
      const TensorView* t = float_at(inputs->items, i);
      if (t == nullptr) continue;
      known.insert(t->storage);
      if (t->requires_gradient) {
        use.followed.insert(t->storage);
      } else {
        use.stopped.insert(t->storage);
      }
    }
    looks -= record.index - first;
    if (looks > 0) known.merge(computed_in(trace, first, record.index));
    for (size_t i = 0; i < record.result.items.size() && looks > 0; ++i)
      if (const TensorView* t = float_at(record.result.items, i))
        use.is_opaque = use.is_opaque || !known.contains(t->storage);
    std::erase_if(use.stopped, [&](uint64_t storage) { return !use.followed.contains(storage); });
  }
  return out;
}

const ScriptFunction* writer_of_given_gradient(const TraceFile& trace, int64_t step,
                                               const BackwardGraph& graph, const Pass& pass) {
  const auto& nodes = graph.nodes();
  // By the first call of a Function's backward pass.
  std::map<int64_t, std::set<uint64_t>> operands;
  for (const FunctionUse& use : uses_of(trace, step, pass))
    for (const FunctionUse::Input& input : use.inputs)
      operands[use.begin].insert(input.view->storage);
  for (size_t k = 0; k < nodes.size(); ++k) {
    if (nodes[k].function == nullptr || nodes[k].function->name.starts_with("torch.")) continue;
    const auto mine = operands.find(nodes[k].first);
    if (mine == operands.end()) continue;
    std::set<uint64_t> given, written;
    for (const auto& [view, reader] : graph.given_to(k)) given.insert(view->storage);
    for (int64_t i = nodes[k].first; i <= nodes[k].last; ++i)
      for (const TensorView& w : trace.calls[static_cast<size_t>(i)].written)
        if (given.contains(w.storage)) written.insert(w.storage);
    for (size_t r = k + 1; r < nodes.size() && !written.empty(); ++r) {
      if (nodes[r].output == nullptr || mine->second.contains(nodes[r].output->storage)) continue;
      for (const auto& [view, reader] : graph.given_to(r))
        if (written.contains(view->storage) &&
            graph.maker(view->storage, nodes[r].first) == static_cast<int64_t>(k))
          return nodes[k].function;
    }
  }
  return nullptr;
}

std::vector<FunctionUse> uses_of(const TraceFile& trace, int64_t step, const Pass& pass) {
  std::vector<FunctionUse> out;
  const auto unknown = [&](const ScriptFunction& f) { out.emplace_back().function = &f; };
  std::map<int64_t, const Call*> forward;  // by the use's number
  for (const Call& record : trace.uses) {
    const int64_t number = integer_of(record, "use"), first = integer_of(record, "first");
    if (named(record, "inputs") != nullptr) forward[number] = &record;
    const ScriptFunction* function = trace.function_named(record.op);
    if (named(record, "gradients") == nullptr || function == nullptr || first < pass.begin ||
        first > record.index || record.index > pass.end)
      continue;
    const auto of = forward.find(number);
    const int64_t begin = of == forward.end() ? -1 : integer_of(*of->second, "first");
    const bool is_known = begin >= step && begin <= of->second->index &&
                          of->second->index <= first && of->second->op == record.op;
    if (is_known) {
      out.push_back(use_of(*function, *of->second, record));
    } else {
      unknown(*function);
    }
  }
  // A node whose backward pass is not recorded. The engine works in a node's name, too: it makes zeros
  // of what was not used, and casts, sums and adds up what the node gave.
  static constexpr std::array<std::string_view, 7> kOfEngine = {
      "aten.zeros", "aten._to_copy", "aten.sum",  "aten.add",
      "aten.view",  "aten.detach",   "aten.clone"};
  std::set<const ScriptFunction*> seen;
  for (int64_t i = pass.begin; i < pass.end; ++i) {
    const Call& call = trace.calls[static_cast<size_t>(i)];
    const ScriptFunction* f = is_work(call) ? function_of_node(trace, call.node) : nullptr;
    const bool of_engine = std::ranges::find(kOfEngine, base_name(call.op)) != kOfEngine.end();
    const auto covers = [&](const FunctionUse& use) {
      return use.function == f && (of_engine || (use.begin <= i && i < use.end));
    };
    if (f != nullptr && std::ranges::none_of(out, covers) && seen.insert(f).second) unknown(*f);
  }
  for (const ScriptFunction& f : trace.functions)
    if (f.is_compiled) unknown(f);
  return out;
}

}  // namespace twinrun
