// The first difference, bit by bit, between two runs of a scenario from the same state: two
// RunFiles -> GateSite, for verify.h.
//
//   if (auto site = first_divergence(golden, now, true)) site->tensor;     // "dense1/kernel.grad"
#pragma once

#include <optional>

#include "checkpoints/run.h"
#include "reports/gate.h"

namespace twinrun {

// nullopt if all bits are equal. With `rows` it compares the rows of the trace first, which only
// makes sense for the same engine, because another one may have other ops; then states, losses and
// evaluations.
std::optional<GateSite> first_divergence(const RunFile& was, const RunFile& now, bool rows);

}  // namespace twinrun
