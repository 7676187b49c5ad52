// Runs the step on one device once, and keeps marks of its values.
#include "harness/sharding/repair_values.h"

#include <algorithm>
#include <cmath>

namespace twinrun {

std::vector<bool> drawn_values(const Program& program) {
  std::vector<bool> floats(static_cast<size_t>(program.graph.size())), bits = floats, out = floats;
  for (ValueId id = 0; id < program.graph.size(); ++id) {
    const Op& op = program.graph.op(id);
    const auto at = static_cast<size_t>(id);
    floats[at] = op.kind == OpKind::kParameter && is_floating(op.type.dtype);
    bits[at] = op.kind == OpKind::kXor;
    for (const ValueId operand : op.operands) {
      floats[at] = floats[at] || floats[static_cast<size_t>(operand)];
      bits[at] = bits[at] || bits[static_cast<size_t>(operand)];
    }
    out[at] = bits[at] && !floats[at] && is_floating(op.type.dtype);
  }
  return out;
}

Result<WholeValues> WholeValues::make(const Program& program, ReplicaWalk::Values given,
                                      const ReplicaWalk::Eval& eval, const std::set<int64_t>& parts,
                                      size_t cores) {
  WholeValues out;
  const std::vector<bool> drawn = drawn_values(program);
  std::vector<bool> constant(static_cast<size_t>(program.graph.size()));
  for (ValueId id = 0; id < program.graph.size(); ++id) {
    const Op& op = program.graph.op(id);
    constant[static_cast<size_t>(id)] =
        op.kind != OpKind::kParameter && std::ranges::all_of(op.operands, [&](ValueId operand) {
          return constant[static_cast<size_t>(operand)];
        });
    if (op.kind == OpKind::kParameter)
      out.keep(op, given[0][static_cast<size_t>(id)], false, parts, cores);
  }
  for (const Input& input : program.inputs)
    out.inputs_.push_back(given[0][static_cast<size_t>(input.id)]);
  TWINRUN_RETURN_IF_ERROR(
      ReplicaWalk(program).run(given, eval, [&](ValueId id, const auto&, const auto& results) {
        const Op& op = program.graph.op(id);
        out.keep(op, results[0], constant[static_cast<size_t>(id)], parts, cores);
        if (drawn[static_cast<size_t>(id)]) out.draws_[op.kind].push_back(results[0]);
      }));
  for (auto* tables : {&out.values_, &out.constants_})
    for (auto& [dims, marks] : *tables) std::ranges::sort(marks, {}, &Mark::first);
  return out;
}

std::optional<std::vector<Tensor>> WholeValues::rows(const std::vector<Tensor>& own,
                                                     std::vector<size_t>& order) const {
  const auto cores = static_cast<int64_t>(own.size());
  for (const Tensor& input : inputs_) {
    if (input.dims().empty() || input.dims()[0] % cores != 0 || own[0].dims().empty()) continue;
    const int64_t each = input.dims()[0] / cores;
    Dims dims = input.dims();
    dims[0] = each;
    if (dims != own[0].dims()) continue;
    std::vector<Tensor> expected;
    for (int64_t r = 0; r < cores; ++r) expected.push_back(input.rows(r * each, (r + 1) * each));
    order.clear();
    for (const Tensor& core : own) {
      const auto from =
          std::ranges::find_if(expected, [&](const Tensor& t) { return t.same_bits(core); });
      if (from != expected.end()) order.push_back(static_cast<size_t>(from - expected.begin()));
    }
    if (order.size() != own.size()) continue;
    for (size_t r = 0; r < order.size(); ++r)
      if (!expected[order[r]].same_bits(expected[r])) return expected;
    return std::nullopt;
  }
  return std::nullopt;
}

std::vector<size_t> WholeValues::order(const Dims& dims, const std::vector<Mark>& own) const {
  const auto known = blocks_.find(dims);
  if (known == blocks_.end()) return {};
  for (const std::vector<Mark>& blocks : known->second) {
    std::vector<size_t> from;
    for (const Mark& block : blocks) {
      const double n = static_cast<double>(own.size());
      const auto at = std::ranges::find_if(
          own, [&](const Mark& m) { return m.is(block) || m.scaled(1 / n).is(block); });
      if (at == own.end() || block.size == 0) break;
      from.push_back(static_cast<size_t>(at - own.begin()));
    }
    std::set<size_t> distinct(from.begin(), from.end());
    if (distinct.size() == own.size() && !std::ranges::is_sorted(from)) return from;
  }
  return {};
}

bool WholeValues::is_diagonal(const Dims& dims, const std::vector<Mark>& own) const {
  const auto known = diagonals_.find(dims);
  return known != diagonals_.end() && !own.empty() &&
         std::ranges::any_of(known->second, [&](const std::vector<Mark>& blocks) {
           return std::ranges::equal(
               own, blocks, [](const Mark& a, const Mark& b) { return b.size > 0 && a.is(b); });
         });
}

std::vector<Tensor> WholeValues::draw(OpKind kind, size_t k, const Dims& dims, size_t cores) const {
  const auto known = draws_.find(kind);
  if (known == draws_.end() || k >= known->second.size()) return {};
  const Tensor& whole = known->second[k];
  if (whole.dims() == dims) return std::vector<Tensor>(cores, whole);
  if (whole.dims().size() != dims.size() || dims.empty()) return {};
  Dims all = dims;
  all[0] *= static_cast<int64_t>(cores);
  std::vector<Tensor> out;
  for (int64_t r = 0; whole.dims() == all && r < static_cast<int64_t>(cores); ++r)
    out.push_back(whole.rows(r * dims[0], (r + 1) * dims[0]));
  return out;
}

bool WholeValues::in(const Table& table, const Dims& dims, const Mark& mark) {
  const auto known = table.find(dims);
  if (known == table.end() || mark.size == 0) return false;
  const double most = 0x1p-24 * mark.size;
  auto at = std::ranges::lower_bound(known->second, mark.first - most, {}, &Mark::first);
  for (; at != known->second.end() && at->first <= mark.first + most; ++at)
    if (at->size > 0 && mark.is(*at)) return true;
  return false;
}

void WholeValues::keep(const Op& op, const Tensor& value, bool constant,
                       const std::set<int64_t>& parts, size_t cores) {
  const bool number = is_floating(op.type.dtype);
  const auto add = [&](const Dims& dims, const Mark& mark) {
    if (number && std::isfinite(mark.size)) (constant ? constants_ : values_)[dims].push_back(mark);
  };
  add(value.dims(), mark_of(value));
  for (size_t d = 0; d < value.dims().size() && value.elements() <= kMaxBlocks; ++d) {
    for (const int64_t count : parts) {
      if (value.dims()[d] % count != 0 || (value.dims()[d] == count && d > 0)) continue;
      Dims dims = value.dims();
      dims[d] /= count;
      const std::vector<Mark> marks = marks_of_blocks(value, d, count);
      for (const Mark& mark : marks) add(dims, mark);
      if (count == static_cast<int64_t>(cores)) blocks_[dims].push_back(marks);
    }
  }
  const auto n = static_cast<int64_t>(cores);
  if (!number || value.dims().size() != 2 || value.dims()[0] != value.dims()[1] ||
      value.dims()[0] % n != 0 || value.elements() > kMaxBlocks)
    return;
  const int64_t each = value.dims()[0] / n;
  std::vector<Mark> diagonal;
  for (int64_t r = 0; r < n; ++r)
    diagonal.push_back(
        marks_of_blocks(value.rows(r * each, (r + 1) * each), 1, n)[static_cast<size_t>(r)]);
  diagonals_[{each, each}].push_back(diagonal);
}

}  // namespace twinrun
