// The conforming engines that decide independently what a fault did: kConforming variants of the
// subject's own declaration. Shares no code with lockstep, bounds, envelopes or classifier.
//
// At level A they recompute the faulty op on the inputs that it had. At level C they recompute all
// that the tensors of the step show (loss, gradients, the state after it) from the state before it.
#pragma once

#include <memory>

#include "backends/variants/variant.h"

namespace twinrun::drill {

inline constexpr int kConforming = 32;
inline constexpr double kFactor = 4;

std::vector<Variant> conforming_judges(const Capabilities& declared);

// Compares a result with those of the conforming engines, element by element. Its distance from the
// middle of their range is measured in units of kFactor times the largest of: half their range at
// this element, the median of the half ranges that are not 0, and one ulp. Where all of them agree
// on every element of an op's result, any difference is infinite.
struct Comparison {
  double distance = 0;  // of the worst element (of at most 4096); above 1: outside
  // Bias in one direction over all elements, in standard deviations of the judges' own.
  double lean = 0;
};

// Compares one op. For all_reduce the inputs are the contributions.
Comparison compare(const std::vector<Variant>& conforming, const Op& op,
                   const std::vector<Tensor>& inputs, const Tensor& output);

// Compares a whole step.
class StepJudges {
 public:
  static Result<StepJudges> make(const std::vector<Variant>& conforming, const Program& program);
  // Returns Comparison::distance of the tensor for which it is largest, over all replicas.
  Result<double> distance(int64_t step, const States& before, const StepInputs& inputs,
                          const States& after, const StepOutputs& outputs);

 private:
  std::vector<std::unique_ptr<Backend>> backends_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

}  // namespace twinrun::drill
