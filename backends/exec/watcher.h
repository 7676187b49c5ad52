// What must go even where this program is killed with SIGKILL and runs nothing any more: a shell of its own group that waits for
// the end of a pipe which only we hold.
//
//   Watcher watcher(group, folder, mark);      // as long as the session is there; from its end on the shell has nothing to do
#pragma once

#include <sys/types.h>

#include <string>

namespace twinrun {

class Watcher {
 public:
  // Where no shell can be started, nobody watches. `mark`: NAME=VALUE in the environment of all that the session has started.
  Watcher(pid_t group, const std::string& folder, const std::string& mark);
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

 private:
  pid_t shell_ = -1;
  int pipe_ = -1;
};

}  // namespace twinrun
