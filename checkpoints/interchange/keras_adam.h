// Imports the optimizer state of Keras 3's Adam, whose rule is the same as ours. optimizer/vars
// holds iterations, learning_rate, then m and v of each trainable variable in the model's order. m
// and v are copied; the powers of beta1 and beta2 are computed as the products that the same number
// of our steps makes (docs/method/numerics.md §9).
// Source: keras/src/optimizers/adam.py, base_optimizer.py (3.15).
//
//   if (!import_adam(checkpoint, outline, theirs, report)) ...     // does not fit: nothing changed
#pragma once

#include "checkpoints/interchange/match.h"

namespace twinrun {

// True if everything fits: the file's optimizer is "adam" or "adamw", the checkpoint has Adam's
// slots, and all shapes agree. Otherwise nothing is changed.
bool import_adam(Checkpoint& checkpoint, const ModelOutline& outline, const ForeignWeights& theirs,
                 Conversion& report);

}  // namespace twinrun
