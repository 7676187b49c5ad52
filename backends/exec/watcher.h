// What must go even where this program is killed with SIGKILL and runs nothing any more: a shell of its own group that waits for
// the end of a pipe which only we hold.
//
//   Watcher watcher(folder, mark);      // before the first program of the session starts, as long as the session is there
//   watcher.guard(group);               // from its end on the shell has nothing to do
#pragma once

#include <sys/types.h>

#include <string>

namespace twinrun {

class Watcher {
 public:
  // Where no shell can be started, nobody watches. `mark`: NAME=VALUE in the environment of all that the session will start.
  Watcher(const std::string& folder, const std::string& mark);
  ~Watcher();
  // The process group goes too, whatever its environment says.
  void guard(pid_t group);
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

 private:
  pid_t shell_ = -1;
  int reader_ = -1,
      pipe_ = -1;  // both ours, so that writing to a shell that has gone raises no signal
};

}  // namespace twinrun
