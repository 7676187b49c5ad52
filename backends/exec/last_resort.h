// Registers process groups and folders that must be removed even if no destructor runs: a second
// Ctrl-C ends the program inside its signal handler.
//
//   const LastResort session(group, folder);      // registered while this object lives
//   end_sessions();                               // in the handler: kills groups, removes folders
#pragma once

#include <sys/types.h>

#include <string>

namespace twinrun {

class LastResort {
 public:
  // Does nothing if 64 are registered already, or if the path has more than 511 bytes.
  LastResort(pid_t group, const std::string& folder);
  ~LastResort();
  LastResort(const LastResort&) = delete;
  LastResort& operator=(const LastResort&) = delete;

 private:
  int slot_ = -1;
};

// Async-signal-safe.
void end_sessions() noexcept;

}  // namespace twinrun
