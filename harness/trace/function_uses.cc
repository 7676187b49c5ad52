// Finds the uses of Functions of the script in a step.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "harness/trace/backward_graph.h"
#include "harness/trace/function_check.h"
#include "harness/trace/values.h"

namespace twinrun {
namespace {

using aten::Call;
using aten::TensorView;

// "file:12 in forward: y = ..." gives the file and the line.
std::pair<std::string_view, int64_t> file_and_line(std::string_view frame) {
  const std::string_view place = frame.substr(0, frame.find(" in "));
  const size_t colon = place.rfind(':');
  int64_t line = 0;
  if (colon != std::string_view::npos)
    for (const char c : place.substr(colon + 1)) line = 10 * line + (c - '0');
  return {place.substr(0, colon), line};
}

// The Function in whose forward pass a call is made: of several within each other the outermost,
// which is the one that autograd follows. With the lines that apply it, which tell the calls of one
// use from those of the next.
struct Maker {
  const ScriptFunction* function = nullptr;
  std::string_view applied;
  bool operator==(const Maker&) const = default;
};
Maker maker_of(const TraceFile& trace, int64_t call) {
  const std::string_view place = trace.calls[static_cast<size_t>(call)].place;
  Maker found;
  for (size_t begin = 0; begin < place.size();) {
    const size_t end = std::min(place.find('\n', begin), place.size());
    const auto [file, line] = file_and_line(place.substr(begin, end - begin));
    for (const ScriptFunction& f : trace.functions)
      if (f.file == file && f.first <= line && line <= f.last) found = {&f, place.substr(end)};
    begin = end + 1;
  }
  return found;
}

// A call that may be one of a Function's forward pass; also of one that a backward pass computes
// again, as checkpointing does.
bool is_within(const TraceFile& trace, int64_t i) {
  const Call& c = trace.calls[static_cast<size_t>(i)];
  return c.composed || (c.without_gradient && !c.optimizer &&
                        (c.node.empty() || maker_of(trace, i).function != nullptr));
}

// The last call of the forward pass of a Function, of which `first` is the first.
int64_t last_of(const TraceFile& trace, int64_t first) {
  const Maker made_by = maker_of(trace, first);
  const std::string& node = trace.calls[static_cast<size_t>(first)].node;
  int64_t last = first;
  while (last + 1 < static_cast<int64_t>(trace.calls.size()) && is_within(trace, last + 1) &&
         trace.calls[static_cast<size_t>(last + 1)].node == node &&
         maker_of(trace, last + 1) == made_by)
    ++last;
  return last;
}

// Finds the uses of Functions.
class Uses {
 public:
  Uses(const TraceFile& trace, int64_t step, const Pass& pass)
      : trace_(trace), step_(step), pass_(pass), graph_(trace, step, pass), leaves_(pass.leaves()) {
    for (const BackwardNode& node : graph_.nodes()) {
      start_of_node_.push_back(node.function == nullptr ? -1 : start_of(node));
      if (start_of_node_.back() >= 0) starts_.insert(start_of_node_.back());
    }
    if (starts_.empty()) return;
    readers_.resize(graph_.nodes().size());
    for (const Contribution& c : pass.contributions)
      if (const int64_t k = graph_.maker(c.view->storage, c.call); k >= 0)
        readers_[static_cast<size_t>(k)].leaves.emplace_back(c.leaf, c.view);
    for (size_t reader = 0; reader < graph_.nodes().size(); ++reader) {
      for (const auto& [view, call] : graph_.given_to(reader))
        if (const int64_t k = graph_.maker(view->storage, graph_.nodes()[reader].first); k >= 0)
          readers_[static_cast<size_t>(k)].nodes.emplace_back(reader, view);
    }
  }

  std::vector<FunctionUse> all() {
    std::vector<FunctionUse> out;
    for (size_t k = 0; k < graph_.nodes().size(); ++k)
      if (graph_.nodes()[k].function != nullptr) out.push_back(heard(k));
    for (const ScriptFunction* f : graph_.silent()) silent(*f, out);
    return out;
  }

 private:
  // The first call of the forward pass of a node, -1 if it is not known. A node is made before its
  // forward pass runs: where that begins with another Function, the last call before it for which
  // autograd made a node is recorded as the first.
  int64_t start_of(const BackwardNode& node) const {
    const int64_t end = node.forward >= pass_.begin ? node.first : pass_.begin;
    for (int64_t i = std::max(node.forward, step_); i < end; ++i) {
      const Call& call = trace_.calls[static_cast<size_t>(i)];
      if (const ScriptFunction* f = maker_of(trace_, i).function)
        return f->name == node.function->name ? i : -1;
      const bool makes_node =
          base_name(call.op) != "aten.detach" && is_followed(call, read_by(call));
      if (i > node.forward && makes_node) return -1;
    }
    return -1;
  }
  FunctionUse range(const ScriptFunction& function, int64_t first) const {
    FunctionUse use;
    use.function = &function;
    if (first < step_ || first >= pass_.end) return use;
    use.first = first;
    use.last = last_of(trace_, first);
    // Of several of one name, as a function makes them, the one whose lines these are.
    if (const ScriptFunction* f = maker_of(trace_, first).function) use.function = f;
    const auto next = starts_.upper_bound(first);
    if (next != starts_.end()) use.last = std::min(use.last, *next - 1);
    return use;
  }

  FunctionUse heard(size_t k) const {
    const BackwardNode& node = graph_.nodes()[k];
    FunctionUse use = range(*node.function, start_of_node_[k]);
    // One that runs a backward pass of its own within its own is in several parts.
    const auto is_part = [&](const BackwardNode& n) {
      return n.function == node.function && n.forward == node.forward;
    };
    if (!use.is_found() || std::ranges::count_if(graph_.nodes(), is_part) > 1) return use;
    use.last = std::min(use.last, node.first - 1);
    use.begin = node.first;
    use.end = node.last + 1;
    const auto given = graph_.given_to(k);
    // What its forward pass has is no gradient, also where a backward pass computed that again.
    std::set<uint64_t> kept;
    for (int64_t i = use.first; i <= use.last; ++i) {
      const Call& call = trace_.calls[static_cast<size_t>(i)];
      const auto read = read_by(call);
      for (const TensorView* t : read) kept.insert(t->storage);
      for (const TensorView* t : computed_by(call, read)) kept.insert(t->storage);
    }
    for (const TensorView* output : results(use)) {
      const auto fits = [&](const auto& g) {
        return g.first->dims == output->dims && !kept.contains(g.first->storage);
      };
      const auto g = std::ranges::find_if(given, fits);
      if (g != given.end()) use.outputs.emplace_back(output, g->first);
    }
    // Two results of one shape: which gradient is whose is not known.
    std::set<aten::Dims> shapes;
    for (const auto& [output, gradient] : use.outputs) shapes.insert(output->dims);
    if (shapes.size() < use.outputs.size()) use.outputs.clear();
    for (const auto& [leaf, view] : readers_[k].leaves) add_input(use, leaf, *view);
    for (const auto& [reader, view] : readers_[k].nodes) add_read_by(use, reader, *view, 0);
    settle_inputs(use);
    // What it gives is all understood, so an operand with a gradient that is given none was given None.
    std::set<uint64_t> given_for, gives;
    for (const auto& [input, gradient] : use.inputs) {
      given_for.insert(input->storage);
      gives.insert(gradient->storage);
    }
    const auto is_understood = [&](const auto& pair) {
      return gives.contains(pair.second->storage);
    };
    if (use.is_certain && !use.inputs.empty() &&
        std::ranges::all_of(readers_[k].leaves, is_understood) &&
        std::ranges::all_of(readers_[k].nodes, is_understood))
      for (const TensorView* t : operands(use))
        if (given_for.insert(t->storage).second) use.inputs.emplace_back(t, nullptr);
    return use;
  }

  // A view of the gradient that it is given (g.t()) is no gradient that it gives where it computes another
  // one for that input. Which gradient is whose is not known of two views of one memory (queries and keys
  // of one projection), nor where it computes two for one.
  void settle_inputs(FunctionUse& use) const {
    std::set<uint64_t> made;
    for (int64_t i = use.begin; i < use.end; ++i) {
      const Call& call = trace_.calls[static_cast<size_t>(i)];
      for (const TensorView* t : computed_by(call, read_by(call))) made.insert(t->storage);
    }
    std::map<uint64_t, int> computed;
    for (const auto& [input, gradient] : use.inputs)
      computed[input->storage] += made.contains(gradient->storage) ? 1 : 0;
    std::erase_if(use.inputs, [&](const auto& pair) {
      return !made.contains(pair.second->storage) && computed[pair.first->storage] > 0;
    });
    std::map<uint64_t, std::set<int64_t>> places;
    for (int64_t i = use.first; i <= use.last; ++i)
      for (const TensorView* t : read_by(trace_.calls[static_cast<size_t>(i)]))
        if (t->requires_gradient) places[t->storage].insert(t->first);
    for (const auto& [storage, times] : computed)
      if (times > 1 || places[storage].size() > 1) use.is_certain = false;
  }

  // The input whose gradient another node reads.
  void add_read_by(FunctionUse& use, size_t reader, const TensorView& gradient, int depth) const {
    constexpr int kMostSums = 16;
    const BackwardNode& node = graph_.nodes()[reader];
    if (node.name.empty() && depth < kMostSums) {  // a sum of gradients: who reads it?
      for (const auto& [leaf, view] : readers_[reader].leaves) add_input(use, leaf, gradient);
      for (const auto& [next, view] : readers_[reader].nodes)
        add_read_by(use, next, gradient, depth + 1);
      return;
    }
    if (node.output != nullptr) return add_input(use, node.output->storage, gradient);
    if (node.function == nullptr) return add_input(use, 0, gradient);  // of a view
    for (const TensorView* t : results(range(*node.function, start_of_node_[reader])))
      add_input(use, t->storage, gradient);
  }

  // If the forward pass reads that memory. A node that passes gradients on as they are makes no call:
  // then it is the only operand of that shape.
  void add_input(FunctionUse& use, uint64_t storage, const TensorView& gradient) const {
    for (const auto& [input, known] : use.inputs)
      if (known->storage == gradient.storage) return;
    const TensorView* only = nullptr;
    bool several = false;
    for (const TensorView* t : operands(use)) {
      if (t->dims != gradient.dims) continue;
      if (t->storage == storage) return use.inputs.emplace_back(t, &gradient), void();
      several = only != nullptr;
      only = t;
    }
    if (only != nullptr && !several) use.inputs.emplace_back(only, &gradient);
    if (only == nullptr) add_reshaped(use, storage, gradient);
  }
  // A view that a forward pass makes of its operand, as x.view(-1, n), has no mark that it has a
  // gradient: it is the only operand of that many elements. The order of its elements is taken to
  // be that of the gradient.
  void add_reshaped(FunctionUse& use, uint64_t storage, const TensorView& gradient) const {
    const TensorView* only = nullptr;
    for (const TensorView* t : operands(use, false)) {
      const bool is_other_weight = t->storage != storage && leaves_.contains(t->storage);
      if (is_other_weight || t->elements() != gradient.elements()) continue;
      if (only != nullptr) return;
      only = t;
    }
    if (only == nullptr || !only->is_dense()) return;
    use.inputs.emplace_back(only, &gradient);
    use.is_certain = false;
  }
  // What the forward pass is given; `marked`: that has a gradient as far as is known.
  std::vector<const TensorView*> operands(const FunctionUse& use, bool marked = true) const {
    std::vector<const TensorView*> out;
    std::set<uint64_t> seen;
    for (int64_t i = use.first; i <= use.last; ++i) {
      const Call& call = trace_.calls[static_cast<size_t>(i)];
      const auto read = read_by(call);
      for (const TensorView* t : read)
        if (aten::is_float(t->element) && (t->requires_gradient || !marked) &&
            seen.insert(t->storage).second)
          out.push_back(t);
      for (const TensorView* t : computed_by(call, read)) seen.insert(t->storage);
    }
    return out;
  }

  // What the forward pass computes and autograd reads after it.
  std::vector<const TensorView*> results(const FunctionUse& use) const {
    std::map<uint64_t, const TensorView*> made;
    const TensorView* last = nullptr;
    for (int64_t i = use.first; use.is_found() && i <= use.last; ++i) {
      const Call& call = trace_.calls[static_cast<size_t>(i)];
      if (!is_work(call)) continue;
      for (const TensorView* t : computed_by(call, read_by(call)))
        if (aten::is_float(t->element)) made[t->storage] = last = t;
    }
    std::vector<const TensorView*> out;
    const int64_t end = use.first >= pass_.begin ? pass_.end : pass_.begin;
    for (int64_t i = use.last + 1; i < end && !made.empty(); ++i) {
      const Call& call = trace_.calls[static_cast<size_t>(i)];
      if (base_name(call.op) == "aten.detach") continue;  // of what it keeps, too
      for (const TensorView* t : read_by(call)) {
        const auto at = made.find(t->storage);
        if (at == made.end()) continue;
        // As it is read there: within, a view may have made it.
        if (t->requires_gradient || starts_.contains(i))
          out.push_back(t->requires_gradient ? t : at->second);
        made.erase(at);
      }
    }
    // With what a backward pass has computed again, it goes on at once.
    if (out.empty() && use.first >= pass_.begin && last != nullptr) out.push_back(last);
    return out;
  }

  bool is_in(int64_t call, const std::string& function) const {
    const ScriptFunction* f = maker_of(trace_, call).function;
    return f != nullptr && f->name == function;
  }
  // The uses of a Function whose backward pass makes no call.
  void silent(const ScriptFunction& function, std::vector<FunctionUse>& out) const {
    const size_t before = out.size();
    for (int64_t i = step_; i < pass_.begin; ++i) {
      if (!is_within(trace_, i) || !is_in(i, function.name)) continue;
      FunctionUse use = range(function, i);
      i = use.last;
      const auto given = results(use);
      if (given.size() == 1) {
        use.outputs.emplace_back(given[0], nullptr);
        for (const TensorView* t : operands(use))
          if (t->dims == given[0]->dims && use.inputs.empty()) use.inputs.emplace_back(t, nullptr);
      }
      out.push_back(std::move(use));
    }
    if (out.size() == before) {
      FunctionUse unknown;
      unknown.function = &function;
      out.push_back(unknown);
    }
  }

  const TraceFile& trace_;
  int64_t step_;
  const Pass& pass_;
  BackwardGraph graph_;
  std::set<uint64_t> leaves_;
  // By node: the first call of its forward pass, -1: not known.
  std::vector<int64_t> start_of_node_;
  std::set<int64_t> starts_;  // of forward passes whose backward pass makes calls
  // Who reads what a node gives: weights, by their storages, and other nodes.
  struct Readers {
    std::vector<std::pair<uint64_t, const TensorView*>> leaves;
    std::vector<std::pair<size_t, const TensorView*>> nodes;
  };
  std::vector<Readers> readers_;  // by node
};

}  // namespace

const ScriptFunction* function_around(const TraceFile& trace, int64_t call) {
  return maker_of(trace, call).function;
}

const ScriptFunction* writer_of_given_gradient(const TraceFile& trace, int64_t step,
                                               const BackwardGraph& graph, const Pass& pass) {
  const auto& nodes = graph.nodes();
  // By the first call of a Function's backward pass.
  std::map<int64_t, std::set<uint64_t>> operands;
  for (const FunctionUse& use : uses_of(trace, step, pass))
    for (const auto& [input, gradient] : use.inputs) operands[use.begin].insert(input->storage);
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
  if (trace.functions.empty()) return {};
  return Uses(trace, step, pass).all();
}

}  // namespace twinrun
