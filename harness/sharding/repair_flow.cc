// One walk through the sharded program as it is, and questions about its graph.
#include "harness/sharding/repair_flow.h"

#include <algorithm>
#include <cmath>

#include "harness/experiment/experiment.h"

namespace twinrun {
namespace {

constexpr double kRounding = 0x1p-26;

// Between -1 and 1, of an element's place.
double random_of(uint64_t place, uint64_t seed) {
  uint64_t x = (place + 1) * 0x9e3779b97f4a7c15 + seed;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return static_cast<double>(static_cast<int64_t>(x ^ (x >> 31))) * 0x1p-63;
}

bool moves_only(OpKind kind) {
  return kind == OpKind::kReshape || kind == OpKind::kTranspose || kind == OpKind::kConvert;
}
bool is_scalar(const Op& op) { return op.type.elements() == 1; }
// What a core places in a table of rows (program/import/lower_collective.cc).
bool is_placed(const Op& op) {
  return op.kind == OpKind::kScatterAdd && op.name.find(".placed") != std::string::npos;
}
bool takes_own_row(const Op& op) {
  return op.kind == OpKind::kGather && op.name.find(".own") != std::string::npos;
}

}  // namespace

bool Mark::is(const Mark& other) const {
  const double most = kRounding * std::max(size, other.size);
  return std::fabs(first - other.first) <= most && std::fabs(second - other.second) <= most;
}

Mark mark_of(const Tensor& tensor) {
  return tensor.dims().empty() ? marks_of_blocks(tensor.reshaped({1}), 0, 1)[0]
                               : marks_of_blocks(tensor, 0, 1)[0];
}

std::vector<Mark> marks_of_blocks(const Tensor& tensor, size_t dim, int64_t count) {
  std::vector<Mark> marks(static_cast<size_t>(count));
  int64_t inner = 1;
  for (size_t d = dim + 1; d < tensor.dims().size(); ++d) inner *= tensor.dims()[d];
  const int64_t each = tensor.dims()[dim] / count * inner;  // elements of a block in a row of them
  const std::vector<double> values = as_doubles(tensor);
  const bool one = tensor.elements() == count;
  for (int64_t e = 0; each > 0 && e < std::ssize(values); ++e) {
    const int64_t row = e / each / count, place = row * each + e % each;
    Mark& mark = marks[static_cast<size_t>(e / each % count)];
    const double x = values[static_cast<size_t>(e)];
    mark.first += x * (one ? 1 : random_of(static_cast<uint64_t>(place), 1));
    mark.second += x * random_of(static_cast<uint64_t>(place), 2);
    mark.size += x * x;
  }
  for (Mark& mark : marks) mark.size = std::sqrt(mark.size);
  return marks;
}

Tensor in_binary64(const Tensor& tensor) {
  if (!is_floating(tensor.dtype()) || tensor.dtype() == DType::kF64) return tensor;
  const std::vector<double> values = as_doubles(tensor);
  Tensor out = Tensor::empty({DType::kF64, tensor.dims()});
  std::ranges::copy(values, out.as<double>().begin());
  return out;
}

size_t size_of_groups(const JoinedCores& groups) {
  return static_cast<size_t>(std::ranges::count(groups, groups.front()));
}

std::string line_of(const std::string& name) {
  std::string line = name.substr(name.find('@') == std::string::npos ? 0 : name.find('@') + 1);
  const size_t number = line.find(':');
  if (number == std::string::npos) return line;
  if (const size_t copy = line.find(':', number + 1); copy != std::string::npos) line.erase(copy);
  return line;
}

Result<RepairFlow> RepairFlow::make(const Program& program, ReplicaWalk::Values given,
                                    const ReplicaWalk::Eval& eval,
                                    const std::vector<JoinedCores>& more) {
  RepairFlow flow(program);
  const auto size = static_cast<size_t>(program.graph.size());
  const size_t cores = given.size();
  flow.users_.resize(size);
  flow.marks_.assign(size, std::vector<Mark>(cores));
  flow.constants_.resize(size);
  std::vector<bool>& constant = flow.constant_;
  constant.resize(size);
  for (ValueId id = 0; id < program.graph.size(); ++id) {
    const Op& op = program.graph.op(id);
    constant[static_cast<size_t>(id)] = op.kind != OpKind::kParameter;
    for (const ValueId operand : op.operands) {
      std::vector<ValueId>& users = flow.users_[static_cast<size_t>(operand)];
      if (users.empty() || users.back() != id) users.push_back(id);
      if (!constant[static_cast<size_t>(operand)]) constant[static_cast<size_t>(id)] = false;
    }
    for (size_t r = 0; op.kind == OpKind::kParameter && r < cores; ++r)
      flow.marks_[static_cast<size_t>(id)][r] = mark_of(given[r][static_cast<size_t>(id)]);
  }
  flow.groups_.push_back(JoinedCores(cores, 0));
  std::map<ValueId, JoinedCores> rows;  // of tables: which row each core fills
  TWINRUN_RETURN_IF_ERROR(ReplicaWalk(program).run(
      given, eval, [&](ValueId id, const ReplicaWalk::Values& operands, const auto& results) {
        const Op& op = program.graph.op(id);
        for (size_t r = 0; r < cores; ++r)
          flow.marks_[static_cast<size_t>(id)][r] =
              r > 0 && results[r].raw() == results[r - 1].raw()
                  ? flow.marks_[static_cast<size_t>(id)][r - 1]
                  : mark_of(results[r]);
        if (constant[static_cast<size_t>(id)] && is_floating(op.type.dtype)) {
          const std::vector<double> values = as_doubles(results[0]);
          if (!values.empty() && std::ranges::count(values, values[0]) == std::ssize(values))
            flow.constants_[static_cast<size_t>(id)] = values[0];
        }
        if (is_placed(op)) {
          JoinedCores& own = rows[id];
          for (const auto& core : operands)
            own.push_back(core[0].elements() > 0 ? core[0].template as<const int32_t>()[0] : 0);
        }
        if (op.kind == OpKind::kAllReduce) {
          const auto placed = rows.find(op.operands[0]);
          flow.joined_[id] = placed == rows.end() ? JoinedCores(cores, 0) : placed->second;
        }
      }));
  const auto add = [&](const JoinedCores& groups) {
    const size_t each = size_of_groups(groups);
    if (each > 1 && each < cores && std::ranges::find(flow.groups_, groups) == flow.groups_.end())
      flow.groups_.push_back(groups);
  };
  for (const auto& [id, groups] : flow.joined_) {
    JoinedCores across;
    std::map<int, int> seen;
    for (const int group : groups) across.push_back(seen[group]++);
    add(groups);
    add(across);
  }
  for (const JoinedCores& groups : more) add(groups);
  for (const StateVar& var : program.state)
    if (var.next != kNoValue) flow.results_.insert(var.next);
  for (const Output& output : program.outputs) flow.results_.insert(output.id);
  std::set<ValueId> losses;
  for (const Output& output : program.outputs)
    if (output.name == "loss") losses.insert(output.id);
  flow.forward_ = flow.before(losses);
  // A state may keep the loss.
  std::set<ValueId> next, updated;
  for (const StateVar& var : program.state) {
    if (var.next == kNoValue) continue;
    next.insert(var.next);
    if (!losses.contains(var.next)) updated.insert(var.next);
  }
  flow.needed_ = flow.before(next);
  flow.updates_ = flow.before(updated);
  flow.find_later();
  return flow;
}

std::vector<bool> RepairFlow::before(const std::set<ValueId>& ids) const {
  std::vector<bool> found(users_.size());
  for (const ValueId id : ids) found[static_cast<size_t>(id)] = true;
  for (ValueId id = program_->graph.size() - 1; id >= 0; --id)
    for (const ValueId operand : program_->graph.op(id).operands)
      if (found[static_cast<size_t>(id)]) found[static_cast<size_t>(operand)] = true;
  return found;
}

bool RepairFlow::uniform(ValueId id, const JoinedCores& groups) const {
  const std::vector<Mark>& marks = marks_[static_cast<size_t>(id)];
  std::map<int, size_t> first;
  for (size_t r = 0; r < marks.size(); ++r) {
    const Mark& other = marks[first.try_emplace(groups[r], r).first->second];
    if (!marks[r].is(other)) return false;
  }
  return true;
}

bool RepairFlow::sums(ValueId user, const JoinedCores& groups) const {
  const auto joined = joined_.find(user);
  if (joined == joined_.end()) return false;
  std::map<int, int> of;
  for (size_t r = 0; r < groups.size(); ++r)
    if (of.try_emplace(groups[r], joined->second[r]).first->second != joined->second[r])
      return false;
  return true;
}

bool RepairFlow::linear(ValueId user, ValueId id, const JoinedCores& groups) const {
  const Op& op = program_->graph.op(user);
  const auto others = [&](ValueId other) { return other == id || uniform(other, groups); };
  switch (op.kind) {
    case OpKind::kBroadcastInDim:
    case OpKind::kReshape:
    case OpKind::kTranspose:
    case OpKind::kConcatenate:
    case OpKind::kSlice:
    case OpKind::kPad:
    case OpKind::kNegate:
    case OpKind::kConvert:
    case OpKind::kAdd:
    case OpKind::kSubtract:
    case OpKind::kAvgPoolGrad:
    case OpKind::kAllReduce:
      return true;
    case OpKind::kReduce:
    case OpKind::kReduceWindow:
      return op.attrs.reducer != Reducer::kMax;
    case OpKind::kSelect:
      return op.operands[0] != id;
    case OpKind::kGather:
      return op.operands[1] != id;
    case OpKind::kScatterAdd:
      return op.operands[0] != id;
    case OpKind::kDivide:
      return op.operands[1] != id && others(op.operands[1]);
    case OpKind::kMultiply:
    case OpKind::kDotGeneral:
    case OpKind::kConvolution:
    case OpKind::kConvolutionInputGrad:
    case OpKind::kConvolutionKernelGrad:
      return op.operands[0] != op.operands[1] && others(op.operands[0]) && others(op.operands[1]);
    default:
      return false;
  }
}

void RepairFlow::find_later() {
  for (const JoinedCores& groups : groups_) {
    std::vector<bool>& later = later_.emplace_back(users_.size());
    for (ValueId id = program_->graph.size() - 1; id >= 0; --id)
      later[static_cast<size_t>(id)] =
          !users(id).empty() && !is_result(id) && std::ranges::all_of(users(id), [&](ValueId u) {
            return sums(u, groups) || (linear(u, id, groups) && later[static_cast<size_t>(u)]);
          });
  }
}

bool RepairFlow::reduced_late(ValueId id, size_t groups) const {
  std::set<std::pair<ValueId, bool>> seen;
  std::vector<std::pair<ValueId, bool>> todo = {{id, false}};
  while (!todo.empty()) {
    const auto [at, late] = todo.back();
    todo.pop_back();
    for (const ValueId user : users(at)) {
      const bool sum = sums(user, groups_[groups]);
      if (late && sum) return true;
      const bool after = late || !(sum || linear(user, at, groups_[groups]));
      if (seen.emplace(user, after).second) todo.emplace_back(user, after);
    }
  }
  return false;
}

std::vector<ValueId> RepairFlow::sums_before(ValueId id) const {
  std::vector<ValueId> found;
  std::set<ValueId> seen;
  std::vector<ValueId> todo = {id};
  while (!todo.empty()) {
    const ValueId at = todo.back();
    todo.pop_back();
    const Op& op = program_->graph.op(at);
    const auto joined = joined_.find(at);
    if (joined != joined_.end() && size_of_groups(joined->second) > 1) found.push_back(at);
    for (const ValueId operand : op.operands)
      if (linear(at, operand, groups_[0]) && seen.insert(operand).second) todo.push_back(operand);
  }
  return found;
}

// Whether the value flows, through at most `steps` ops for which `through` holds, into one for which
// `found` does.
template <typename Through, typename Found>
bool RepairFlow::flows(ValueId id, int steps, const Through& through, const Found& found) const {
  std::set<ValueId> seen;
  std::vector<ValueId> todo = {id};
  for (int step = 0; step < steps && !todo.empty(); ++step) {
    std::vector<ValueId> after;
    for (const ValueId at : todo)
      for (const ValueId user : users(at)) {
        if (!seen.insert(user).second) continue;
        if (found(user, at)) return true;
        if (through(user)) after.push_back(user);
      }
    todo = std::move(after);
  }
  return false;
}

std::vector<ValueId> RepairFlow::sums_after(ValueId id) const {
  std::vector<bool> after(users_.size());
  after[static_cast<size_t>(id)] = true;
  std::vector<ValueId> found;
  for (ValueId at = id + 1; at < program_->graph.size(); ++at) {
    for (const ValueId operand : program_->graph.op(at).operands)
      if (after[static_cast<size_t>(operand)]) after[static_cast<size_t>(at)] = true;
    const auto joined = joined_.find(at);
    if (after[static_cast<size_t>(at)] && joined != joined_.end() &&
        size_of_groups(joined->second) > 1)
      found.push_back(at);
  }
  return found;
}

bool RepairFlow::is_table(ValueId sum) const {
  return is_placed(program_->graph.op(program_->graph.op(sum).operands[0]));
}

ValueId RepairFlow::term(ValueId sum) const {
  const ValueId given = program_->graph.op(sum).operands[0];
  return is_table(sum) ? program_->graph.op(given).operands[1] : given;
}

bool RepairFlow::is_mean(ValueId sum) const {
  const auto through = [&](ValueId user) {
    return moves_only(kind(user)) || takes_own_row(program_->graph.op(user));
  };
  return flows(sum, 6, through, [&](ValueId user, ValueId) {
    const auto by = scaling(user);
    return by && std::fabs(by->second - joins(sum)) < 0x1p-20 * by->second;
  });
}

ValueId RepairFlow::sum_in_derivative(ValueId id, double cores) const {
  std::vector<bool> before(users_.size());
  before[static_cast<size_t>(id)] = true;
  for (ValueId at = id; at >= 0; --at) {
    if (!before[static_cast<size_t>(at)]) continue;
    const auto joined = joined_.find(at);
    if (joined != joined_.end() && program_->graph.op(at).name.find(".grad") != std::string::npos &&
        static_cast<double>(size_of_groups(joined->second)) == cores)
      return at;
    for (const ValueId operand : program_->graph.op(at).operands)
      before[static_cast<size_t>(operand)] = true;
  }
  return kNoValue;
}

std::optional<std::pair<ValueId, double>> RepairFlow::scaling(ValueId id) const {
  const Op& op = program_->graph.op(id);
  const auto constant = [&](ValueId value) { return constants_[static_cast<size_t>(value)]; };
  if (op.kind == OpKind::kDivide && constant(op.operands[1]) && !constant(op.operands[0]))
    return std::pair(op.operands[0], *constant(op.operands[1]));
  if (op.kind == OpKind::kMultiply) {
    for (const size_t i : {0U, 1U}) {
      const std::optional<double> by = constant(op.operands[i]);
      if (by && *by != 0 && !constant(op.operands[1 - i]))
        return std::pair(op.operands[1 - i], 1 / *by);
    }
  }
  return std::nullopt;
}

bool RepairFlow::is_summed_alike(ValueId user, ValueId id, double factor) const {
  if (const auto joined = joined_.find(user); joined != joined_.end())
    return size_of_groups(joined->second) > 1 && joins(user) != factor &&
           uniform(id, joined->second);
  const bool placed = moves_only(kind(user)) || is_placed(program_->graph.op(user));
  return placed && users(user).size() == 1 &&
         (is_placed(program_->graph.op(user)) || is_placed(program_->graph.op(users(user)[0]))) &&
         is_summed_alike(users(user)[0], id, factor);
}

bool RepairFlow::goes_on(ValueId id, double factor) const {
  return !is_result(id) && !users(id).empty() && std::ranges::all_of(users(id), [&](ValueId u) {
    if (is_summed_alike(u, id, factor)) return false;
    return scaling(u) || moves_only(kind(u)) || joined_.contains(u);
  });
}

namespace {

bool is_root(OpKind kind) { return kind == OpKind::kSqrt || kind == OpKind::kRsqrt; }
bool is_comparison(OpKind kind) {
  return kind == OpKind::kCompare || kind == OpKind::kMaximum || kind == OpKind::kMinimum;
}
bool is_arithmetic(OpKind kind) {
  switch (kind) {
    case OpKind::kAdd:
    case OpKind::kSubtract:
    case OpKind::kMultiply:
    case OpKind::kDivide:
    case OpKind::kNegate:
    case OpKind::kReduce:
    case OpKind::kSelect:
    case OpKind::kBroadcastInDim:
    case OpKind::kReshape:
    case OpKind::kTranspose:
    case OpKind::kConvert:
    case OpKind::kSlice:
    case OpKind::kConcatenate:
    case OpKind::kGather:
    case OpKind::kScatterAdd:
    case OpKind::kAllReduce:
      return true;
    default:
      return false;
  }
}

}  // namespace

bool RepairFlow::normalises(ValueId id) const {
  const auto through = [&](ValueId user) {
    return is_arithmetic(kind(user)) || kind(user) == OpKind::kMaximum;
  };
  return is_count(id) || flows(id, 14, through, [&](ValueId user, ValueId) {
           if (is_scalar(program_->graph.op(user))) return false;
           return kind(user) == OpKind::kRsqrt || (kind(user) == OpKind::kSqrt && is_count(user));
         });
}

bool RepairFlow::averages_before_root(ValueId id) const {
  const auto through = [&](ValueId user) { return is_arithmetic(kind(user)) && forward(user); };
  return flows(id, 14, through, [&](ValueId square, ValueId at) {
    return through(square) && !linear(square, at, groups_[0]) &&
           flows(square, 14, through, [&](ValueId user, ValueId) {
             return joined_.contains(user) && forward(user) && normalises(user) && !is_count(user);
           });
  });
}

bool RepairFlow::is_count(ValueId id) const {
  const auto through = [&](ValueId user) {
    return moves_only(kind(user)) || kind(user) == OpKind::kBroadcastInDim || scaling(user) ||
           kind(user) == OpKind::kMaximum || kind(user) == OpKind::kAdd;
  };
  return flows(id, 6, through, [&](ValueId user, ValueId at) {
    const std::vector<ValueId>& operands = program_->graph.op(user).operands;
    return kind(user) == OpKind::kDivide && forward(user) && operands[1] == at && operands[0] != at;
  });
}

bool RepairFlow::is_counted(ValueId id) const {
  const auto through = [&](ValueId user) { return moves_only(kind(user)) || scaling(user); };
  return flows(id, 4, through, [&](ValueId user, ValueId at) {
    const std::vector<ValueId>& operands = program_->graph.op(user).operands;
    return kind(user) == OpKind::kDivide && operands[0] == at && !uniform(operands[1], groups_[0]);
  });
}

bool RepairFlow::compared(ValueId id) const {
  const auto through = [&](ValueId user) {
    return is_arithmetic(kind(user)) || is_root(kind(user)) || kind(user) == OpKind::kAbs;
  };
  return flows(id, 40, through, [&](ValueId user, ValueId) {
    return is_comparison(kind(user)) ||
           (is_root(kind(user)) && is_scalar(program_->graph.op(user)));
  });
}

bool RepairFlow::goes_into_root(ValueId id) const {
  const auto through = [&](ValueId user) { return is_arithmetic(kind(user)); };
  return flows(id, 12, through, [&](ValueId user, ValueId) {
    return is_root(kind(user)) || is_comparison(kind(user));
  });
}

ValueId RepairFlow::not_linear_after(ValueId id) const {
  ValueId first = kNoValue;
  flows(
      id, 40, [](ValueId) { return true; },
      [&](ValueId user, ValueId) {
        const std::vector<ValueId>& operands = program_->graph.op(user).operands;
        const bool square = kind(user) == OpKind::kMultiply && operands[0] == operands[1];
        if (!is_root(kind(user)) && !is_comparison(kind(user)) && !square) return false;
        first = user;
        return true;
      });
  return first;
}

std::vector<std::string> RepairFlow::reached(const std::vector<ValueId>& ids) const {
  std::vector<bool> from(users_.size());
  for (const ValueId id : ids) from[static_cast<size_t>(id)] = true;
  for (ValueId id = 0; id < program_->graph.size(); ++id)
    for (const ValueId operand : program_->graph.op(id).operands)
      if (from[static_cast<size_t>(operand)]) from[static_cast<size_t>(id)] = true;
  std::vector<std::string> names;
  for (const StateVar& var : program_->state)
    if (var.next != kNoValue && from[static_cast<size_t>(var.next)]) names.push_back(var.name);
  return names;
}

}  // namespace twinrun
