// Names the causes by where their repairs lie in the graph of the sharded step.
#include "harness/sharding/repair_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
namespace twinrun {
namespace {

// Whether cores that are together in `some` are in `groups`.
bool is_within(const JoinedCores& some, const JoinedCores& groups) {
  std::map<int, int> of;
  for (size_t core = 0; core < some.size(); ++core)
    if (of.try_emplace(some[core], groups[core]).first->second != groups[core]) return false;
  return true;
}

// "ppermute", of shard_map/ppermute.own@train.py:41.
std::string primitive_of(const std::string& name) {
  const std::string path = name.substr(0, name.find_first_of(".@"));
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

std::string RepairNames::cause_of(const RepairPoint& p, const std::vector<RepairPoint>& all) const {
  const bool forward = flow_.forward(p.id);
  if (p.kind == RepairPoint::kRows || p.kind == RepairPoint::kDraw) return p.cause;
  if (p.kind == RepairPoint::kRepeated) return "repeated_term";
  if (p.kind == RepairPoint::kFactor) return cause_of_factor(p, all);
  const auto in_loss = [&](const RepairPoint& other) {
    return other.kind == RepairPoint::kJoined && flow_.forward(other.id);
  };
  // A value of the backward pass that goes on in it belongs to what is repaired in the loss.
  const bool inside = phase(p.id) == Phase::kGradient && std::ranges::any_of(all, in_loss) &&
                      flow_.users(p.id).size() > 0 &&
                      std::ranges::any_of(flow_.users(p.id), [&](ValueId user) {
                        return phase(user) == Phase::kGradient;
                      });
  if (forward || inside) {
    const auto any = [&](const auto& is) {
      return std::ranges::any_of(all, [&](const RepairPoint& q) { return in_loss(q) && is(q); });
    };
    if (any([](const RepairPoint& q) { return q.count; })) return "token_mean";
    if (any([&](const RepairPoint& q) { return q.summed && flow_.is_count(q.id); }))
      return "partial_sum";
    if (any([&](const RepairPoint& q) { return flow_.averages_before_root(q.id); }))
      return "averaged_variance";
    if (any([&](const RepairPoint& q) { return flow_.normalises(q.id); })) return "batch_norm";
    return any([&](const RepairPoint& q) { return !q.summed || is_divided(q.id); })
               ? "late_reduction"
               : "partial_sum";
  }
  const bool norm = task_.sharded.graph.type(p.id).elements() == 1 && flow_.goes_into_root(p.id);
  if (norm || flow_.reduced_late(p.id, p.groups)) {
    if (norm && p.summed) return "shard_norm";
    if (all_statistics({p.id}))
      return asks_rank(false) ? "statistics" : "averaged_statistics";  // of one core
    return std::ranges::any_of(all, [&](const RepairPoint& q) { return flow_.compared(q.id); })
               ? "clipping"
               : "late_reduction";
  }
  if (all_statistics({p.id})) return "statistics";
  return other_axes(p).empty() ? "no_all_reduce" : "forgotten_axis";
}

std::string RepairNames::cause_of_factor(const RepairPoint& p,
                                         const std::vector<RepairPoint>& all) const {
  for (const RepairPoint& other : all) {
    // The derivative of a sum in the loss has its factor, and what lacks the sum one of its cores.
    const bool sums = other.kind == RepairPoint::kJoined && other.summed && flow_.forward(other.id);
    const double n = other.kind == RepairPoint::kRepeated ? other.factor
                     : sums ? static_cast<double>(size_of_groups(flow_.groups()[other.groups]))
                            : 0;
    if (n != 0 && (p.factor == n || p.factor == 1 / n)) return cause_of(other, all);
    if (other.kind == RepairPoint::kFactor && flow_.is_differentiated(other.id))
      return other.factor > 1 ? "sum_for_mean" : "mean_for_sum";
  }
  if (p.rate) return p.factor > 1 ? "rate_times_cores" : "rate_over_cores";
  if (p.factor > 1) return cause_of_sum(p.id, p.factor);
  return divisions(p.id) > 1 ? "scaled_twice" : "reduction";
}

// The axes over which a value is reduced where it comes from or goes to, beside those over which it
// has to be.
std::vector<std::string> RepairNames::other_axes(const RepairPoint& p) const {
  const std::vector<ValueId> before = flow_.sums_before(p.id);
  if (sets_of_axes(task_.axes).empty())
    return before.empty() ? std::vector<std::string>() : std::vector<std::string>{"other cores"};
  const std::vector<ValueId> after = flow_.sums_after(p.id);
  std::vector<std::string> names;
  for (const MeshAxis& axis : task_.axes) {
    const JoinedCores along = groups_along(task_.axes, {axis.name});
    const auto goes_over = [&](ValueId sum) { return is_within(along, flow_.sums().at(sum)); };
    if (axis.size == 1 || is_within(along, flow_.groups()[p.groups])) continue;
    if (std::ranges::any_of(before, goes_over) ||
        (!flow_.uniform(p.id, along) && std::ranges::any_of(after, goes_over)))
      names.push_back(axis.name);
  }
  return names;
}

// What a sum over cores that is no mean is.
std::string RepairNames::cause_of_sum(ValueId id, double factor) const {
  const Graph& graph = task_.sharded.graph;
  const auto line = [&](ValueId op) { return line_of(graph.op(op).name); };
  const std::vector<ValueId> sums = flow_.sums_before(id);
  // What is multiplied elsewhere is a mean all the same.
  const bool means = !sums.empty() && std::ranges::all_of(sums, [&](ValueId sum) {
    return flow_.is_mean(sum) && equal_along(sum, factor) == nullptr;
  });
  std::string cause = means ? "" : "unscaled";
  if (std::ranges::none_of(sums, [&](ValueId sum) { return flow_.joins(sum) == factor; }) &&
      flow_.sum_in_derivative(id, factor) != kNoValue)
    return "summed_in_derivative";
  for (const ValueId sum : sums) {
    if (equal_along(sum, factor) != nullptr) cause = "summed_twice";
    if (!is_derived(sum)) continue;
    cause = "summed_by_transpose";
    for (ValueId op = 0; op < sum; ++op)
      if (graph.op(op).kind == OpKind::kAllReduce && !is_derived(op) && line(op) == line(sum))
        return "summed_in_derivative";
  }
  return cause;
}

// The groups of so many of a sum's cores that hold alike what it adds up; none: nullptr.
const JoinedCores* RepairNames::equal_along(ValueId sum, double factor) const {
  for (const JoinedCores& groups : flow_.groups())
    if (static_cast<double>(size_of_groups(groups)) == factor &&
        is_within(groups, flow_.sums().at(sum)) && flow_.uniform(flow_.term(sum), groups))
      return &groups;
  return nullptr;
}

bool RepairNames::is_divided(ValueId id) const {
  return std::ranges::any_of(flow_.users(id),
                             [&](ValueId user) { return flow_.scaling(user).has_value(); });
}

bool RepairNames::compensates(const std::vector<RepairPoint>& all) const {
  const auto has = [&](const auto& is) {
    return std::ranges::any_of(all, [&](const RepairPoint& p) {
      return p.kind == RepairPoint::kFactor && is(p.factor, flow_.is_differentiated(p.id));
    });
  };
  return has([](double f, bool) { return f > 1; }) && has([](double f, bool) { return f < 1; }) &&
         !has([](double, bool in_loss) { return in_loss; });
}

bool RepairNames::all_statistics(const std::vector<ValueId>& ids) const {
  const std::vector<std::string> names = flow_.reached(ids);
  return !names.empty() && std::ranges::all_of(names, [&](const std::string& name) {
    const StateVar* var = task_.sharded.find_state(name);
    return var->role == StateRole::kStatistic;
  });
}

bool RepairNames::asks_rank(bool in_loss) const {
  const Graph& graph = task_.sharded.graph;
  std::vector<bool> core(static_cast<size_t>(graph.size()));
  for (ValueId id = 0; id < graph.size(); ++id) {
    const Op& op = graph.op(id);
    bool own = op.kind == OpKind::kParameter && op.name.find("replica_id") != std::string::npos;
    for (const ValueId operand : op.operands) own = own || core[static_cast<size_t>(operand)];
    core[static_cast<size_t>(id)] = own && !is_floating(op.type.dtype);
    if (own && op.kind == OpKind::kCompare && (!in_loss || flow_.forward(id))) return true;
  }
  return false;
}

// How often a gradient is divided by the number of cores: on its way, and with the loss.
int RepairNames::divisions(ValueId id) const {
  const double n = static_cast<double>(cores_);
  const auto counted = [&](ValueId at) {
    const auto by = flow_.scaling(at);
    return by && std::fabs(by->second - n) < 1e-6 * n;
  };
  int found = 0;
  for (ValueId at = id; flow_.scaling(at); at = flow_.scaling(at)->first) found += counted(at);
  for (ValueId at = 0; at < task_.sharded.graph.size(); ++at) {
    const Op& op = task_.sharded.graph.op(at);
    if (flow_.forward(at) && op.type.elements() == 1 && counted(at) &&
        task_.sharded.graph.op(flow_.scaling(at)->first).kind != OpKind::kAllReduce)
      return found + 1;
  }
  return found;
}

// The op whose line is told: of a gradient that is not reduced what it comes from, of what is
// reduced too late the op that is too early.
ValueId RepairNames::where(const std::string& cause, ValueId id,
                           const std::vector<RepairPoint>& points) const {
  const RepairPoint& p = points.front();
  if (cause == "clipping" || cause == "shard_norm" ||
      (cause == "late_reduction" && !flow_.forward(p.id))) {
    const ValueId after = flow_.not_linear_after(p.id);
    return after == kNoValue ? id : after;
  }
  if (p.kind == RepairPoint::kJoined)
    while (const auto before = flow_.scaling(id)) id = before->first;
  return id;
}

// The op that brings in a factor: a division by it, or a sum over cores.
ValueId RepairNames::origin(const std::string& cause, const RepairPoint& p) const {
  const auto divides = [&](ValueId id) {
    const auto by = flow_.scaling(id);
    return by && std::fabs(by->second * p.factor - 1) < 1e-6;
  };
  if (p.factor < 1) {
    for (ValueId at = 0; cause == "scaled_twice" && at < task_.sharded.graph.size(); ++at)
      if (flow_.forward(at) && task_.sharded.graph.type(at).elements() == 1 && divides(at) &&
          !flow_.sums().contains(flow_.scaling(at)->first))
        return at;
    for (ValueId at = p.id; flow_.scaling(at); at = flow_.scaling(at)->first)
      if (divides(at)) return at;
  }
  const std::vector<ValueId> sums = flow_.sums_before(p.id);
  const auto first = [&](const auto& is) {
    const auto at = std::ranges::find_if(sums, is);
    return at == sums.end() ? kNoValue : *at;
  };
  ValueId found = kNoValue;
  if (cause == "summed_twice")
    found = first([&](ValueId sum) { return equal_along(sum, p.factor) != nullptr; });
  if (cause == "summed_in_derivative" || cause == "summed_by_transpose") {
    found = first([&](ValueId sum) { return is_derived(sum) && flow_.joins(sum) == p.factor; });
    if (found == kNoValue) found = flow_.sum_in_derivative(p.id, p.factor);
  }
  return found == kNoValue && !sums.empty() ? sums.front() : found;
}

RepairedCause RepairNames::described(const std::string& cause,
                                     const std::vector<RepairPoint>& points) const {
  const auto counted = std::ranges::find_if(points, &RepairPoint::count);
  const RepairPoint& p = counted == points.end() ? points.front() : *counted;
  // Of a factor, the sum over cores that it comes from, where it is none of the rate.
  ValueId from = p.kind == RepairPoint::kFactor && !p.rate ? origin(cause, p) : kNoValue;
  JoinedCores along = flow_.groups()[p.groups];
  if (from == kNoValue) {
    from = p.id;
  } else {
    const JoinedCores* equal = cause == "summed_twice" ? equal_along(from, p.factor) : nullptr;
    const auto sum = flow_.sums().find(from);
    if (sum != flow_.sums().end()) along = sum->second;
    if (equal != nullptr) along = *equal;
  }
  const std::string& name = task_.sharded.graph.op(where(cause, from, points)).name;
  std::string names;
  if (p.kind == RepairPoint::kRows) {
    names = primitive_of(name);  // what moves them
  } else {
    std::vector<ValueId> ids;
    for (const RepairPoint& q : points) ids.push_back(q.id);
    std::vector<std::string> reached = flow_.reached(ids);
    const size_t more = reached.size() > 4 ? reached.size() - 4 : 0;
    reached.resize(reached.size() - more);
    names = fmt::format("{}", fmt::join(reached, ", "));
    if (more > 0) names += fmt::format(" and {} more", more);
  }
  const std::string factor = p.factor == 1  ? ""
                             : p.factor > 1 ? fmt::format("{:.6g}", p.factor)
                                            : fmt::format("1/{:.6g}", 1 / p.factor);
  return {cause,
          {{"line", line_of(name)},
           {"names", names},
           {"axes", axes_of(along, task_.axes)},
           {"factor", factor},
           {"shares", p.detail.empty() ? "unequal" : p.detail},
           {"summed", fmt::format("{}", fmt::join(other_axes(p), ", "))},
           {"order", p.detail},
           {"by", p.summed ? "psum" : "pmean"}}};
}

RepairedCause RepairNames::described(const OtherCollective& other) const {
  RepairedCause out = described(other.cause, {{.id = other.first}});
  out.facts["names"] = primitive_of(task_.sharded.graph.op(other.first).name);
  for (const auto& [key, value] : other.facts) out.facts[key] = value;
  return out;
}

}  // namespace twinrun
