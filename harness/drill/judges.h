// The honest engines that decide what a fault is in truth: kHonest variants of the subject's own declaration. Shares no code with
// lockstep, bounds, envelopes or classifier.
//
// At level A they judge the faulty op, computed again on the inputs that it had; at level C all that tensors show of the step:
// loss, gradients and the state after it, computed again from the state before it.
#pragma once

#include <memory>

#include "backends/variants/variant.h"

namespace twinrun::drill {

inline constexpr int kHonest = 32;
inline constexpr double kFactor = 4;

std::vector<Variant> honest_judges(const Capabilities& declared);

// A result against those of honest engines, element by element: its distance from the middle of their results, in units of kFactor
// times the largest of half their range there, the median of that over the result, and one ulp. Where all of one op's results agree
// on every element, any difference is infinite.
struct Comparison {
  double distance = 0;  // of the worst element (of at most 4096); above 1: outside
  double lean = 0;      // of all, to one side, in standard deviations of the honest ones'
};

// One op; for all_reduce the inputs are the contributions.
Comparison compare(const std::vector<Variant>& honest, const Op& op,
                   const std::vector<Tensor>& inputs, const Tensor& output);

// A whole step.
class StepJudges {
 public:
  static Result<StepJudges> make(const std::vector<Variant>& honest, const Program& program);
  // Comparison::distance of the tensor for which it is largest, over all replicas.
  Result<double> distance(int64_t step, const States& before, const StepInputs& inputs,
                          const States& after, const StepOutputs& outputs);

 private:
  std::vector<std::unique_ptr<Backend>> backends_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

}  // namespace twinrun::drill
