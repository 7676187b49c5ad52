// Runs a command of the user once, with its output in a file and a time limit, and ends it together
// with every process that it started. Used by bisect and check.
//
//   CommandOptions options{.folder = "worktree", .log = "logs/001.build"};
//   TWINRUN_ASSIGN(const CommandResult ran, run_command({"make", "-j2"}, options, stop));
//   if (ran.ended == CommandResult::Ended::kExit && ran.code == 0) ...
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/host/progress.h"
#include "program/base/result.h"

namespace twinrun {

struct CommandOptions {
  std::string folder;          // working folder; "": the caller's
  std::string log;             // standard output and error are appended here; "": discarded
  std::string out;             // standard output goes to this file instead, overwritten
  double timeout_seconds = 0;  // time limit; 0: none
  std::string on_kill;         // removed if this program is killed outright; "": none
};

struct CommandResult {
  enum class Ended : uint8_t { kExit, kSignal, kTimeout, kInterrupted } ended = Ended::kExit;
  int code = 0;  // exit code, or the signal's number
  double seconds = 0;
  // "exit code 1", "ended by signal 11 (Segmentation fault)", "still ran after 60 s".
  std::string text() const;
};

// The program is found on PATH and started without a shell, in a process group of its own, with
// nothing on its standard input and without git's variables (a hook's GIT_DIR would point it to
// another repository). Errors: no such program; the log cannot be written.
Result<CommandResult> run_command(const std::vector<std::string>& words,
                                  const CommandOptions& options, const StopFlag* stop);

// A word as a shell reads it: in quotes where it needs them.
std::string shell_word(const std::string& word);

// The last line of a log that is not blank and does not begin with `but`; "" if there is none.
std::string last_line(const std::string& log, std::string_view but = "\n");

}  // namespace twinrun
