// Cleans up a session even if this program is killed with SIGKILL: a shell in a process group of
// its own waits for the end of a pipe that only this program holds open, then kills the session's
// processes and removes its folder.
//
//   Watcher watcher(folder, mark);      // before the session's first program starts; lives as long
//   watcher.guard(group);               // once the program's process group is known
#pragma once

#include <sys/types.h>

#include <string>

namespace twinrun {

class Watcher {
 public:
  // `mark`: NAME=VALUE, which is in the environment of every process that the session starts. If no
  // shell can be started, there is no cleanup.
  Watcher(const std::string& folder, const std::string& mark);
  ~Watcher();
  // Also kill this process group, whatever is in the environment of its processes.
  void guard(pid_t group);
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

 private:
  pid_t shell_ = -1;
  // Both ends of the pipe stay open here, so that writing raises no SIGPIPE if the shell has ended.
  int reader_ = -1, pipe_ = -1;
};

}  // namespace twinrun
