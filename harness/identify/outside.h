// Describes tensors that lie outside the envelope of conforming engines: which elements are wrong,
// what they look like, and on which cores. For identify.cc, which decides what is outside.
//
//   std::vector<TensorMismatch> reported = describe(view, outside);  // in the order of computation
#pragma once

#include <map>
#include <vector>

#include "harness/envelope/envelope.h"
#include "harness/identify/identify.h"

namespace twinrun {

struct OutsideView {
  const Program& asked;
  const std::vector<Compared>& tensors;
  const std::vector<ProbedState>& states;
  const Observed& subject;
  const std::vector<Observed>& members;
  const Envelope& conforming;
  const Observed& exact;                    // the expected values, in binary64
  const Observed* parts = nullptr;          // the same of each core before the all-reduce
  std::map<int64_t, Observed> before = {};  // by step: expected values at the step before it
  std::map<int64_t, Observed> gave = {};    // by step: the subject's values at the step before it
  double false_alarm = 1e-6;
};

// `outside`: the distances that are outside.
std::vector<TensorMismatch> describe(const OutsideView& view, const std::vector<Distance>& outside);

// Repeats the update of `state` on the reference as `program` has it, from the gradients that the
// subject reported for `asked`.
Result<ProbedState> updated_as_reported(const Experiment& experiment, const Program& program,
                                        const Program& asked, const Capabilities& declared,
                                        const ProbedState& state, int threads);
// Marks in `reported` which updates of that step follow from the reported gradients, and which are
// wrong besides.
void tell_updates(const OutsideView& view, const Observed& updated, int64_t step,
                  std::vector<TensorMismatch>& reported);
// The largest distance of the subject's updates of weights and slots from `updated`, in units of
// what rounding allows. Up to 1, all of them follow from the gradients that it reported.
double updates_off(const Program& asked, const std::vector<Compared>& tensors,
                   const Observed& subject, size_t state, const Observed& updated,
                   const SettingsSlack& slack);

}  // namespace twinrun
