// Engines that are not ours: a command that speaks docs/engine-protocol.md. Each backend is a process of its own, with a session
// folder of its own; both end with it.
//
//   auto backend = make_exec_backend({"python3 adapters/pytorch/engine.py", resolved_toml(scenario)}, options);
//   (*backend)->capabilities();     // what its hello declared; op_trace = false: evidence of level C
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "backends/core/backend.h"

namespace twinrun {

struct ExecOptions {
  std::string command;                      // split as shell words
  std::string scenario;                     // resolved TOML: the engine builds the model from it
  std::chrono::milliseconds slow{600'000};  // for hello, prepare, the first step of a program
  std::chrono::milliseconds fast{60'000};   // at least, for any other
  std::chrono::milliseconds longest{
      6 * 3'600'000};  // for one that says again and again that it is alive
  std::function<void(const std::string&)> on_alive{};  // what it says then
  // A process that has said hello and was asked for nothing more outlives its backend (until the program ends), and serves the next
  // backend of the same command: importing a framework takes seconds.
  bool reuse_idle = false;
};

// Every error of an engine, from its start on, has a place that begins so: "exec:COMMAND".
inline constexpr std::string_view kExecPlace = "exec:";

// The words of ExecOptions::command.
std::vector<std::string> command_words(const std::string& command);

// The command that reads HDF5 results in a process of its own: `twinrun read-hdf5`. Until it is set they are refused.
void read_hdf5_with(std::vector<std::string> command);

// Errors: no such program, not the protocol, another version of it.
Result<std::unique_ptr<Backend>> make_exec_backend(const ExecOptions& options, int threads);

}  // namespace twinrun
