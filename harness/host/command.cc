// Starts a command in a process group of its own, waits for it, and ends everything it started.
#include "harness/host/command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <fstream>
#include <optional>
#include <string_view>
#include <thread>

#include "backends/exec/last_resort.h"
#include "backends/exec/watcher.h"
#include "program/base/memory_limit.h"
#include "program/base/os_error.h"
#include "program/base/spawn.h"

extern char** environ;

namespace twinrun {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Whether the process has ended. It stays a zombie (WNOWAIT), so that its number is not reused
// before its group is killed.
bool has_ended(pid_t pid, CommandResult& ran) {
  siginfo_t info{};
  const int code = waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT);
  if (code != 0 || info.si_pid != pid) return false;
  ran.ended =
      info.si_code == CLD_EXITED ? CommandResult::Ended::kExit : CommandResult::Ended::kSignal;
  ran.code = info.si_status;
  return true;
}

// Sends SIGTERM and waits up to 2 s, so that the group can clean up; the caller then kills it.
void end_group(pid_t pid) {
  CommandResult ignored;
  kill(-pid, SIGTERM);
  const auto begin = Clock::now();
  while (!has_ended(pid, ignored) && since(begin) < 2)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> out;
  for (std::string& word : words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

std::vector<std::string> environment(const std::string& mark) {
  constexpr std::array<std::string_view, 6> kNotOurs = {
      "TWINRUN_SESSION=", "GIT_DIR=",    "GIT_WORK_TREE=",
      "GIT_INDEX_FILE=",  "GIT_PREFIX=", "GIT_OBJECT_DIRECTORY="};
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    bool ours = true;
    for (const std::string_view name : kNotOurs)
      ours = ours && !std::string_view(*entry).starts_with(name);
    if (ours) entries.emplace_back(*entry);
  }
  entries.push_back(mark);
  return entries;
}

}  // namespace

std::string CommandResult::text() const {
  switch (ended) {
    case Ended::kExit:
      return fmt::format("exit code {}", code);
    case Ended::kSignal:
      return fmt::format("ended by signal {} ({})", code, strsignal(code));
    case Ended::kTimeout:
      return fmt::format("was still running after {:.3g} s", seconds);
    case Ended::kInterrupted:
      return "interrupted";
  }
  return "?";
}

Result<CommandResult> run_command(const std::vector<std::string>& words,
                                  const CommandOptions& options, const StopFlag* stop) {
  // If SIGCHLD were inherited as ignored, the exit status of the command would be lost.
  if (signal(SIGCHLD, SIG_DFL) == SIG_ERR) return Error{"cannot watch processes", words[0], ""};
  const std::string log = options.log.empty() ? "/dev/null" : options.log;
  const int fd = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0)
    return Error{fmt::format("cannot write: {}", strerror(errno)), log, "free space",
                 kind_of_failure(errno)};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  if (options.out.empty()) {
    posix_spawn_file_actions_adddup2(&actions, fd, 1);
  } else {
    posix_spawn_file_actions_addopen(&actions, 1, options.out.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                     0666);
  }
  posix_spawn_file_actions_adddup2(&actions, fd, 2);
  if (!options.folder.empty())
    posix_spawn_file_actions_addchdir_np(&actions, options.folder.c_str());
  const SpawnAttributes attributes;
  const std::string mark = fmt::format("TWINRUN_SESSION=bisect-{}", ::getpid());
  std::vector<std::string> argv = words, envp = environment(mark);
  pid_t pid = -1;
  const auto begin = Clock::now();
  std::optional<Watcher> watcher(std::in_place, options.on_kill, mark);
  const int failed = posix_spawnp(&pid, argv[0].c_str(), &actions, attributes.get(),
                                  pointers(argv).data(), pointers(envp).data());
  if (failed == 0) lift_memory_limit(pid);
  posix_spawn_file_actions_destroy(&actions);
  ::close(fd);
  if (failed != 0) {
    return Error{fmt::format("'{}' cannot be started: {}", words[0], strerror(failed)), "",
                 "name a program on PATH, or give a path relative to the folder that it runs in",
                 kind_of_failure(failed)};
  }
  CommandResult ran;
  {
    const LastResort last_resort(pid, options.on_kill);
    watcher->guard(pid);
    while (!has_ended(pid, ran)) {
      const double seconds = since(begin);
      const bool late = options.timeout_seconds > 0 && seconds > options.timeout_seconds;
      const bool stopped = stop != nullptr && stop->load();
      if (late || stopped) {
        end_group(pid);
        ran.ended = stopped ? CommandResult::Ended::kInterrupted : CommandResult::Ended::kTimeout;
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(seconds < 1 ? 2 : 20));
    }
    kill(-pid, SIGKILL);  // kills what the command has left running
  }
  watcher.reset();  // before waitpid, after which the number may be reused
  waitpid(pid, nullptr, 0);
  ran.seconds = since(begin);
  return ran;
}

std::string last_line(const std::string& log, std::string_view but) {
  std::ifstream in(log, std::ios::binary);
  std::string last;
  for (std::string line; std::getline(in, line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos && !line.starts_with(but)) last = line;
  }
  return last;
}

std::string shell_word(const std::string& word) {
  const bool plain = !word.empty() && std::ranges::all_of(word, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("-_=./,:@%+").find(c) != std::string_view::npos;
  });
  if (plain) return word;
  std::string out = "'";
  for (char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace twinrun
