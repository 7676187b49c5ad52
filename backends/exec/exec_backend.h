// Engines that are not ours: a command that speaks docs/engine-protocol.md. Each backend is a process of its own, with a session
// folder of its own; both end with it.
//
//   auto backend = make_exec_backend({"python3 adapters/pytorch/engine.py", resolved_toml(scenario)}, options);
//   (*backend)->capabilities();     // what its hello declared; op_trace = false: evidence of level C
#pragma once

#include <chrono>

#include "backends/backend.h"

namespace twinrun {

struct ExecOptions {
  std::string command;                      // split as shell words
  std::string scenario;                     // resolved TOML: the engine builds the model from it
  std::chrono::milliseconds slow{600'000};  // for hello, prepare, the first step of a program
  std::chrono::milliseconds fast{60'000};   // at least, for any other
};

// Errors: no such program, not the protocol, another version of it.
Result<std::unique_ptr<Backend>> make_exec_backend(const ExecOptions& options, int threads);

}  // namespace twinrun
