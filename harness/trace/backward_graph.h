// The nodes of a recorded backward pass: calls that follow each other and are of one node of autograd,
// and which node gives a gradient to which.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "harness/trace/backward_passes.h"
#include "harness/trace/trace_file.h"

namespace twinrun {

struct BackwardNode {
  std::string name, place;  // without a name: gradients of several uses are added up
  int64_t forward = -1, first = 0, last = 0;  // calls: of the forward pass, and its own
  const aten::TensorView* output = nullptr;   // what its forward call gave
  const aten::TensorView* given = nullptr;    // the gradient of that
  int64_t reader = 0;                         // the call that reads it
  const ScriptFunction* function = nullptr;   // of the script, whose node it is
  bool is_hook() const { return name.starts_with("a hook of "); }
};

// The Function whose backward pass a node of autograd is; nullptr: it is of no Function.
const ScriptFunction* function_of_node(const TraceFile& trace, std::string_view node);

class BackwardGraph {
 public:
  // `step`: the first call of the pass's step.
  BackwardGraph(const TraceFile& trace, int64_t step, const Pass& pass);

  const std::vector<BackwardNode>& nodes() const { return nodes_; }
  // The node whose call last gave values to a storage before a call; -1: none did.
  int64_t maker(uint64_t storage, int64_t before) const;
  // Gradients that a node is given, and the calls that read them.
  std::vector<std::pair<const aten::TensorView*, int64_t>> given_to(size_t node) const;

 private:
  void find_functions();
  void add(const aten::Call& call);
  bool joins_gradients(const aten::Call& call) const;

  const TraceFile& trace_;
  int64_t begin_;  // the first call of the pass
  // Backward passes of Functions: by the first call, the one behind the last.
  std::map<int64_t, std::pair<int64_t, const ScriptFunction*>> of_functions_;
  std::unordered_set<uint64_t> seeds_;  // the ones that the pass begins with
  std::vector<BackwardNode> nodes_;
  // By storage: calls that gave it values, and their nodes.
  std::unordered_map<uint64_t, std::vector<std::pair<int64_t, size_t>>> maker_;
};

}  // namespace twinrun
