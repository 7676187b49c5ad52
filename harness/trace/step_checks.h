// What the memory of a trace tells of the step as a whole: whether gradients are cleared, whether a
// gradient goes through weights of before an update, which weights are trained, and whether every
// step reads the same batch. docs/method/calls.md#the-step says what follows from each.
#pragma once

#include <optional>

#include "harness/trace/trace_file.h"
#include "reports/trace_verdict.h"

namespace twinrun {

// Gradients that are added to those of a step whose update was made already: zero_grad() is missing.
// The first step in which it happens; nullopt: nowhere.
std::optional<UnclearedGradients> uncleared_gradients(const TraceFile& trace);

// Copies of weights that a step's gradient goes through although an optimizer has changed the weight
// since: a cast that was kept, such as the cache of one autocast region around the whole loop.
StaleReads stale_reads(const TraceFile& trace);

// Looks in a backward pass, calls `begin` to `end` of a step that begins with call `step`, for what a
// node kept of its forward call and another call has written since: through .data, or a view that
// autograd does not know. Autograd itself refuses what it sees of that. Returns whether there is one.
bool changed_behind_autograd(const TraceFile& trace, int64_t step, int64_t begin, int64_t end,
                             GradientCheck& out);

// Parameters of the optimizers that no gradient reaches, and weights whose gradients nothing uses.
TrainedWeights trained_weights(const TraceFile& trace);

// The first old copy of a weight. It may be meant, as that of a target network.
std::optional<OldCopy> old_copy(const TraceFile& trace);

// Writes besides the updates of the optimizers: to weights that one has moved before, and to
// gradients after the update that was made with them. Both may be meant, and clipping after the
// update does nothing.
struct OtherWrites {
  std::optional<CallSite> weights, gradients;
};
OtherWrites other_writes(const TraceFile& trace);

// The first loss of two tensors that are each stretched to the shape of both, as [32, 1] and [32] are:
// it compares each number of the one with each of the other.
std::optional<CallSite> stretched_loss(const TraceFile& trace);

// The first write to gradients that a scaler divides by its scale only after it, as by a clip.
std::optional<CallSite> written_before_unscaling(const TraceFile& trace);

// The first backward pass whose gradients of weights are all cleared before anything reads them, as by
// zero_grad() in each micro-batch. It may be meant, as to fill caches before the first step.
std::optional<CallSite> unused_backward_pass(const TraceFile& trace);

// The first batch normalisation, where all of it is in evaluation mode though autograd follows it.
std::optional<CallSite> evaluates(const TraceFile& trace);

// Whether what is computed with the weights is the same data in each of several steps.
bool repeats_its_batch(const TraceFile& trace);

}  // namespace twinrun
