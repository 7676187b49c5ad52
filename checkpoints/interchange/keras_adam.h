// Keras 3's Adam, which is ours: optimizer/vars holds iterations, learning_rate, then m and v of each
// trainable variable in the model's order. m and v move as they are; the powers of beta1 and beta2
// are the products that as many steps of ours make (docs/numerics.md §9).
// Source: keras/src/optimizers/adam.py, base_optimizer.py (3.15).
//
//   if (!import_adam(checkpoint, outline, theirs, report)) ...     // not Adam's: nothing was changed
#pragma once

#include "checkpoints/interchange/match.h"

namespace twinrun {

// True if all of it fitted: the file says "adam" or "adamw", the checkpoint has Adam's slots, all shapes agree.
bool import_adam(Checkpoint& checkpoint, const ModelOutline& outline, const ForeignWeights& theirs,
                 Conversion& report);

}  // namespace twinrun
