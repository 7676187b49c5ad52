// Which rows of the batch did each core have? Taken from what a subject shows: first from the cores' losses, which the reference
// computes for every way of dealing that the algebra of harness/sharding/assignment.h makes; then, where no samples meet before the gradients
// do, from the gradients, which are a sum over samples: how often each counts. What is found is proposed, nothing more: the envelope of
// honest engines (harness/identify/matching.h) decides.
//
//   auto few = deals_by_losses(experiment, asked, states, tensors, subject, threads);          // the likeliest first
//   auto one = deal_by_gradients(experiment, asked, states, tensors, subject, exact, threads);
#pragma once

#include <optional>
#include <vector>

#include "harness/envelope/envelope.h"
#include "harness/sharding/assignment.h"

namespace twinrun {

// The likeliest first, and last what can be said without knowing who had what. What it may cost is bounded: fewer ways are tried of a
// large model.
Result<std::vector<ShardingChange>> deals_by_losses(const Experiment& experiment,
                                                    const Program& asked,
                                                    const std::vector<MatchState>& states,
                                                    const std::vector<Compared>& tensors,
                                                    const Observed& subject, int threads);

// Groups of cores that may add up among themselves, and gradients that differ between cores where the program's do not.
std::vector<ShardingChange> groups_like(const Experiment& experiment, const Program& asked,
                                        const std::vector<Compared>& tensors,
                                        const Observed& subject);

// How often each sample counts in the subject's gradients, if they say so: whole numbers that add up to the batch. `exact`: what the
// program asked for makes of the same states, in binary64.
Result<std::optional<ShardingChange>> deal_by_gradients(const Experiment& experiment,
                                                        const Program& asked,
                                                        const std::vector<MatchState>& states,
                                                        const std::vector<Compared>& tensors,
                                                        const Observed& subject,
                                                        const Observed& exact, int threads);

bool is_loss(const Compared& tensor);
// With the mean over the cores in the place of each core's loss.
Observed with_mean_losses(Observed observed, const std::vector<Compared>& tensors);

}  // namespace twinrun
