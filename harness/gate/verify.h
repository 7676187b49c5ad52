// A golden run held against what an engine does now: the same bits, or inside the noise of honest engines, or what moved first.
//
//   auto gate = verify_golden("mlp.golden.h5", {.threads = 2});
//   gate->outcome;              // kSame, kInside, kMoved, kInterrupted
//   gate->moved->tensor;        // "dense1/kernel.grad"
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
  std::optional<std::string> engine;  // instead of the golden run's
  int threads = 1;
  // Who decides. kDefault: bits where they are defined (an engine of ours, the one that was recorded), else noise.
  enum class Decides : uint8_t { kDefault, kBits, kNoise } decides = Decides::kDefault;
  std::vector<FaultSpec> faults;  // the engine is made wrong on purpose: does the gate see it?
  Overrides overrides;            // keys that do not decide bits (data.dir)
  bool update = false;            // write the golden run anew where anything moved
  Progress* progress = nullptr;
  const StopFlag* stop = nullptr;
};

// Errors: the file cannot be read, is no golden run or of another contract; its scenario cannot be run; the engine cannot be
// started or fails (of_foreign_engine).
Result<Gate> verify_golden(const std::string& path, const VerifyOptions& options);

}  // namespace twinrun
