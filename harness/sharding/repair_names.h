// What a repair of a sharded step says of the step: the name of the cause, the line, the axes of
// the mesh, the factor. Used by repair.cc.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "harness/sharding/repair.h"
#include "harness/sharding/repair_variants.h"

namespace twinrun {

// A repair of one value.
struct RepairPoint {
  enum Kind : uint8_t { kJoined, kFactor, kRepeated, kRows, kDraw } kind = kJoined;
  ValueId id = kNoValue;
  size_t groups = 0;
  bool summed = false;  // joined by a sum, not by a mean
  bool count = false;   // a number of samples, of which the mean is taken
  double factor = 1;
  bool rate = false;  // a factor that comes in after the gradient
  std::string cause = {};
  std::string detail = {};  // of rows their order, of a count the cores' shares
};

class RepairNames {
 public:
  RepairNames(const RepairTask& task, const RepairFlow& flow)
      : task_(task), flow_(flow), cores_(task.given.size()) {}

  // The cause of one repair among all that were made.
  std::string cause_of(const RepairPoint& p, const std::vector<RepairPoint>& all) const;
  // A cause with its facts, from the repairs that it is known by.
  RepairedCause described(const std::string& cause, const std::vector<RepairPoint>& points) const;
  RepairedCause described(const OtherCollective& other) const;
  // Whether factors outside of the loss undo each other: what is left is a term without them.
  bool compensates(const std::vector<RepairPoint>& all) const;
  // Whether the step, or its loss, compares the number of the core.
  bool asks_rank(bool in_loss) const;

 private:
  Phase phase(ValueId id) const { return task_.sharded.graph.op(id).phase; }
  std::string cause_of_factor(const RepairPoint& p, const std::vector<RepairPoint>& all) const;
  bool is_derived(ValueId id) const {
    return task_.sharded.graph.op(id).name.find(".grad") != std::string::npos;
  }
  ValueId where(const std::string& cause, ValueId id, const std::vector<RepairPoint>& points) const;
  ValueId origin(const std::string& cause, const RepairPoint& p) const;
  std::string cause_of_sum(ValueId id, double factor) const;
  const JoinedCores* equal_along(ValueId sum, double factor) const;
  std::vector<std::string> other_axes(const RepairPoint& p) const;
  bool is_divided(ValueId id) const;
  bool all_statistics(const std::vector<ValueId>& ids) const;
  int divisions(ValueId id) const;

  const RepairTask& task_;
  const RepairFlow& flow_;
  size_t cores_;
};

}  // namespace twinrun
