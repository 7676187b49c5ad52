// Evaluates programs op by op on all replicas; replicas and programs with the same operands share
// the result.
#include "backends/oracle/replica_walk.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>

#include "program/base/digest.h"
#include "program/graph/liveness.h"

namespace twinrun {
namespace {

bool same_attributes(const Attrs& a, const Attrs& b) {
  const auto all = [](const Attrs& x) {
    const auto& [dims, shape, dtype, value, reducer, compare, lhs, rhs, batch, groups, window, seed,
                 stream, stops] = x;
    return std::tie(dims, shape, dtype, value, reducer, compare, lhs, rhs, batch, groups, window,
                    seed, stream, stops);
  };
  return all(a) == all(b);
}

// What an op made of these operands.
struct Known {
  const Op* op;
  std::vector<Tensor> operands;
  Tensor result;

  bool is(const Op& other, std::span<const Tensor> read) const {
    return op->kind == other.kind && op->type == other.type &&
           same_attributes(op->attrs, other.attrs) &&
           std::ranges::equal(operands, read, [](const Tensor& a, const Tensor& b) {
             return a.raw() == b.raw() && a.type() == b.type();
           });
  }
};

// Lets inputs and states of equal bits be one tensor in all programs.
void share_given(std::span<const Program* const> programs, std::span<ReplicaWalk::Values> values) {
  std::map<std::pair<std::string, size_t>, Tensor> first;
  for (size_t p = 0; p < programs.size(); ++p) {
    const Graph& graph = programs[p]->graph;
    for (ValueId id = 0; id < graph.size(); ++id) {
      if (graph.op(id).kind != OpKind::kParameter) continue;
      for (size_t r = 0; r < values[p].size(); ++r) {
        Tensor& own = values[p][r][static_cast<size_t>(id)];
        const auto [known, is_new] = first.try_emplace({graph.op(id).name, r}, own);
        if (!is_new && own.valid() && known->second.valid() && known->second.same_bits(own))
          own = known->second;
      }
    }
  }
}

}  // namespace

ReplicaWalk::ReplicaWalk(const Program& program)
    : program_(program), last_use_(last_uses(program)), dead_(dead_values(program)) {}

bool ReplicaWalk::runs(ValueId id) const {
  return program_.graph.op(id).kind != OpKind::kParameter && !dead_[static_cast<size_t>(id)];
}

Status ReplicaWalk::run_op(ValueId id, Values& values, const Eval& eval, const Seen& seen) const {
  const Op& op = program_.graph.op(id);
  Values inputs(values.size());
  std::vector<Tensor> outputs(values.size()), contributions;
  for (size_t r = 0; r < values.size(); ++r) {
    for (ValueId operand : op.operands)
      inputs[r].push_back(values[r][static_cast<size_t>(operand)]);
    if (op.kind == OpKind::kAllReduce) contributions.push_back(inputs[r][0]);
  }
  for (size_t r = 0; r < values.size(); ++r) {
    bool same = r > 0;
    for (size_t i = 0; same && i < inputs[r].size(); ++i)
      same = inputs[r][i].raw() == inputs[0][i].raw();
    if (r > 0 && (same || op.kind == OpKind::kAllReduce)) {
      outputs[r] = outputs[0];
    } else {
      TWINRUN_ASSIGN(outputs[r], eval(op, contributions.empty() ? inputs[r] : contributions));
    }
  }
  seen(id, inputs, outputs);
  for (size_t r = 0; r < values.size(); ++r) {
    values[r][static_cast<size_t>(id)] = outputs[r];
    for (ValueId operand : op.operands) {
      if (last_use_[static_cast<size_t>(operand)] == id)
        values[r][static_cast<size_t>(operand)] = Tensor();
    }
  }
  return Ok{};
}

Status ReplicaWalk::run(Values& values, const Eval& eval, const Seen& seen) const {
  for (ValueId id = 0; id < program_.graph.size(); ++id) {
    if (runs(id)) TWINRUN_RETURN_IF_ERROR(run_op(id, values, eval, seen));
  }
  return Ok{};
}

std::vector<std::vector<size_t>> alike(std::span<const Program* const> programs) {
  constexpr double kMore = 0.25;  // of the first program's elements
  // A set of programs, and the elements of their results by what computes them: the names of the op
  // and of all that it depends on.
  struct Set {
    std::vector<size_t> programs;
    std::set<Digest> made;
    double room = 0;
  };
  std::vector<Set> sets;
  for (size_t p = 0; p < programs.size(); ++p) {
    std::vector<std::pair<Digest, double>> own;
    double all = 0;
    for (const Op& op : programs[p]->graph.ops()) {
      DigestBuilder builder;
      builder.add(op.name);
      builder.add(to_string(op.type));
      for (const ValueId operand : op.operands)
        builder.add(own[static_cast<size_t>(operand)].first);
      own.emplace_back(builder.finish(), static_cast<double>(op.type.elements()));
      all += own.back().second;
    }
    const auto more = [&](const Set& set) {
      double elements = 0;
      for (const auto& [digest, size] : own) elements += set.made.contains(digest) ? 0 : size;
      return elements;
    };
    auto set = std::ranges::find_if(sets, [&](const Set& s) { return more(s) <= s.room; });
    if (set == sets.end()) {
      sets.push_back({{}, {}, all * (1 + kMore)});
      set = sets.end() - 1;
    }
    set->room -= more(*set);
    set->programs.push_back(p);
    for (const auto& [digest, size] : own) set->made.insert(digest);
  }
  std::vector<std::vector<size_t>> out;
  for (Set& set : sets) out.push_back(std::move(set.programs));
  return out;
}

Status walk_together(std::span<const Program* const> programs,
                     std::span<ReplicaWalk::Values> values, const ReplicaWalk::Eval& eval,
                     const SeenOfProgram& seen) {
  share_given(programs, values);
  std::vector<ReplicaWalk> walks;
  std::unordered_map<std::string, int> left;  // the programs that have yet to run an op of a name
  for (const Program* program : programs) {
    walks.emplace_back(*program);
    for (ValueId id = 0; id < program->graph.size(); ++id) {
      if (walks.back().runs(id)) ++left[program->graph.op(id).name];
    }
  }
  std::unordered_map<std::string, std::vector<Known>> known;
  const ReplicaWalk::Eval once = [&](const Op& op,
                                     std::span<const Tensor> operands) -> Result<Tensor> {
    std::vector<Known>& results = known[op.name];
    const auto found =
        std::ranges::find_if(results, [&](const Known& result) { return result.is(op, operands); });
    if (found != results.end()) return found->result;
    TWINRUN_ASSIGN(Tensor result, eval(op, operands));
    if (left[op.name] > 1) results.push_back({&op, {operands.begin(), operands.end()}, result});
    return result;
  };
  // The program that is least advanced comes next, so that few results are kept for the others.
  std::vector<ValueId> at(programs.size(), 0);
  const auto progress = [&](size_t p) {
    return static_cast<double>(at[p]) / static_cast<double>(programs[p]->graph.size());
  };
  for (;;) {
    size_t next = 0;
    for (size_t p = 1; p < programs.size(); ++p) {
      if (progress(p) < progress(next)) next = p;
    }
    const ValueId id = at[next];
    if (id >= programs[next]->graph.size()) return Ok{};
    ++at[next];
    if (!walks[next].runs(id)) continue;
    TWINRUN_RETURN_IF_ERROR(walks[next].run_op(
        id, values[next], once,
        [&](ValueId op, const ReplicaWalk::Values& operands, const std::vector<Tensor>& results) {
          seen(next, op, operands, results);
        }));
    const std::string& name = programs[next]->graph.op(id).name;
    if (--left[name] == 0) known.erase(name);
  }
}

}  // namespace twinrun
