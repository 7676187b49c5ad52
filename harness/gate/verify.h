// Compares a golden run with what an engine does now: the same bits, or inside the noise of
// conforming engines, or where the first difference is. On the data's path: golden.h -> Gate ->
// reports/gate.h.
//
//   auto gate = verify_golden("mlp.golden.h5", {.threads = 2});
//   gate->outcome;              // kSame, kInside, kDiverged, kInterrupted
//   gate->divergence->tensor;        // "dense1/kernel.grad"
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backends/faults/faults.h"
#include "harness/host/progress.h"
#include "program/base/result.h"
#include "reports/gate.h"
#include "scenarios/scenario.h"

namespace twinrun {

struct VerifyOptions {
  std::optional<std::string> engine;  // replaces the golden run's
  int threads = 1;
  // What decides. kDefault: bits where they are defined (an engine of ours, the one that was
  // recorded), otherwise noise.
  enum class Decides : uint8_t { kDefault, kBits, kNoise } decides = Decides::kDefault;
  std::vector<FaultSpec> faults;  // faults to inject, to test whether the gate detects them
  Overrides overrides;            // keys that do not affect bits (data.dir)
  // Where an imported program lies now; program "": where it lay when it was recorded.
  ProgramFiles program = {};
  bool update = false;  // record the golden run again if anything differs
  Progress* progress = nullptr;
  const StopFlag* stop = nullptr;
};

// Errors: the file cannot be read, is no golden run, or has another contract; its scenario cannot
// be run; the engine cannot be started or fails (Error::of_foreign_engine).
Result<Gate> verify_golden(const std::string& path, const VerifyOptions& options);

}  // namespace twinrun
