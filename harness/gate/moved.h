// What moved first between two runs of a scenario from the same state, bit by bit.
//
//   if (auto site = first_moved(golden, now, true)) site->tensor;     // "dense1/kernel.grad"
#pragma once

#include <optional>

#include "checkpoints/run.h"
#include "reports/gate.h"

namespace twinrun {

// By the rows of the trace (of the same engine alone: another one's ops are others), then by the states, losses and evaluations.
std::optional<GateSite> first_moved(const RunFile& was, const RunFile& now, bool rows);

}  // namespace twinrun
