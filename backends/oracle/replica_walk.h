// Evaluates a program op by op on all replicas, with the caller's arithmetic: binary64
// (f64_engine.cc), or a prime field (harness/sharding/field_proof.cc). Values that replicas share
// are computed once. A value is released after its last reader.
//
//   ReplicaWalk walk(program);                     // keeps a reference
//   walk.run(values, eval, seen);                  // values[replica][id] holds inputs and state
//   values[r][program.outputs[0].id];              // after it, outputs and next states
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
  // Computes one op on one replica; for an all-reduce the operands are the contributions of all
  // replicas.
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
