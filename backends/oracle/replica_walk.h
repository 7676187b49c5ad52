// All replicas of a program op by op, in whatever numbers the caller computes: binary64 (f64_engine.cc), or a prime field
// (harness/sharding/field_proof.cc). What replicas share is computed once, and a value is let go after its last reader.
//
//   ReplicaWalk walk(program);                          // keeps a reference
//   walk.run(values, eval, seen);                       // values[replica][id]: inputs and state are there, the rest is filled in
//   values[r][program.outputs[0].id];                   // outputs and next states remain
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "program/base/result.h"
#include "program/base/tensor.h"
#include "program/graph/program.h"

namespace twinrun {

class ReplicaWalk {
 public:
  using Values = std::vector<std::vector<Tensor>>;
  // One op on one replica; of an all-reduce the contributions of all.
  using Eval = std::function<Result<Tensor>(const Op& op, std::span<const Tensor> operands)>;
  using Seen =
      std::function<void(ValueId id, const Values& operands, const std::vector<Tensor>& results)>;

  explicit ReplicaWalk(const Program& program);
  Status run(Values& values, const Eval& eval, const Seen& seen) const;

 private:
  const Program& program_;
  std::vector<ValueId> last_use_;
  std::vector<bool> dead_;
};

}  // namespace twinrun
