// Whether a sharded program means the same as the whole batch's program, as a function and not only
// on the numbers at hand. Both are evaluated over the prime field of 2^61 - 1 elements
// (backends/oracle/field.h) at random points. Sums, products and quotients are exact there, so that
// sums in another order are equal to the bit, and values that are equal at random points are the
// same polynomial but for a chance of (degree / 2^61) each (Schwartz and Zippel).
//
// Features, weights of items, the learning rate and the whole state are random, and the same in
// both programs. Labels, tokens, sample ids and the step are those of the scenario's step, because
// they select positions in tensors. Gradients as the optimizer takes them and every state variable
// after the step are compared, on each replica. Both programs use the TPU stack's update, so that
// only sharding differs.
//
//   auto proofs = prove_meaning(experiment, {faithful(experiment), experiment.sharding}, threads);
//   proofs[0].equal();              // the same function
//   proofs[1].diverges_at;             // "bn1/mean_broadcast": the first value that differs
#pragma once

#include <array>
#include <string>
#include <vector>

#include "harness/experiment/experiment.h"
#include "harness/run/one_step.h"
#include "reports/report.h"

namespace twinrun {

inline constexpr int kFieldPoints = 2;

struct FieldProof {
  // Indexed by StepKind, without the evaluation, which follows from the state: whether the values
  // are equal at every point on every replica. The update includes slots and counters.
  std::array<bool, 3> same = {true, true, true};
  double degree = 1;  // upper bound on the degree of what is compared
  // Why the program has no value over the field; the other members then say nothing.
  std::string unproven;
  // The first value of the sharded program that differs from the whole batch's; "" if none was
  // found.
  std::string diverges_at;
  // The operand of it that each core holds only a part of: "bn1/mean".
  std::string diverging_operand;

  bool proves(StepKind kind) const { return unproven.empty() && same[static_cast<size_t>(kind)]; }
  bool equal() const { return unproven.empty() && same[0] && same[1] && same[2]; }
  // log2 of the chance that different functions agree at all points.
  double log2_error() const;
};

ProofRow row_of(const std::string& program, const FieldProof& proof);

// One proof for each sharding of the experiment's model, in their order. `step` is the scenario's
// step that gives labels, tokens and sample ids. Errors: its data cannot be read.
Result<std::vector<FieldProof>> prove_meaning(const Experiment& experiment,
                                              const std::vector<Sharding>& shardings, int threads,
                                              int64_t step = 0);

}  // namespace twinrun
