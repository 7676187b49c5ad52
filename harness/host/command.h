// A command of the user's, run once: its output in a file, a deadline, an end with all that it has started.
//
//   TWINRUN_ASSIGN(const CommandResult ran, run_command({"make", "-j2"}, {.folder = "worktree", .log = "logs/001.build"}, stop));
//   if (ran.ended == CommandResult::Ended::kExit && ran.code == 0) ...
#pragma once

#include <string>
#include <vector>

#include "harness/host/progress.h"
#include "program/base/result.h"

namespace twinrun {

struct CommandOptions {
  std::string folder;  // that it runs in; "": the caller's
  std::string log;     // file that its standard output and error are appended to; "": nowhere
  std::string out;     // file for its standard output alone, anew
  double timeout_seconds = 0;  // 0: none
  std::string on_kill;         // folder that goes, where this program is killed outright; "": none
};

struct CommandResult {
  enum class Ended : uint8_t { kExit, kSignal, kTimeout, kInterrupted } ended = Ended::kExit;
  int code = 0;  // exit code, or the signal's number
  double seconds = 0;
  std::string text()
      const;  // "exit code 1", "ended by signal 11 (Segmentation fault)", "still ran after 60 s"
};

// Found on PATH, started without a shell in a process group of its own, without git's variables (a hook's GIT_DIR would lead it
// elsewhere) and with nothing on its standard input. Errors: no such program; the log cannot be written.
Result<CommandResult> run_command(const std::vector<std::string>& words, const CommandOptions& options,
                        const StopFlag* stop);

}  // namespace twinrun
