// The planner of fused groups: clusters of elementwise ops that are merged where this forms no
// cycle, values that are recomputed instead of stored, and the order of units.
#include "program/analysis/fusion.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "program/graph/liveness.h"

namespace twinrun {
namespace {

// Columns of a fused reduction: up to this number its 16 lanes of partial sums stay in L2.
constexpr int64_t kMaxColumns = 1024;
// Rows of a reduction that one thread adds (docs/method/numerics.md, section 4).
constexpr int64_t kOneSegment = 4096;
constexpr int64_t kSerialElements = 1 << 18;  // up to this size one thread is enough
constexpr int kRecomputedOps = 4;
// How many values the planner may visit in its searches, about a second's worth. The largest models
// of the scenario library need a hundredth of it. Where it is used up, groups stay as they are:
// their number is no longer the smallest, and no result depends on it.
constexpr int64_t kMostVisits = 300'000'000;

bool elementwise(OpKind kind) {
  return class_of(kind) == OpClass::kElementwise || kind == OpKind::kSelect ||
         kind == OpKind::kNegate || kind == OpKind::kAbs;
}

// Ops that cost less to compute again than to load their result from memory.
bool cheap(OpKind kind) {
  switch (kind) {
    case OpKind::kAdd:
    case OpKind::kSubtract:
    case OpKind::kMultiply:
    case OpKind::kMaximum:
    case OpKind::kMinimum:
    case OpKind::kCompare:
    case OpKind::kSelect:
    case OpKind::kNegate:
    case OpKind::kAbs:
    case OpKind::kConvert:
    case OpKind::kBitcastConvert:
    case OpKind::kAnd:
    case OpKind::kOr:
    case OpKind::kXor:
    case OpKind::kShiftLeft:
    case OpKind::kShiftRightLogical:
    case OpKind::kShiftRightArithmetic:
      return true;
    default:
      return false;
  }
}

class Planner {
 public:
  Planner(const Program& program, const std::vector<bool>& constant)
      : program_(program),
        graph_(program.graph),
        n_(static_cast<size_t>(program.graph.size())),
        varies_(varying_values(program)) {
    find_outliving();
    find_candidates(constant);
    find_reads();
    merge_producers();
    merge_siblings();
    find_stored();
    drop_cheap_stores();
    move_to_readers();
    find_stored();
    drop_cheap_stores();
  }
  FusionPlan plan();

 private:
  static size_t at(ValueId id) { return static_cast<size_t>(id); }
  int64_t elements(ValueId id) const { return graph_.type(id).elements(); }
  bool reduces(ValueId id) const { return graph_.op(id).kind == OpKind::kReduce; }
  // The number of elements over which an op of a group iterates.
  int64_t extent(ValueId id) const {
    return reduces(id) ? elements(graph_.op(id).operands[0]) : elements(id);
  }

  // How `id` is read from its source, through reshapes and at most one broadcast.
  Access resolve(ValueId id) const {
    Access access{id, 1, elements(id)};
    bool spread = false;
    for (;;) {
      const Op& op = graph_.op(access.source);
      if (op.kind != OpKind::kReshape && op.kind != OpKind::kBroadcastInDim) return access;
      const Access step = access_of(graph_, access.source);
      const bool whole = step.inner == 1 && step.period == elements(access.source);
      if (step.period == 0 || (!whole && spread)) return access;
      if (!whole) {
        spread = true;
        access.inner = step.inner;
        access.period = step.period;
      }
      access.source = step.source;
    }
  }

  void find_outliving() {
    outlives_.assign(n_, false);
    for (const auto& var : program_.state) {
      if (var.next != kNoValue) outlives_[at(var.next)] = true;
    }
    for (const auto& output : program_.outputs) outlives_[at(output.id)] = true;
  }

  void find_candidates(const std::vector<bool>& constant) {
    candidate_.assign(n_, false);
    for (ValueId id = 0; id < graph_.size(); ++id) {
      const Op& op = graph_.op(id);
      if (constant[at(id)] || extent_or_zero(op, id) == 0) continue;
      if (op.kind == OpKind::kReduce) {
        const ValueId source = resolve(op.operands[0]).source;
        const int64_t columns = reduce_columns(graph_, id), length = elements(op.operands[0]);
        candidate_[at(id)] = is_floating(op.type.dtype) && columns > 0 && columns <= kMaxColumns &&
                             (length <= kSerialElements ||
                              length / columns * program_.sharding.cores >= 8 * kOneSegment) &&
                             elements(source) == length && candidate_[at(source)] &&
                             !reduces(source);
      } else {
        candidate_[at(id)] = elementwise(op.kind) && op.type.dtype != DType::kF64;
      }
    }
  }
  int64_t extent_or_zero(const Op& op, ValueId id) const {
    return op.operands.empty() ? 0 : extent(id);
  }

  // Which values are computed at all, and which ops read them. Each value starts as a cluster of
  // its own.
  void find_reads() {
    runs_ = outlives_;
    reads_.resize(n_);
    readers_.resize(n_);
    cluster_.resize(n_);
    members_.resize(n_);
    columns_.resize(n_);
    seen_in_.resize(n_);
    for (ValueId id = graph_.size() - 1; id >= 0; --id) {
      cluster_[at(id)] = id;
      members_[at(id)] = {id};
      if (reduces(id)) columns_[at(id)] = reduce_columns(graph_, id);
      if (!runs_[at(id)]) continue;
      for (ValueId operand : graph_.op(id).operands) {
        const Access read =
            candidate_[at(id)] ? resolve(operand) : Access{operand, 1, elements(operand)};
        reads_[at(id)].push_back(read);
        readers_[at(read.source)].push_back(id);
        runs_[at(read.source)] = true;
      }
    }
  }

  // Whether there is a path from cluster `from` to cluster `to` through a third cluster, or out of
  // a reduction. If so, merging the two would form a cycle. Searches from the smaller one.
  bool detour(ValueId from, ValueId to) {
    const bool forward = members_[at(from)].size() <= members_[at(to)].size();
    const ValueId begin = forward ? from : to, end = forward ? to : from;
    const int64_t search = ++searches_;
    std::vector<ValueId> open = {begin};
    // The edge between a member of `cluster` and `next`, where the value of `source` is read.
    const auto follow = [&](ValueId cluster, ValueId next, ValueId source) {
      if (next == end) return cluster != begin || (reduces(source) && candidate_[at(source)]);
      // The numbers of ops cannot bound the search, since a later cluster may have earlier members.
      if (next != begin && next != cluster && seen_in_[at(next)] != search) {
        seen_in_[at(next)] = search;
        open.push_back(next);
      }
      return false;
    };
    while (!open.empty()) {
      const ValueId cluster = open.back();
      open.pop_back();
      for (ValueId member : members_[at(cluster)]) {
        if (!may_visit(readers_[at(member)].size() + reads_[at(member)].size() + 1)) return true;
        if (forward) {
          for (ValueId reader : readers_[at(member)]) {
            if (follow(cluster, cluster_[at(reader)], member)) return true;
          }
        } else {
          for (const Access& read : reads_[at(member)]) {
            if (follow(cluster, cluster_[at(read.source)], read.source)) return true;
          }
        }
      }
    }
    return false;
  }

  bool alike(ValueId a, ValueId b) const {
    if (extent(a) != extent(b) || varies_[at(a)] != varies_[at(b)]) return false;
    const int64_t ca = columns_[at(a)], cb = columns_[at(b)];
    return ca == 0 || cb == 0 || ca == cb;
  }
  void merge(ValueId a, ValueId b) {  // moves the members of b into a
    std::vector<ValueId>&into = members_[at(a)], &from = members_[at(b)];
    for (ValueId id : from) cluster_[at(id)] = a;
    const auto middle = static_cast<std::ptrdiff_t>(into.size());
    into.insert(into.end(), from.begin(), from.end());
    if (into[static_cast<size_t>(middle) - 1] > from.front())
      std::inplace_merge(into.begin(), into.begin() + middle, into.end());
    from.clear();
    if (columns_[at(a)] == 0) columns_[at(a)] = columns_[at(b)];
    columns_[at(b)] = 0;
  }
  // Whether there are so many visits left; takes them.
  bool may_visit(size_t values) {
    visits_left_ -= static_cast<int64_t>(values);
    return visits_left_ >= 0;
  }
  bool groups(ValueId id) const { return runs_[at(id)] && candidate_[at(id)]; }

  void merge_producers() {
    for (ValueId id = 0; id < graph_.size(); ++id) {
      if (!groups(id)) continue;
      for (const Access& read : reads_[at(id)]) {
        if (!groups(read.source) || elements(read.source) != extent(id)) continue;
        const ValueId a = cluster_[at(read.source)], b = cluster_[at(id)];
        if (a != b && alike(a, b) && !detour(a, b)) merge(a, b);
      }
    }
  }

  // Merges groups that read the same memory, if neither depends on the other.
  void merge_siblings() {
    for (ValueId source = 0; source < graph_.size(); ++source) {
      std::vector<ValueId> clusters;
      for (ValueId reader : readers_[at(source)]) {
        const ValueId c = cluster_[at(reader)];
        if (groups(reader) && extent(reader) == elements(source)) clusters.push_back(c);
      }
      std::ranges::sort(clusters);
      clusters.erase(std::unique(clusters.begin(), clusters.end()), clusters.end());
      for (size_t i = 0; i < clusters.size(); ++i) {
        for (size_t j = i + 1; j < clusters.size(); ++j) {
          const ValueId a = clusters[i], b = clusters[j];
          if (!may_visit(1)) return;
          if (members_[at(a)].empty() || members_[at(b)].empty() || !alike(a, b)) continue;
          if (!reaches(a, b) && !reaches(b, a)) merge(a, b);
        }
      }
    }
  }
  bool reaches(ValueId a, ValueId b) {
    for (ValueId member : members_[at(a)]) {
      if (!may_visit(readers_[at(member)].size() + 1)) return true;
      for (ValueId reader : readers_[at(member)]) {
        if (cluster_[at(reader)] == b) return true;
      }
    }
    return detour(a, b);
  }

  void find_stored() {
    stored_.assign(n_, false);
    for (ValueId id = 0; id < graph_.size(); ++id) {
      if (!runs_[at(id)]) continue;
      stored_[at(id)] = !candidate_[at(id)] || outlives_[at(id)] || reduces(id);
      for (ValueId reader : readers_[at(id)]) {
        if (cluster_[at(reader)] != cluster_[at(id)]) stored_[at(id)] = true;
      }
    }
  }

  // Moves a value that a cluster stores for one other cluster alone into that cluster, together
  // with all values that only it needs, if the other cluster then reads nothing more from memory. A
  // value of the forward pass that a gradient needs (the slope of GELU) is then computed where it
  // is used instead of being kept.
  void move_to_readers() {
    for (ValueId id = graph_.size() - 1; id >= 0; --id) {
      if (!groups(id) || !stored_[at(id)] || outlives_[at(id)] || reduces(id)) continue;
      const ValueId from = cluster_[at(id)], to = cluster_[at(readers_[at(id)].front())];
      const bool one = std::ranges::all_of(readers_[at(id)], [&](ValueId reader) {
        return groups(reader) && cluster_[at(reader)] == to && extent(reader) == elements(id);
      });
      if (!one || to == from || !alike(id, to)) continue;
      if (!may_visit(members_[at(from)].size() + members_[at(to)].size())) return;
      std::vector<ValueId> moved{id}, kept;  // `moved` is descending, `kept` ascending
      const auto moves = [&](ValueId v) {
        return std::ranges::binary_search(moved, v, std::ranges::greater());
      };
      for (auto v = members_[at(from)].rbegin(); v != members_[at(from)].rend(); ++v) {
        if (*v < id && !outlives_[at(*v)] && !reduces(*v) &&
            std::ranges::all_of(readers_[at(*v)], moves))
          moved.push_back(*v);
      }
      const std::vector<ValueId> read = full_reads(to);
      const auto is_read = [&](ValueId v) { return std::ranges::find(read, v) != read.end(); };
      const auto costs_nothing = [&](const Access& access) {
        if (moves(access.source) || elements(access.source) != elements(id)) return true;
        if (stored_[at(access.source)]) return is_read(access.source);
        int ops = 0;
        std::vector<ValueId> found;
        return origins(access.source, ops, found) && std::ranges::all_of(found, is_read);
      };
      if (!std::ranges::all_of(
              moved, [&](ValueId v) { return std::ranges::all_of(reads_[at(v)], costs_nothing); }))
        continue;
      for (ValueId v : members_[at(from)]) {
        if (!moves(v)) kept.push_back(v);
      }
      members_[at(from)] = kept;
      for (ValueId v : moved) {
        cluster_[at(v)] = to;
        members_[at(to)].insert(std::ranges::upper_bound(members_[at(to)], v), v);
      }
    }
  }

  // Finds the stored values of full size from which `id` can be recomputed; false if that takes too
  // many ops.
  bool origins(ValueId id, int& ops, std::vector<ValueId>& found) const {
    if (++ops > kRecomputedOps || !cheap(graph_.op(id).kind)) return false;
    for (const Access& read : reads_[at(id)]) {
      if (!stored_[at(read.source)]) {
        if (!origins(read.source, ops, found)) return false;
      } else if (elements(read.source) == elements(id) &&
                 std::ranges::find(found, read.source) == found.end()) {
        found.push_back(read.source);
      }
    }
    return true;
  }

  // The values of full size that a cluster reads from outside.
  std::vector<ValueId> full_reads(ValueId cluster) const {
    std::vector<ValueId> found;
    for (const FusedOp& op : body(cluster)) {
      for (const Access& read : op.operands) {
        if (stored_[at(read.source)] && elements(read.source) == extent(cluster) &&
            cluster_[at(read.source)] != cluster &&
            std::ranges::find(found, read.source) == found.end()) {
          found.push_back(read.source);
        }
      }
    }
    return found;
  }

  // Does not store cheap values that only groups read, if each of these groups can recompute them
  // without reading more than before: at most one other value of full size in place of each.
  void drop_cheap_stores() {
    std::vector<std::vector<ValueId>> full(n_), read_by(n_);  // by cluster, and by value
    const auto find_reads_of = [&](ValueId cluster) {
      full[at(cluster)] = full_reads(cluster);
      for (ValueId id : full[at(cluster)]) read_by[at(id)].push_back(cluster);
    };
    for (ValueId id = 0; id < graph_.size(); ++id) {
      if (groups(id) && !members_[at(id)].empty()) find_reads_of(id);
    }
    const auto has = [](const std::vector<ValueId>& v, ValueId id) {
      return std::ranges::find(v, id) != v.end();
    };
    for (ValueId id = 0; id < graph_.size(); ++id) {
      if (!groups(id) || !stored_[at(id)] || outlives_[at(id)] || reduces(id)) continue;
      bool worth = true;
      for (ValueId reader : readers_[at(id)])
        worth = worth && candidate_[at(reader)] && extent(reader) == elements(id);
      int ops = 0;
      std::vector<ValueId> from, affected;
      if (!worth || !origins(id, ops, from)) continue;
      for (ValueId cluster : read_by[at(id)]) {
        if (!has(full[at(cluster)], id) || has(affected, cluster)) continue;
        affected.push_back(cluster);
        const auto more =
            std::ranges::count_if(from, [&](ValueId f) { return !has(full[at(cluster)], f); });
        worth = worth && more <= 1;
      }
      if (!worth) continue;
      stored_[at(id)] = false;
      for (ValueId cluster : affected) find_reads_of(cluster);
    }
  }

  // The ops that compute a cluster's stored values, including ops of other clusters that it
  // recomputes.
  std::vector<FusedOp> body(ValueId cluster) const {
    std::vector<FusedOp> ops;
    std::vector<ValueId> needed;  // a heap: the last op comes first
    for (ValueId id : members_[at(cluster)]) {
      if (stored_[at(id)]) needed.push_back(id);
    }
    std::ranges::make_heap(needed);
    ValueId before = kNoValue;
    while (!needed.empty()) {
      const ValueId id = needed.front();
      std::ranges::pop_heap(needed);
      needed.pop_back();
      if (id == std::exchange(before, id)) continue;
      if (stored_[at(id)] && cluster_[at(id)] != cluster) continue;
      ops.push_back({id, reads_[at(id)]});
      for (const Access& read : reads_[at(id)]) {
        needed.push_back(read.source);
        std::ranges::push_heap(needed);
      }
    }
    std::ranges::reverse(ops);
    return ops;
  }

  void order_units(FusionPlan& plan, const std::vector<FusionUnit>& unit,
                   const std::vector<int>& group_at) const;

  const Program& program_;
  const Graph& graph_;
  size_t n_;
  std::vector<bool> varies_;  // only a guess: it decides which ops may share a group
  std::vector<bool> outlives_, candidate_, runs_, stored_;
  std::vector<std::vector<Access>> reads_;     // by op, of the ops that run
  std::vector<std::vector<ValueId>> readers_;  // by source, descending
  std::vector<ValueId> cluster_;               // named by one of its members
  std::vector<std::vector<ValueId>> members_;  // ascending
  std::vector<int64_t> columns_;               // by cluster, of its reductions; 0: it has none
  int64_t visits_left_ = kMostVisits;
  int64_t searches_ = 0;
  std::vector<int64_t> seen_in_;  // by cluster: the last search that saw it
};

// Of the units whose operands are all computed, the next to run is the one whose last stored result
// comes first in the program. (Running a unit only when its result is first needed would run the
// whole backward pass for a sum that the loss shares with a gradient's group, and hold values that
// other units have yet to read.)
void Planner::order_units(FusionPlan& plan, const std::vector<FusionUnit>& unit,
                          const std::vector<int>& group_at) const {
  struct Node {
    FusionUnit unit;
    size_t waits = 0;
    std::vector<ValueId> wanted_by;
  };
  std::map<ValueId, Node> nodes;  // by the last stored result of the unit
  std::vector<ValueId> group_key(plan.groups.size(), kNoValue);
  for (ValueId id = 0; id < graph_.size(); ++id) {
    if (unit[at(id)].op == id) nodes[id].unit = unit[at(id)];
    if (group_at[at(id)] < 0) continue;
    nodes[id].unit = {kNoValue, group_at[at(id)]};
    group_key[static_cast<size_t>(group_at[at(id)])] = id;
  }
  for (auto& [key, node] : nodes) {
    std::set<ValueId> makers;
    for (ValueId id : plan.read(node.unit, graph_)) {
      const FusionUnit& maker = unit[at(id)];
      if (maker.group >= 0) makers.insert(group_key[static_cast<size_t>(maker.group)]);
      if (maker.op != kNoValue) makers.insert(maker.op);
    }
    node.waits = makers.size();
    for (ValueId maker : makers) nodes[maker].wanted_by.push_back(key);
  }
  std::set<ValueId> ready;
  for (const auto& [key, node] : nodes) {
    if (node.waits == 0) ready.insert(key);
  }
  while (!ready.empty()) {
    const Node& node = nodes[*ready.begin()];
    ready.erase(ready.begin());
    plan.order.push_back(node.unit);
    for (ValueId next : node.wanted_by) {
      if (--nodes[next].waits == 0) ready.insert(next);
    }
  }
  if (plan.order.size() != nodes.size())
    throw std::logic_error("groups that wait for each other: a bug of plan_fusion");
}

FusionPlan Planner::plan() {
  FusionPlan plan;
  std::vector<FusionUnit> unit(n_);  // the unit that stores a value
  std::vector<std::vector<ValueId>> needs(n_);
  std::vector<int> group_at(n_, -1);  // groups by the last value that they store
  for (ValueId id = 0; id < graph_.size(); ++id) {
    if (!runs_[at(id)] || graph_.op(id).kind == OpKind::kParameter) continue;
    if (!candidate_[at(id)]) {
      unit[at(id)] = {id, -1};
      continue;
    }
    if (members_[at(id)].empty()) continue;
    FusionGroup group{extent(id), body(id), {}, {}};
    if (group.ops.empty()) continue;
    for (const FusedOp& op : group.ops) {
      if (stored_[at(op.id)]) {
        group.stored.push_back(op.id);
        unit[at(op.id)] = {kNoValue, static_cast<int>(plan.groups.size())};
      }
      for (const Access& read : op.operands) {
        const bool inside =
            !stored_[at(read.source)] || (groups(read.source) && cluster_[at(read.source)] == id);
        if (!inside && std::ranges::find(group.sources, read.source) == group.sources.end()) {
          group.sources.push_back(read.source);
        }
      }
    }
    group_at[at(group.stored.back())] = static_cast<int>(plan.groups.size());
    plan.groups.push_back(std::move(group));
  }
  order_units(plan, unit, group_at);

  plan.last_use.assign(n_, -1);
  for (size_t i = 0; i < plan.order.size(); ++i) {
    const FusionUnit& u = plan.order[i];
    const int now = static_cast<int>(i);
    for (ValueId id : plan.written(u)) plan.last_use[at(id)] = now;
    for (ValueId id : plan.read(u, graph_)) plan.last_use[at(id)] = now;
  }
  for (size_t id = 0; id < n_; ++id) {
    if (outlives_[id]) plan.last_use[id] = static_cast<int>(plan.order.size());
  }
  return plan;
}

}  // namespace

std::span<const ValueId> FusionPlan::read(const FusionUnit& unit, const Graph& graph) const {
  return unit.group >= 0 ? groups[static_cast<size_t>(unit.group)].sources
                         : graph.op(unit.op).operands;
}

std::span<const ValueId> FusionPlan::written(const FusionUnit& unit) const {
  if (unit.group >= 0) return groups[static_cast<size_t>(unit.group)].stored;
  return {&unit.op, 1};
}

FusionPlan plan_fusion(const Program& program, const std::vector<bool>& constant) {
  return Planner(program, constant).plan();
}

std::vector<int> held_until(const Graph& graph, const FusionPlan& plan) {
  std::vector<int> last = plan.last_use;
  for (size_t i = plan.order.size(); i-- > 0;) {
    const ValueId id = plan.order[i].op;
    if (id == kNoValue || graph.op(id).kind != OpKind::kReshape) continue;
    int& operand = last[static_cast<size_t>(graph.op(id).operands[0])];
    operand = std::max(operand, last[static_cast<size_t>(id)]);
  }
  return last;
}

}  // namespace twinrun
