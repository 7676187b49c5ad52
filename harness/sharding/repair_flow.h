// Where the values of a sharded program go: whether the cores' parts are reduced later, and what a
// number is for. Used by repair.cc.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backends/oracle/replica_walk.h"

namespace twinrun {

// Two random sums of a tensor's elements, which are linear in it, and its norm: what tensors are
// told apart by.
struct Mark {
  double first = 0, second = 0, size = 0;
  Mark scaled(double by) const { return {first * by, second * by, size * (by < 0 ? -by : by)}; }
  Mark plus(const Mark& other) const {
    return {first + other.first, second + other.second, size + other.size};
  }
  // But for rounding: 2^-26 of the size, or of what it is the sum of.
  bool is(const Mark& other) const;
};
Mark mark_of(const Tensor& tensor);
// Of the equal parts into which a dimension is cut.
std::vector<Mark> marks_of_blocks(const Tensor& tensor, size_t dim, int64_t count);
Tensor in_binary64(const Tensor& tensor);

// The cores that a reduction joins: a number for each core, the same for those that are joined.
using JoinedCores = std::vector<int>;
size_t size_of_groups(const JoinedCores& groups);

// "train.py:41", of the name of an op that was made of a text.
std::string line_of(const std::string& name);

class RepairFlow {
 public:
  // Walks the program once as it is. `more`: groups in which no reduction may join the cores.
  static Result<RepairFlow> make(const Program& program, ReplicaWalk::Values given,
                                 const ReplicaWalk::Eval& eval,
                                 const std::vector<JoinedCores>& more);

  // All cores, then the groups of the program's own reductions and those across them, then more.
  const std::vector<JoinedCores>& groups() const { return groups_; }
  bool uniform(ValueId id, const JoinedCores& groups) const;
  const std::vector<ValueId>& users(ValueId id) const { return users_[static_cast<size_t>(id)]; }
  // Whether the text alone gives it.
  bool is_constant(ValueId id) const { return constant_[static_cast<size_t>(id)]; }
  // Whether a next state or an output is the value.
  bool is_result(ValueId id) const { return results_.contains(id); }
  // Every path from the value, through linear ops, is summed over the groups.
  bool reduced_later(ValueId id, size_t groups) const {
    return later_[groups][static_cast<size_t>(id)];
  }
  // It goes through an op that is not linear, and then into such a sum.
  bool reduced_late(ValueId id, size_t groups) const;
  // The sums over cores that it comes from through linear ops.
  std::vector<ValueId> sums_before(ValueId id) const;
  // The sum over so many cores in a derivative that comes before it, or none.
  ValueId sum_in_derivative(ValueId id, double cores) const;
  // The sums over cores that it goes into.
  std::vector<ValueId> sums_after(ValueId id) const;
  // Which cores each all-reduce joins, and how many.
  const std::map<ValueId, JoinedCores>& sums() const { return joined_; }
  double joins(ValueId sum) const { return static_cast<double>(size_of_groups(joined_.at(sum))); }
  // What a core adds to it.
  ValueId term(ValueId sum) const;
  // Its operand is a table with a row for each group.
  bool is_table(ValueId sum) const;
  // It is divided by the number of its terms at once.
  bool is_mean(ValueId sum) const;
  // The number by which an op divides the other operand, and that operand.
  std::optional<std::pair<ValueId, double>> scaling(ValueId id) const;
  // Another op scales, sums or moves it at once: what it is shows there. If it is a multiple and is
  // summed over another number of cores, which hold it alike, it shows here.
  bool goes_on(ValueId id, double factor) const;
  // A root is taken of it, or another value is divided by it.
  bool normalises(ValueId id) const;
  // A mean over the cores is taken of what it is made into, and the root of that.
  bool averages_before_root(ValueId id) const;
  bool is_count(ValueId id) const;
  bool is_counted(ValueId id) const;  // it is divided by a number that differs between cores
  bool compared(ValueId id) const;    // it, or a norm of it, is compared, or is put to a norm
  bool goes_into_root(ValueId id) const;
  // The first root, comparison or square that it goes into, or none.
  ValueId not_linear_after(ValueId id) const;
  // The loss depends on it, and of that also an update: it is no part of a report alone.
  bool forward(ValueId id) const { return forward_[static_cast<size_t>(id)]; }
  bool is_differentiated(ValueId id) const {
    return forward(id) && updates_[static_cast<size_t>(id)];
  }
  bool is_needed(ValueId id) const { return needed_[static_cast<size_t>(id)]; }  // by a next state
  // The next states that depend on any of the values.
  std::vector<std::string> reached(const std::vector<ValueId>& ids) const;

 private:
  OpKind kind(ValueId id) const { return program_->graph.op(id).kind; }
  explicit RepairFlow(const Program& program) : program_(&program) {}
  bool linear(ValueId user, ValueId id, const JoinedCores& groups) const;
  bool sums(ValueId user, const JoinedCores& groups) const;
  void find_later();
  std::vector<bool> before(const std::set<ValueId>& ids) const;  // what they are made of
  bool is_summed_alike(ValueId user, ValueId id, double factor) const;
  template <typename Through, typename Found>
  bool flows(ValueId id, int steps, const Through& through, const Found& found) const;

  const Program* program_;
  std::vector<std::vector<ValueId>> users_;
  std::vector<std::vector<Mark>> marks_;  // [value][core]
  std::vector<bool> constant_;
  std::vector<std::optional<double>> constants_;  // of constant values whose elements are equal
  std::map<ValueId, JoinedCores> joined_;         // of each all-reduce
  std::vector<JoinedCores> groups_;
  std::vector<std::vector<bool>> later_;  // [groups][value]
  std::vector<bool> forward_, needed_, updates_;
  std::set<ValueId> results_;
};

}  // namespace twinrun
