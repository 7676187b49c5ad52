// Gradients that are added to those of a step whose update was made already: zero_grad() is missing.
#pragma once

#include <optional>

#include "harness/trace/trace_file.h"
#include "reports/trace_verdict.h"

namespace twinrun {

// The first step in which it happens; nullopt: nowhere.
std::optional<UnclearedGradients> uncleared_gradients(const TraceFile& trace);

}  // namespace twinrun
