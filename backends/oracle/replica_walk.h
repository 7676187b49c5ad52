// Evaluates a program op by op on all replicas, with the caller's arithmetic: binary64
// (f64_engine.cc), or a prime field (harness/sharding/field_proof.cc). Values that replicas share
// are computed once. A value is released after its last reader. Several programs that differ little
// are evaluated side by side, and what an op of the same name makes of the same tensors in several
// of them is computed once.
//
//   ReplicaWalk walk(program);                     // keeps a reference
//   walk.run(values, eval, seen);                  // values[replica][id] holds inputs and state
//   values[r][program.outputs[0].id];              // after it, outputs and next states
//
//   for (const auto& some : alike(programs)) ...   // indices; each set fits into memory at once
//   walk_together(programs, values, eval, seen);   // values[program][replica][id]
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
  // Evaluates op `id`.
  Status run_op(ValueId id, Values& values, const Eval& eval, const Seen& seen) const;
  bool runs(ValueId id) const;  // neither given nor dead

 private:
  const Program& program_;
  std::vector<ValueId> last_use_;
  std::vector<bool> dead_;
};

// The programs, by index, in sets: what a set computes in all has at most a quarter more elements
// than its first program, so evaluating it together needs little more memory.
std::vector<std::vector<size_t>> alike(std::span<const Program* const> programs);

// Runs the programs on their values. `seen` gets the program's index.
using SeenOfProgram = std::function<void(size_t program, ValueId id, const ReplicaWalk::Values&,
                                         const std::vector<Tensor>&)>;
Status walk_together(std::span<const Program* const> programs,
                     std::span<ReplicaWalk::Values> values, const ReplicaWalk::Eval& eval,
                     const SeenOfProgram& seen);

}  // namespace twinrun
