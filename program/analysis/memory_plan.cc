// Lifetimes of stored values, which of them are written over their source, and offsets in the
// arena.
#include "program/analysis/memory_plan.h"

#include <algorithm>

#include "program/graph/liveness.h"

namespace twinrun {
namespace {

// Large values are padded so that they do not all begin at the same offset in a page: loads and
// stores that go through them in lockstep would wait for one another.
constexpr int64_t kPage = 4096, kStagger = 9 * kLine;

// A block of memory, which holds one or more values, one after the other in time.
struct Block {
  int64_t bytes = 0;
  int first = 0, last = 0;  // the units of the first write and of the last read
  bool carried = false;
  int64_t offset = -1;
};

class MemoryPlanner {
 public:
  MemoryPlanner(const Program& program, const FusionPlan& fusion, const std::vector<bool>& constant)
      : program_(program),
        fusion_(fusion),
        n_(static_cast<size_t>(program.graph.size())),
        block_(n_, -1),
        in_turns_(program.sharding.cores > kCoresTogether),
        varies_(varying_values(program)) {
    plan_.offset.assign(n_, -1);
    plan_.carried.assign(n_, false);
    plan_.takes.assign(n_, kNoValue);
    last_ = held_until(program.graph, fusion);
    find_sections();
    for (size_t i = 0; i < fusion.order.size(); ++i)
      visit(fusion.order[i], static_cast<int>(i), constant);
    plan_.bytes = place(false);
    plan_.carried_bytes = place(true);
    for (size_t id = 0; id < n_; ++id) {
      if (block_[id] < 0) continue;
      const Block& block = blocks_[static_cast<size_t>(block_[id])];
      plan_.offset[id] = block.offset;
      plan_.carried[id] = block.carried;
    }
  }
  MemoryPlan plan() { return std::move(plan_); }

 private:
  static size_t at(ValueId id) { return static_cast<size_t>(id); }
  const Graph& graph() const { return program_.graph; }

  bool outlives(ValueId id) const {
    return last_[at(id)] >= static_cast<int>(fusion_.order.size());
  }

  void find_sections() {
    int section = 0;
    for (const FusionUnit& unit : fusion_.order) {
      const bool collective = unit.group < 0 && graph().op(unit.op).kind == OpKind::kAllReduce;
      plan_.section.push_back(collective ? ++section : section);
      section += collective ? 1 : 0;
    }
  }

  void visit(const FusionUnit& unit, int now, const std::vector<bool>& constant) {
    if (unit.group < 0) {
      if (graph().op(unit.op).kind != OpKind::kReshape && !constant[at(unit.op)])
        store(unit.op, now);
      return;
    }
    const FusionGroup& group = fusion_.groups[static_cast<size_t>(unit.group)];
    std::vector<ValueId> taken;
    for (ValueId id : group.stored) {
      const ValueId source = source_to_take(group, id, now, taken);
      if (source != kNoValue) taken.push_back(source);
      plan_.takes[at(id)] = source;
      if (source == kNoValue || outlives(id)) {
        store(id, now);
      } else {
        block_[at(id)] = block_[at(source)];
        Block& block = blocks_[static_cast<size_t>(block_[at(id)])];
        block.last = std::max(block.last, last_[at(id)]);
      }
    }
  }

  void store(ValueId id, int now) {
    if (outlives(id) || (in_turns_ && !varies_[at(id)])) return;
    const int64_t bytes =
        std::max<int64_t>(1, (static_cast<int64_t>(graph().type(id).bytes()) + kLine - 1) / kLine) *
        kLine;
    block_[at(id)] = static_cast<int>(blocks_.size());
    const auto section = [&](int unit) { return plan_.section[static_cast<size_t>(unit)]; };
    blocks_.push_back({bytes + (bytes >= kPage ? kStagger : 0), now, last_[at(id)],
                       in_turns_ && section(now) != section(last_[at(id)])});
  }

  ValueId source_to_take(const FusionGroup& group, ValueId id, int now,
                         const std::vector<ValueId>& taken) const {
    if (graph().op(id).kind == OpKind::kReduce) return kNoValue;
    const auto fits = [&](ValueId source) {
      return last_[at(source)] == now && graph().type(source).bytes() == graph().type(id).bytes() &&
             std::ranges::find(taken, source) == taken.end() && read_in_step(group, source);
    };
    if (outlives(id)) {
      for (const StateVar& var : program_.state) {
        if (var.next == id && std::ranges::find(group.sources, var.id) != group.sources.end() &&
            fits(var.id))
          return var.id;
      }
      return kNoValue;
    }
    if (program_.sharding.cores > 1) return kNoValue;
    for (ValueId source : group.sources) {
      if (block_[at(source)] >= 0 && fits(source)) return source;
    }
    return kNoValue;
  }

  // Whether every op of the group that reads the source needs its element i for element i of the
  // result.
  bool read_in_step(const FusionGroup& group, ValueId source) const {
    for (const FusedOp& op : group.ops) {
      for (const Access& read : op.operands) {
        if (read.source == source && (read.inner != 1 || read.period != group.elements))
          return false;
      }
    }
    return true;
  }

  // First fit, the largest block first: each at the lowest offset that is free during its whole
  // lifetime. Returns the bytes of the arena.
  int64_t place(bool carried) {
    std::vector<Block*> order;
    for (Block& block : blocks_) {
      if (block.carried == carried) order.push_back(&block);
    }
    int64_t bytes = 0;
    std::ranges::stable_sort(order, std::greater<>(), &Block::bytes);
    std::vector<const Block*> placed;  // by offset
    for (Block* block : order) {
      int64_t offset = 0;
      for (const Block* other : placed) {
        if (other->last < block->first || block->last < other->first) continue;
        if (other->offset >= offset + block->bytes) break;
        offset = std::max(offset, other->offset + other->bytes);
      }
      block->offset = offset;
      bytes = std::max(bytes, offset + block->bytes);
      placed.insert(std::ranges::upper_bound(placed, offset, {}, &Block::offset), block);
    }
    return bytes;
  }

  const Program& program_;
  const FusionPlan& fusion_;
  size_t n_;
  std::vector<int> last_, block_;
  bool in_turns_;  // the cores run in blocks
  std::vector<bool> varies_;
  std::vector<Block> blocks_;
  MemoryPlan plan_;
};

}  // namespace

MemoryPlan plan_memory(const Program& program, const FusionPlan& fusion,
                       const std::vector<bool>& constant) {
  return MemoryPlanner(program, fusion, constant).plan();
}

}  // namespace twinrun
