// What is said of tensors that lie outside the envelope of honest engines: which elements, what they look like, on which cores, and
// where the fault lies between them. For matching.cc, which decides what is outside.
//
//   std::vector<TensorMismatch> told = describe(view, outside);    // in the order of computation
//   Bracket b = bracket_at(view, found, outside, told.front().step);
#pragma once

#include <map>
#include <vector>

#include "harness/envelope/envelope.h"
#include "harness/identify/bracket.h"
#include "harness/identify/matching.h"

namespace twinrun {

struct OutsideView {
  const Program& asked;
  const std::vector<Compared>& tensors;
  const std::vector<MatchState>& states;
  const Observed& subject;
  const std::vector<Observed>& members;
  const Envelope& honest;
  const Observed& exact;                    // what is due, in binary64
  const Observed* parts = nullptr;          // likewise, of each core before the all-reduce
  std::map<int64_t, Observed> before = {};  // by step: what was due at the step before it,
  std::map<int64_t, Observed> gave = {};    // and what the subject gave there
  double false_alarm = 1e-6;
};

// `outside`: those of the distances that are.
std::vector<TensorMismatch> describe(const OutsideView& view, const std::vector<Distance>& outside);

// Of one step, from all distances that were measured.
Bracket bracket_at(const OutsideView& view, const std::vector<Distance>& found,
                   const std::vector<Distance>& outside, double threshold, int64_t step);

// The update of `state` once more by the reference, as `program` has it, from the gradients that the subject reported for `asked`.
Result<MatchState> updated_as_reported(const Experiment& experiment, const Program& program,
                                       const Program& asked, const Capabilities& declared,
                                       const MatchState& state, int threads);
// Which of `told` are updates of that step that follow from the gradients that were reported, and which do not.
void tell_updates(const OutsideView& view, const Observed& updated, int64_t step,
                  std::vector<TensorMismatch>& told);
// How far the subject's updates of weights and slots are from `updated`, the largest, in units of what rounding allows: up to 1, all
// follow from the gradients that it reported.
double updates_off(const Program& asked, const std::vector<Compared>& tensors,
                   const Observed& subject, size_t state, const Observed& updated,
                   const SettingsSlack& slack);

}  // namespace twinrun
