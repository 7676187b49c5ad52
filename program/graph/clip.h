// Gradient clipping as graph code, by TensorFlow's formulas (python/ops/clip_ops.py), c = clip_at:
//   value        max(min(g, c), -c)
//   norm         (g c) / max(|g|, c), for each variable separately
//   global_norm  n = sqrt(sum of all variables' squares, in order);
//                g * (c min(1 / n, 1 / c) + (n - n)), so an infinite n makes all gradients NaN
//
//   clip_gradients(program, names, grads, Phase::kUpdate);   // grads become "<name>.grad.clipped"
#pragma once

#include "program/graph/program.h"

namespace twinrun {

// Clips as program.optimizer says; appends nothing if it does not clip. Entries kNoValue stay.
void clip_gradients(Program& program, const std::vector<std::string>& names,
                    std::vector<ValueId>& grads, Phase phase);

}  // namespace twinrun
