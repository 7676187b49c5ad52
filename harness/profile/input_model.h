// A model of the time that the host of a TPU needs for a batch: bytes over assumed rates
// (docs/guides/profile.md). The device waits for what the host cannot do while the device computes.
#pragma once

#include "program/graph/program.h"
#include "reports/profile.h"
#include "scenarios/scenario.h"

namespace twinrun {

inline constexpr double kReadRate = 1e9;  // bytes/s read from files
// bytes/s written by decoding, casting and copying, per thread.
inline constexpr double kPreprocessRate = 4e9;
inline constexpr double kLoopSeconds = 10e-3;  // host time between two loops on the device

// The stages and their sum. How long the device waits for them depends on its own work.
InputAnalysis modelled_input(const Scenario& scenario, const Program& step);

}  // namespace twinrun
