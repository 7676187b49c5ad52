// Runs a piece of work in a process of its own, and says how that process ended: for a case during
// which an earlier process died.
//
//   TWINRUN_ASSIGN(const OwnProcess ran, in_own_process([&] { return to_line(run()); }, stop));
//   if (!ran.answer) report(ran.signal);
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "harness/host/progress.h"
#include "program/base/result.h"

namespace twinrun::drill {

struct OwnProcess {
  std::optional<std::string> answer;  // what the work returned; nullopt: the process died
  int signal = 0;                     // that ended it, or 0
  // The signal is one by which a process reports its own mistake (SIGSEGV, SIGABRT), and not one
  // that others send (SIGKILL of a machine without memory).
  bool by_itself() const;
};

// Call it only while the process has one thread. A stop is handed on to the work. Errors: no
// process can be started.
Result<OwnProcess> in_own_process(const std::function<std::string()>& work, const StopFlag* stop);

}  // namespace twinrun::drill
