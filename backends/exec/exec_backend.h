// Foreign engines: a command that speaks the protocol of docs/reference/engine-protocol.md. Each
// backend has its own process and session folder; both end with the backend.
//
//   auto backend = make_exec_backend(
//       {"python3 adapters/engines/pytorch/engine.py", resolved_toml(scenario)}, threads);
//   (*backend)->capabilities();  // what its hello declares; op_trace = false: evidence of level C
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "backends/core/backend.h"

namespace twinrun {

struct ExecOptions {
  std::string command;   // split as shell words
  std::string scenario;  // resolved TOML: the engine builds the model from it
  // Of an imported program there is no model to build: the engine gets the step as StableHLO text,
  // whose products have this precision of StableHLO ("HIGHEST"). "": not imported.
  std::string stablehlo_precision{};
  // Time limit of hello, of prepare, and of the first step of a program.
  std::chrono::milliseconds slow{600'000};
  // Time limit of any other step; the actual limit is 20 times the slowest step so far, if that is
  // more.
  std::chrono::milliseconds fast{60'000};
  // Time limit of one request for an engine that keeps reporting that it is alive.
  std::chrono::milliseconds longest{6 * 3'600'000};
  std::function<void(const std::string&)> on_alive{};  // called with the text of such a report
  // Keep a process that has answered hello and received no other request after its backend is
  // destroyed (until this program ends), and use it for the next backend of the same command:
  // importing a framework takes seconds.
  bool reuse_idle = false;
};

// Names of such engines begin with this, and so does Error::where of their errors:
// "exec:COMMAND".
inline constexpr std::string_view kExecPlace = "exec:";

// Splits ExecOptions::command into shell words.
std::vector<std::string> command_words(const std::string& command);

// Sets the command that reads HDF5 results in a separate process: `twinrun read-hdf5`. Until it is
// set, HDF5 results are refused.
void read_hdf5_with(std::vector<std::string> command);

// Starts the engine. `threads` is for the CPU reference that draws random numbers. Errors: no such
// program, an answer that is not of the protocol, another protocol version. Every error of the
// engine, from its start on, is Error::of_foreign_engine().
Result<std::unique_ptr<Backend>> make_exec_backend(const ExecOptions& options, int threads);

}  // namespace twinrun
