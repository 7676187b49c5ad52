// Whether a sharded program means what the whole batch's does, as a function and not on these numbers: both are evaluated over the
// prime field of 2^61 - 1 elements (backends/oracle/field.h) at random points. Sums, products and quotients are exact there, so what
// only adds up in another order is equal to the bit, and what is equal at random points is the same polynomial but for a chance
// of (degree / 2^61) each (Schwartz and Zippel).
//
// Random are features, weights of items, the learning rate and the whole state, the same on both programs; labels, tokens, numbers of
// samples and the step are those of the scenario's step: they are places in tensors. Compared are gradients as the optimizer takes
// them and every state variable after the step, on each replica. The update is the TPU stack's on both: sharding alone is asked about.
//
//   auto proofs = prove_meaning(experiment, {faithful(experiment), experiment.sharding}, threads);
//   proofs[0].equal();              // the same function
//   proofs[1].parts_at;             // "bn1/mean_broadcast": the first value that is not the whole batch's
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
  // Per kind of a step, but for the evaluation, which follows from the state: equal at every point, on every replica. Of the
  // update: with slots and counters.
  std::array<bool, 3> same = {true, true, true};
  double degree = 1;     // at most, of what is compared
  std::string unproven;  // why the program has no value over the field; then nothing above is said
  std::string
      parts_at;  // the first value of the sharded program that the whole batch's has otherwise; "" where none was found
  std::string parts_reads;  // what it reads of which each core has a part only: "bn1/mean"

  bool proves(StepKind kind) const { return unproven.empty() && same[static_cast<size_t>(kind)]; }
  bool equal() const { return unproven.empty() && same[0] && same[1] && same[2]; }
  // log2 of the chance that other functions were equal at all points.
  double log2_error() const;
};

ProofRow row_of(const std::string& program, const FieldProof& proof);

// Of each sharding of the experiment's model, in their order.
Result<std::vector<FieldProof>> prove_meaning(const Experiment& experiment,
                                              const std::vector<Sharding>& shardings, int threads,
                                              int64_t step = 0);

}  // namespace twinrun
