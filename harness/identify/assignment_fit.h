// Proposes which rows of the batch each core was fed, from the losses that a subject's cores
// report: the reference computes them for every way of dealing rows that the algebra of
// harness/sharding/assignment.h makes. These are proposals only; the envelope of conforming engines
// (harness/identify/identify.h) decides.
//
//   // the likeliest first
//   auto few = deals_by_losses(experiment, asked, states, tensors, subject, threads);
#pragma once

#include <vector>

#include "harness/envelope/envelope.h"
#include "harness/sharding/assignment.h"

namespace twinrun {

// The likeliest deals first; last comes the change that needs no knowledge of which core had which
// rows. The cost is bounded: for a large model fewer deals are tried.
Result<std::vector<ShardingChange>> deals_by_losses(const Experiment& experiment,
                                                    const Program& asked,
                                                    const std::vector<ProbedState>& states,
                                                    const std::vector<Compared>& tensors,
                                                    const Observed& subject, int threads);

// Groups of cores that may reduce among themselves, and the parameters whose gradients differ
// between cores although the requested program reduces them.
std::vector<ShardingChange> groups_like(const Experiment& experiment, const Program& asked,
                                        const std::vector<Compared>& tensors,
                                        const Observed& subject);

bool is_loss(const Compared& tensor);
// Replaces the loss of each core by the mean over the cores.
Observed with_mean_losses(Observed observed, const std::vector<Compared>& tensors);

}  // namespace twinrun
