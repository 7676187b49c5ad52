// The screen of a fusion group (program/analysis/fusion.h) that an engine ran in one pass: computes
// its ops again, block by block, and compares what the group stored. Moves and ops that round once
// must have the same numbers; exp and the like, which the group stores as well, and sums are
// compared as `plausible` does (screen.h). Like it, it is no judge: `false` only calls for a step
// that shows every op.
//
//   const auto screen = GroupScreen::make(declared, graph, group);  // nullopt: an op it lacks
//   if (screen && !screen->plausible(event.inputs, event.outputs, pool)) ...
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "backends/core/backend.h"
#include "program/analysis/fusion.h"

namespace twinrun {

class GroupScreen {
 public:
  // `graph` must outlive the result.
  static std::optional<GroupScreen> make(const Capabilities& declared, const Graph& graph,
                                         const FusionGroup& group);
  // inputs[job][i] is group.sources[i], outputs[job][i] is group.stored[i].
  bool plausible(std::span<const std::vector<Tensor>> inputs,
                 std::span<const std::vector<Tensor>> outputs, ThreadPool* pool) const;

 private:
  // An entry of the table of pointers: sources, then stored values, then buffers of one block.
  // Element i of a block at offset o is at pointer + (o + i) * moves, or i * size in a buffer.
  struct Place {
    int index = 0;
    size_t moves = 0;
  };
  struct View {  // a broadcast source, expanded into a buffer
    int source = 0;
    Access access;
    size_t size = 4;
    Place out;
    bool kept = false;  // the same in every block
  };
  struct Node {
    const Op* op = nullptr;  // nullptr: expand views_[view]
    int view = -1, inputs = 0;
    DType operand = DType::kF32;
    Place in[3], out;
    int stored = -1;  // compared with this stored value
  };
  struct Compiler;
  struct Sums;

  const std::byte* pointer(std::byte* const* table, const Place& place, int64_t at) const {
    return table[place.index] + static_cast<size_t>(at) * place.moves;
  }
  bool piece(std::span<const Tensor> inputs, std::span<const Tensor> outputs, int64_t begin,
             int64_t end, double* sums) const;
  bool run_node(const Node& node, std::byte* const* table, int64_t at, int64_t n) const;
  bool sums_hold(std::span<const Tensor> outputs, const double* sums, int64_t pieces) const;

  explicit GroupScreen(const Capabilities& declared) : declared_(declared) {}

  Capabilities declared_;
  int64_t elements_ = 0, block_ = 0, range_ = 0;
  int64_t columns_ = 0;  // results per reduction; 0: the group has none
  int sources_ = 0, stored_ = 0, buffers_ = 0, folds_ = 0;
  std::vector<View> views_;
  std::vector<Node> nodes_;
};

}  // namespace twinrun
