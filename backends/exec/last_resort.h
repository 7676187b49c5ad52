// What must go even where nothing of ours is unwound: a second Ctrl-C ends the program inside of its signal handler.
//
//   const LastResort session(group, folder);      // as long as the two are there
//   end_sessions();                               // in the handler: groups killed, folders removed
#pragma once

#include <sys/types.h>

#include <string>

namespace twinrun {

class LastResort {
 public:
  // Beyond 64 at once, or a path of more than 511 bytes: not taken.
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
