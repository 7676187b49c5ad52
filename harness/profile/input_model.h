// How long the host of a TPU would need for a batch, on paper: bytes over assumed rates (docs/profile.md). The device waits for what
// the host cannot do meanwhile.
#pragma once

#include "program/graph/program.h"
#include "reports/profile.h"
#include "scenarios/scenario.h"

namespace twinrun {

inline constexpr double kReadRate = 1e9;  // bytes/s out of files
inline constexpr double kPreprocessRate =
    4e9;  // bytes/s written by decoding, casting and copying, of one thread
inline constexpr double kLoopSeconds = 10e-3;  // of the host between two loops on the device

// Stages and what of them the device sees, when its own work on a step takes `device` seconds.
InputAnalysis modelled_input(const Scenario& scenario, const Program& step, double device);

}  // namespace twinrun
