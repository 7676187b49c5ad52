// Finds the nodes of a backward pass.
#include "harness/trace/backward_graph.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "backends/aten/definitions.h"
#include "harness/trace/values.h"

namespace twinrun {
namespace {

using aten::Call;
using aten::TensorView;
using aten::Value;

}  // namespace

const ScriptFunction* function_of_node(const TraceFile& trace, std::string_view node) {
  constexpr std::string_view kEnding = "Backward";
  return node.ends_with(kEnding)
             ? trace.function_named(node.substr(0, node.size() - kEnding.size()))
             : nullptr;
}

BackwardGraph::BackwardGraph(const TraceFile& trace, int64_t step, const Pass& pass)
    : trace_(trace), begin_(pass.begin) {
  if (pass.given != nullptr) seeds_.insert(pass.given->storage);
  for (const int64_t s : pass.given != nullptr ? std::vector<int64_t>{} : pass.seeds)
    seeds_.insert(trace.calls[static_cast<size_t>(s)].result.tensor.storage);
  find_functions();
  for (int64_t i = pass.begin; i < pass.end; ++i) {
    const Call& call = trace.calls[static_cast<size_t>(i)];
    if (is_work(call) && !call.node.empty()) add(call);
  }
  for (size_t k = 0; k < nodes_.size(); ++k) {
    BackwardNode& node = nodes_[k];
    // Calls that a backward pass made for itself, as checkpointing does, the loss was not computed with.
    if (node.forward < step || node.forward >= begin_) continue;
    // PyTorch's own nodes have a number. Of others, as that of a Function in a region of
    // torch.compile, the forward call is the first of several.
    if (node.function != nullptr || node.is_hook() || node.name.empty() || node.name.back() < '0' ||
        node.name.back() > '9')
      continue;
    const Call& forward = trace.calls[static_cast<size_t>(node.forward)];
    const std::vector<const TensorView*> returned = computed_by(forward, read_by(forward));
    for (const auto& [view, reader] : given_to(k)) {
      // What the call gave besides may come first: the statistics that a batch normalisation wrote.
      const auto output = std::ranges::find(returned, view->dims, &TensorView::dims);
      if (output == returned.end()) continue;
      node.output = *output;
      node.given = view;
      node.reader = reader;
      break;
    }
  }
}

// What a Function differentiates within its backward pass, because it computes its forward pass again,
// is part of its node.
void BackwardGraph::find_functions() {
  std::map<int64_t, std::pair<int64_t, const ScriptFunction*>> all;
  for (const Call& record : trace_.uses) {
    const Value* first = named(record, "first");
    if (named(record, "gradients") == nullptr || first == nullptr || first->integer < begin_ ||
        first->integer >= record.index)
      continue;
    auto& [end, function] = all[first->integer];
    if (record.index <= end) continue;
    end = record.index;
    function = trace_.function_named(record.op);
  }
  int64_t reach = begin_;
  for (const auto& [first, use] : all) {
    if (first < reach || use.second == nullptr) continue;
    of_functions_[first] = use;
    reach = use.first;
  }
}

void BackwardGraph::add(const Call& call) {
  auto around = of_functions_.upper_bound(call.index);
  const bool within = around != of_functions_.begin() && call.index < (--around)->second.first;
  // Gradients of several uses are added up between nodes, in the name of one of them.
  const bool joins = !within && joins_gradients(call);
  const auto is_of_last = [&] {
    return nodes_.back().name == call.node && nodes_.back().forward == call.forward;
  };
  const bool is_next =
      nodes_.empty() || (within ? nodes_.back().first < around->first : joins || !is_of_last());
  if (is_next) {
    BackwardNode node;
    node.place = call.place;
    node.first = call.index;
    if (!joins) {
      node.name = within ? around->second.second->name + "Backward" : call.node;
      node.forward = call.forward;
      node.function = within ? around->second.second : function_of_node(trace_, call.node);
      // Such a call has a line of its own in the backward pass.
      if (node.function != nullptr && call.forward >= 0 &&
          call.forward < static_cast<int64_t>(trace_.calls.size()))
        node.place = trace_.calls[static_cast<size_t>(call.forward)].place;
    }
    nodes_.push_back(std::move(node));
  }
  const size_t mine = nodes_.size() - 1;
  nodes_[mine].last = call.index;
  for (const TensorView* t : computed_by(call, read_by(call)))
    maker_[t->storage].emplace_back(call.index, mine);
  // A view of a gradient is what its node gives; one of a saved tensor is not.
  std::vector<const TensorView*> returned;
  aten::collect(call.result, returned);
  for (const TensorView* t : returned) {
    const auto at = maker_.find(t->storage);
    if (at != maker_.end() && at->second.back().first != call.index)
      at->second.emplace_back(call.index, mine);
  }
}

bool BackwardGraph::joins_gradients(const Call& call) const {
  if (base_name(call.op) != "aten.add" || call.args.size() != 2 || nodes_.empty() ||
      call.node.starts_with("a hook of ") || function_of_node(trace_, call.node) != nullptr)
    return false;
  bool elsewhere = false;
  for (const Value& v : call.args) {
    if (v.kind != Value::Kind::kTensor) return false;
    const int64_t by = maker(v.tensor.storage, call.index);
    if (by < 0) return false;
    elsewhere = elsewhere || static_cast<size_t>(by) + 1 != nodes_.size();
  }
  return elsewhere;
}

int64_t BackwardGraph::maker(uint64_t storage, int64_t before) const {
  const auto at = maker_.find(storage);
  if (at == maker_.end()) return -1;
  int64_t found = -1;
  for (const auto& [call, node] : at->second)
    if (call < before) found = static_cast<int64_t>(node);
  return found;
}

std::vector<std::pair<const TensorView*, int64_t>> BackwardGraph::given_to(size_t node) const {
  std::vector<std::pair<const TensorView*, int64_t>> out;
  for (int64_t i = nodes_[node].first; i <= nodes_[node].last; ++i) {
    const Call& call = trace_.calls[static_cast<size_t>(i)];
    if (!is_work(call)) continue;
    for (const TensorView* t : read_by(call)) {
      if (!aten::is_float(t->element)) continue;
      if (seeds_.contains(t->storage) || maker(t->storage, nodes_[node].first) >= 0)
        out.emplace_back(t, i);
    }
  }
  return out;
}

}  // namespace twinrun
