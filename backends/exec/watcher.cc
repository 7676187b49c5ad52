// A shell that outlives this program and then cleans up after its session.
#include "backends/exec/watcher.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "program/base/spawn.h"

namespace twinrun {
namespace {

// Each line of the pipe is a process group; the pipe ends when this program has ended. $1: the
// folder, $2: the mark.
constexpr const char* kScript =
    R"(groups=
while read -r group; do groups="$groups -$group"; done
[ -z "$groups" ] || kill -s KILL -- $groups
for pass in 1 2 3; do
  for file in $(grep -lszxF -e "$2" /proc/[0-9]*/environ); do
    pid=${file#/proc/}
    kill -s KILL "${pid%/environ}"
  done
done
rm -rf -- "$1")";

}  // namespace

Watcher::Watcher(const std::string& folder, const std::string& mark) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  std::string script = kScript, to_remove = folder, of = mark;
  std::string shell = "sh", option = "-c", name = "twinrun-watcher";
  std::array<char*, 7> words = {shell.data(),     option.data(), script.data(), name.data(),
                                to_remove.data(), of.data(),     nullptr};
  // A bare environment without the mark: the shell must not kill itself.
  std::string path = "PATH=/usr/bin:/bin";
  std::array<char*, 2> environment = {path.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[0], 0);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  const SpawnAttributes attributes;
  if (posix_spawn(&shell_, "/bin/sh", &actions, attributes.get(), words.data(),
                  environment.data()) != 0)
    shell_ = -1;
  posix_spawn_file_actions_destroy(&actions);
  reader_ = ends[0];
  pipe_ = ends[1];
}

void Watcher::guard(pid_t group) {
  if (pipe_ < 0) return;
  const std::string line = std::to_string(group) + "\n";
  [[maybe_unused]] const ssize_t reported = ::write(pipe_, line.data(), line.size());
}

Watcher::~Watcher() {
  // Kill the shell before the end of the pipe wakes it: it has nothing to clean up.
  if (shell_ > 0) {
    kill(shell_, SIGKILL);
    waitpid(shell_, nullptr, 0);
  }
  for (const int fd : {reader_, pipe_}) {
    if (fd >= 0) ::close(fd);
  }
}

}  // namespace twinrun
