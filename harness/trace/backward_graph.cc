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

BackwardGraph::BackwardGraph(const TraceFile& trace, int64_t step, const Pass& pass)
    : trace_(trace), begin_(pass.begin) {
  if (pass.given != nullptr) seeds_.insert(pass.given->storage);
  for (const int64_t s : pass.given != nullptr ? std::vector<int64_t>{} : pass.seeds)
    seeds_.insert(trace.calls[static_cast<size_t>(s)].result.tensor.storage);
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

void BackwardGraph::add(const Call& call) {
  // What a Function differentiates within its backward pass, because it computes its forward pass
  // again, is part of its node.
  const auto is_of = [&](const BackwardNode& n) {
    return n.name == call.node && n.forward == call.forward;
  };
  const auto continues = [&](const BackwardNode& n) { return call.forward >= n.first || is_of(n); };
  const bool within = within_ >= 0 && continues(nodes_[static_cast<size_t>(within_)]);
  // Gradients of several uses are added up between nodes, in the name of one of them.
  const bool joins = !within && joins_gradients(call);
  if (!within && (nodes_.empty() || joins || !is_of(nodes_.back()))) {
    BackwardNode node;
    node.place = call.place;
    node.first = call.index;
    if (!joins) {
      node.name = call.node;
      node.forward = call.forward;
      node.function = function_of(call.node);
      // Such a call has a line of its own in the backward pass.
      if (node.function != nullptr && call.forward >= 0 &&
          call.forward < static_cast<int64_t>(trace_.calls.size()))
        node.place = trace_.calls[static_cast<size_t>(call.forward)].place;
    }
    const bool of_script =
        node.function != nullptr && !std::string_view(node.function->name).starts_with("torch.");
    if (of_script) {
      within_ = static_cast<int64_t>(nodes_.size());
    } else if (node.name != "torch::autograd::AccumulateGrad") {
      within_ = -1;
    }
    nodes_.push_back(std::move(node));
  }
  const size_t mine = within ? static_cast<size_t>(within_) : nodes_.size() - 1;
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
      call.node.starts_with("a hook of ") || function_of(call.node) != nullptr)
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

std::vector<const ScriptFunction*> BackwardGraph::silent() const {
  std::set<std::string> heard;
  for (const BackwardNode& node : nodes_) heard.insert(node.name);
  std::vector<const ScriptFunction*> out;
  for (const ScriptFunction& f : trace_.functions)
    if (heard.insert(f.name + "Backward").second) out.push_back(&f);
  return out;
}

const ScriptFunction* BackwardGraph::function_of(const std::string& node) const {
  for (const ScriptFunction& f : trace_.functions)
    if (node == f.name + "Backward") return &f;
  return nullptr;
}

}  // namespace twinrun
