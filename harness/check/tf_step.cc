// Finds what of a TensorFlow graph runs on the TPU.
#include "harness/check/tf_step.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "harness/check/tpu_ops.h"

namespace twinrun {
namespace {

constexpr std::string_view kReplicated = "_tpu_replicate";
constexpr std::string_view kOutside = "_xla_outside_compilation";

bool is_input_pipeline(std::string_view op) {
  return op.ends_with("Dataset") || op.find("DatasetV") != std::string_view::npos ||
         op.find("Iterator") != std::string_view::npos || op.starts_with("Optional");
}

bool is_compiled_call(std::string_view op) {
  return op == "TPUReplicate" || op == "_TPUReplicate" || op == "TPUPartitionedCall" ||
         op == "XlaLaunch";
}

class Steps {
 public:
  explicit Steps(const TfGraph& graph) : graph_(graph) {
    for (const TfFunction& f : graph.functions) {
      functions_.emplace(f.name, &f);
      ++names_[users_name(f)];
    }
    index_of(graph.nodes, main_);
  }

  TfStep run() {
    for_each_node([&](const TfNode& n) {
      step_.marked = step_.marked || n.find(kReplicated) != nullptr || is_compiled_call(n.op);
    });
    if (step_.marked) {
      marked();
    } else {
      unmarked();
    }
    return std::move(step_);
  }

 private:
  using Index = std::map<std::string_view, size_t>;

  static void index_of(const std::vector<TfNode>& nodes, Index& to) {
    for (size_t i = 0; i < nodes.size(); ++i) to.emplace(nodes[i].name, i);
  }

  template <typename Visit>
  void for_each_node(const Visit& visit) const {
    for (const TfNode& n : graph_.nodes) visit(n);
    for (const TfFunction& f : graph_.functions) {
      for (const TfNode& n : f.nodes) visit(n);
    }
  }

  void marked() {
    const auto add_marked = [&](std::string name, const TfFunction* f,
                                const std::vector<TfNode>& nodes) {
      TfBody body{std::move(name), nodes, f, std::vector<bool>(nodes.size()), false};
      bool any = false;
      for (size_t i = 0; i < nodes.size(); ++i) {
        if (is_compiled_call(nodes[i].op)) {
          call(nodes[i]);
        } else if (nodes[i].find(kReplicated) != nullptr && nodes[i].find(kOutside) == nullptr) {
          body.on_tpu[i] = any = true;
          call(nodes[i]);
        }
      }
      if (!any) return;
      if (f != nullptr) seen_.insert(f->name);
      step_.bodies.push_back(std::move(body));
    };
    add_marked("", nullptr, graph_.nodes);
    for (const TfFunction& f : graph_.functions) add_marked(name_of(f), &f, f.nodes);
    called();
  }

  void unmarked() {
    std::set<std::string_view> of_saver;
    collect_saver(of_saver);
    const std::vector<bool> needed = graph_.signatures.empty() ? all_but_host() : from_signatures();
    TfBody body{"", graph_.nodes, nullptr, needed, false};
    for (size_t i = 0; i < needed.size(); ++i) {
      if (needed[i]) call(graph_.nodes[i]);
    }
    if (std::ranges::find(needed, true) != needed.end()) step_.bodies.push_back(std::move(body));
    called();
    // Functions that nobody calls in this graph, but a user may: those of training, for example.
    for (const std::string_view name : graph_.traced) {
      if (seen_.contains(name) || of_saver.contains(name)) continue;
      const auto found = functions_.find(name);
      if (found == functions_.end() || builds_resource(*found->second)) continue;
      add(*found->second, true);
      called();
    }
    if (!step_.bodies.empty()) return;
    // A graph that is only a library.
    for (const TfFunction& f : graph_.functions) {
      if (!seen_.contains(f.name) && !of_saver.contains(f.name)) add(f, true);
    }
    called();
  }

  std::vector<bool> from_signatures() const {
    std::deque<std::string_view> open;
    for (const TfSignature& s : graph_.signatures) {
      if (s.name == "__saved_model_init_op") continue;
      for (const TfPort& out : s.outputs) open.push_back(node_of(out.tensor));
    }
    return backwards(graph_.nodes, main_, std::move(open),
                     [](const TfNode& n) { return beside_the_step(n.op); });
  }

  // What gives a function's results or runs for its effects: the compiler drops the rest.
  static std::vector<bool> needed_of(const TfFunction& f) {
    if (f.effects.empty() && f.results.empty()) return std::vector<bool>(f.nodes.size(), true);
    Index index;
    index_of(f.nodes, index);
    std::deque<std::string_view> open;
    for (const std::string_view result : f.results) open.push_back(node_of(result));
    for (const std::string_view effect : f.effects) open.push_back(effect);
    // Old files name no effects: what nobody reads may be one.
    if (f.effects.empty()) {
      std::set<std::string_view> read;
      for (const TfNode& n : f.nodes) {
        for (const std::string_view input : n.inputs) read.insert(node_of(input));
      }
      for (const TfNode& n : f.nodes) {
        if (!read.contains(n.name) && check::find_tpu_op(n.op) == nullptr) open.push_back(n.name);
      }
    }
    return backwards(f.nodes, index, std::move(open), [](const TfNode&) { return false; });
  }

  template <typename Skip>
  static std::vector<bool> backwards(const std::vector<TfNode>& nodes, const Index& index,
                                     std::deque<std::string_view> open, const Skip& skip) {
    std::vector<bool> needed(nodes.size());
    while (!open.empty()) {
      const auto found = index.find(open.front());
      open.pop_front();
      if (found == index.end() || needed[found->second]) continue;
      const TfNode& n = nodes[found->second];
      if (skip(n)) continue;
      needed[found->second] = true;
      for (const std::string_view input : n.inputs) open.push_back(node_of(input));
    }
    return needed;
  }

  // All nodes but those of the host or of the start, those that only feed them, and those that only
  // take on what they give (the Identity and Assign behind RestoreV2).
  std::vector<bool> all_but_host() const {
    const std::vector<TfNode>& nodes = graph_.nodes;
    std::vector<std::vector<size_t>> readers(nodes.size());
    std::vector<size_t> left(nodes.size());  // readers that run on the TPU
    for (size_t i = 0; i < nodes.size(); ++i) {
      for (const std::string_view input : nodes[i].inputs) {
        const auto found = main_.find(node_of(input));
        if (found == main_.end()) continue;
        readers[found->second].push_back(i);
        ++left[found->second];
      }
    }
    std::vector<bool> host(nodes.size());
    std::deque<size_t> open;
    const auto take = [&](size_t i) {
      if (host[i]) return;
      host[i] = true;
      open.push_back(i);
    };
    for (size_t i = 0; i < nodes.size(); ++i) {
      // The first values of variables are made before the first step.
      if (beside_the_step(nodes[i].op) ||
          nodes[i].name.find("/Initializer/") != std::string_view::npos)
        take(i);
    }
    for (const std::string_view name : graph_.saver) {
      if (const auto found = main_.find(node_of(name)); found != main_.end()) take(found->second);
    }
    while (!open.empty()) {
      const size_t i = open.front();
      open.pop_front();
      for (const std::string_view input : nodes[i].inputs) {
        const auto found = main_.find(node_of(input));
        if (found != main_.end() && --left[found->second] == 0) take(found->second);
      }
      const bool saves = nodes[i].op.starts_with("Save") || nodes[i].op == "MergeV2Checkpoints";
      const bool restores = nodes[i].op.starts_with("Restore") || nodes[i].op == "Identity";
      for (const size_t r : readers[i]) {
        const std::string_view op = nodes[r].op;
        if (restores && (op == "Identity" || op == "Assign" || op == "AssignVariableOp")) take(r);
        // The name of what was saved, once it is.
        if (saves && op == "Identity") take(r);
      }
    }
    std::vector<bool> out(nodes.size());
    for (size_t i = 0; i < nodes.size(); ++i) out[i] = !host[i];
    return out;
  }

  // The functions that the nodes of the saver call, and those that these call.
  void collect_saver(std::set<std::string_view>& to) const {
    std::deque<const TfNode*> open;
    for (const std::string_view name : graph_.saver) {
      const auto found = main_.find(node_of(name));
      if (found != main_.end()) open.push_back(&graph_.nodes[found->second]);
    }
    while (!open.empty()) {
      const TfNode& n = *open.front();
      open.pop_front();
      for (const TfAttribute& a : n.attributes) {
        for (const std::string_view name : a.functions) {
          const auto found = functions_.find(name);
          if (found == functions_.end() || !to.insert(name).second) continue;
          for (const TfNode& inner : found->second->nodes) open.push_back(&inner);
        }
      }
    }
  }

  // Whether a function makes, fills or frees a table for lookups, as a SavedModel does when it is
  // loaded. The step only looks up.
  static bool builds_resource(const TfFunction& f) {
    return std::ranges::any_of(f.nodes,
                               [](const TfNode& n) {
                                 return n.op.find("HashTable") != std::string_view::npos ||
                                        n.op.starts_with("InitializeTable") ||
                                        n.op.starts_with("LookupTableImport");
                               }) ||
           std::ranges::all_of(f.nodes, [](const TfNode& n) {
             return n.op == "Const" || n.op == "Identity" || n.op == "NoOp";
           });
  }

  // As the user called it: TensorFlow makes "__inference_step_123" of step. Where several functions
  // would have that name, TensorFlow's.
  std::string name_of(const TfFunction& f) const {
    const auto found = names_.find(users_name(f));
    return std::string(found->second == 1 ? found->first : f.name);
  }
  static std::string_view users_name(const TfFunction& f) {
    constexpr std::string_view kTraced = "__inference_";
    if (!f.alias.empty()) return f.alias;
    std::string_view name = f.name;
    if (!name.starts_with(kTraced)) return name;
    name.remove_prefix(kTraced.size());
    const size_t end = name.find_last_not_of("0123456789");
    return end == std::string_view::npos || name[end] != '_' || end == 0 ? name
                                                                         : name.substr(0, end);
  }

  // Notes the functions that a node calls.
  void call(const TfNode& n) {
    if (const auto found = functions_.find(n.op); found != functions_.end())
      open_.push_back(found->second);
    for (const TfAttribute& a : n.attributes) {
      for (const std::string_view name : a.functions) {
        if (const auto found = functions_.find(name); found != functions_.end())
          open_.push_back(found->second);
      }
    }
  }

  // Adds all functions that were noted, and those that they call.
  void called() {
    while (!open_.empty()) {
      const TfFunction& f = *open_.front();
      open_.pop_front();
      if (!seen_.contains(f.name)) add(f, false);
    }
  }

  void add(const TfFunction& f, bool first) {
    seen_.insert(f.name);
    TfBody body{name_of(f), f.nodes, &f, std::vector<bool>(f.nodes.size()), first};
    const std::vector<bool> needed = needed_of(f);
    for (size_t i = 0; i < f.nodes.size(); ++i) {
      const TfNode& n = f.nodes[i];
      if (!needed[i] || n.find(kOutside) != nullptr || is_input_pipeline(n.op)) continue;
      body.on_tpu[i] = true;
      call(n);
    }
    step_.bodies.push_back(std::move(body));
  }

  const TfGraph& graph_;
  TfStep step_;
  std::map<std::string_view, const TfFunction*> functions_;
  std::map<std::string_view, size_t> names_;  // as users call functions; how many have it
  Index main_;
  std::set<std::string_view> seen_;
  std::deque<const TfFunction*> open_;
};

}  // namespace

std::string_view node_of(std::string_view input) {
  if (input.starts_with('^')) input.remove_prefix(1);
  return input.substr(0, input.find(':'));
}

bool beside_the_step(std::string_view op) {
  return is_input_pipeline(op) || op.starts_with("Save") || op.starts_with("Restore") ||
         op == "MergeV2Checkpoints" || op == "ShardedFilename" ||
         op.find("Summary") != std::string_view::npos;
}

TfStep tf_step(const TfGraph& graph) { return Steps(graph).run(); }

}  // namespace twinrun
