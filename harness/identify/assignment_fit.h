// Proposes which rows of the batch each core was fed, from the tensors that a subject reports.
// First from the losses of the cores: the reference computes them for every way of dealing rows
// that the algebra of harness/sharding/assignment.h makes. Then, where samples do not interact
// before gradients are reduced, from the gradients: they are sums over samples, which shows how
// often each sample counts. These are proposals only; the envelope of conforming engines
// (harness/identify/identify.h) decides.
//
//   // the likeliest first
//   auto few = deals_by_losses(experiment, asked, states, tensors, subject, threads);
//   auto one = deal_by_gradients(experiment, asked, states, tensors, subject, exact, threads);
#pragma once

#include <optional>
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

// How often each sample counts in the subject's gradients, if they show it: whole numbers that add
// up to the batch. `exact`: what the requested program computes from the same states in binary64.
Result<std::optional<ShardingChange>> deal_by_gradients(const Experiment& experiment,
                                                        const Program& asked,
                                                        const std::vector<ProbedState>& states,
                                                        const std::vector<Compared>& tensors,
                                                        const Observed& subject,
                                                        const Observed& exact, int threads);

bool is_loss(const Compared& tensor);
// Replaces the loss of each core by the mean over the cores.
Observed with_mean_losses(Observed observed, const std::vector<Compared>& tensors);

}  // namespace twinrun
