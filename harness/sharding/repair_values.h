// The values of the step on one device, by their sizes, and the blocks of them that cores may hold:
// what the values of a sharded step are recognised by. Used by repair.cc.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "harness/sharding/repair_flow.h"

namespace twinrun {

// Which values are made of random bits alone.
std::vector<bool> drawn_values(const Program& program);

class WholeValues {
 public:
  // parts: into how many blocks cores may divide a dimension.
  static Result<WholeValues> make(const Program& program, ReplicaWalk::Values given,
                                  const ReplicaWalk::Eval& eval, const std::set<int64_t>& parts,
                                  size_t cores);

  bool has(const Dims& dims, const Mark& mark) const { return in(values_, dims, mark); }
  // For values that differ between cores, which what the text alone gives may explain as well.
  bool explains(const Dims& dims, const Mark& mark) const {
    return has(dims, mark) || in(constants_, dims, mark);
  }
  // Of values that are rows of an input: the rows that each core is to have, if these are others.
  // `order`: which core's rows it has.
  std::optional<std::vector<Tensor>> rows(const std::vector<Tensor>& own,
                                          std::vector<size_t>& order) const;
  // Which core holds the block that each core is to have, where they hold each other's.
  std::vector<size_t> order(const Dims& dims, const std::vector<Mark>& own) const;
  // Whether each core holds the pairs of its own samples, of all pairs.
  bool is_diagonal(const Dims& dims, const std::vector<Mark>& own) const;
  // The draw of each core that is the whole batch's: the k-th of its kind.
  std::vector<Tensor> draw(OpKind kind, size_t k, const Dims& dims, size_t cores) const;

 private:
  using Table = std::map<Dims, std::vector<Mark>>;
  static bool in(const Table& table, const Dims& dims, const Mark& mark);
  void keep(const Op& op, const Tensor& value, bool constant, const std::set<int64_t>& parts,
            size_t cores);
  static constexpr int64_t kMaxBlocks = 1 << 20;  // elements of what is looked at in blocks

  Table values_, constants_;
  std::map<Dims, std::vector<std::vector<Mark>>> blocks_, diagonals_;
  std::map<OpKind, std::vector<Tensor>> draws_;
  std::vector<Tensor> inputs_;
};

}  // namespace twinrun
