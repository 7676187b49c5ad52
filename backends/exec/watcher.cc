#include "backends/exec/watcher.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "backends/exec/spawn.h"

namespace twinrun {
namespace {

// Nothing is ever written: the pipe ends because we have. $1: the group, $2: the folder, $3: the mark.
constexpr const char* kScript =
    R"(read -r line
kill -s KILL -- "-$1"
for pass in 1 2 3; do
  for file in $(grep -lszxF -e "$3" /proc/[0-9]*/environ); do
    pid=${file#/proc/}
    kill -s KILL "${pid%/environ}"
  done
done
rm -rf -- "$2")";

}  // namespace

Watcher::Watcher(pid_t group, const std::string& folder, const std::string& mark) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  std::string script = kScript, number = std::to_string(group), to_remove = folder, of = mark;
  std::string shell = "sh", option = "-c", name = "twinrun-watcher";
  std::array<char*, 8> words = {shell.data(),  option.data(),    script.data(), name.data(),
                                number.data(), to_remove.data(), of.data(),     nullptr};
  // The bare environment: the mark must not stand in it.
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
  ::close(ends[0]);
  pipe_ = ends[1];
}

Watcher::~Watcher() {
  // The shell goes before the end of the pipe wakes it.
  if (shell_ > 0) {
    kill(shell_, SIGKILL);
    waitpid(shell_, nullptr, 0);
  }
  if (pipe_ >= 0) ::close(pipe_);
}

}  // namespace twinrun
