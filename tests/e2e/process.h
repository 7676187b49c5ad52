// Runs the twinrun binary as a user does: with arguments, in a folder, in an environment. The
// result is its exit code and the text of stdout and stderr; on a terminal the two are one stream.
//
//   const Folder folder;
//   const Outcome o = twinrun(folder, {"inspect", "digits_mlp"});
//   EXPECT_EQ(o.code, 0) << o.err;
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/folder.h"
#include "tests/support/jax_steps.h"

namespace twinrun::e2e {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;
using Clock = std::chrono::steady_clock;

inline std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline void write_text(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

// A temporary folder in which twinrun runs; the destructor removes it.
class Folder : public ::twinrun::Folder {
 public:
  // The folder of the captured streams, another one so that entries() does not list it.
  const std::string& streams() const { return streams_.path(); }
  // Every file and folder below this one, as relative paths.
  std::set<std::string> entries() const {
    std::set<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(path())) {
      names.insert(fs::relative(entry.path(), path()).string());
    }
    return names;
  }

 private:
  ::twinrun::Folder streams_;
};

struct Outcome {
  int code = -1;   // exit code, or -1 if a signal ended the process
  int signal = 0;  // the signal that ended the process, or 0
  std::string out, err;
  bool says(const std::string& part) const { return err.find(part) != std::string::npos; }
  bool prints(const std::string& part) const { return out.find(part) != std::string::npos; }
};

inline void set_environment(const std::map<std::string, std::string>& environment) {
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "xterm", 1);
  ::setenv("TWINRUN_CACHE", "", 1);  // no runs cached by the user or by other tests
  for (const auto& [key, value] : environment) ::setenv(key.c_str(), value.c_str(), 1);
}

[[noreturn]] inline void execute(const Words& words) {
  // The verbs of the other program, for developers.
  static const std::set<std::string> developers = {"drill", "serve", "completion", "manual"};
  const bool other = !words.empty() && developers.contains(words.front());
  std::string program = other ? TWINRUN_DEV : TWINRUN_BINARY;
  Words copy = words;
  std::vector<char*> argv = {program.data()};
  for (std::string& word : copy) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  ::_exit(127);
}

inline Outcome outcome_of(int status) {
  Outcome o;
  if (WIFEXITED(status)) o.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) o.signal = WTERMSIG(status);
  return o;
}

// A twinrun process that is still running. `prepare` runs in the child just before exec; the
// destructor kills a process that has not been waited for.
class Process {
 public:
  Process(const Folder& folder, const Words& words,
          const std::map<std::string, std::string>& environment = {},
          const std::function<void()>& prepare = {})
      : streams_(folder.streams()) {
    pid_ = ::fork();
    if (pid_ != 0) return;
    set_environment(environment);
    if (::chdir(folder.path().c_str()) != 0) ::_exit(126);
    redirect("/dev/null", O_RDONLY, STDIN_FILENO);
    redirect(streams_ + "/out", O_WRONLY | O_CREAT | O_TRUNC, STDOUT_FILENO);
    redirect(streams_ + "/err", O_WRONLY | O_CREAT | O_TRUNC, STDERR_FILENO);
    if (prepare) prepare();
    execute(words);
  }
  ~Process() {
    if (!done_) {
      kill(SIGKILL);
      finish();
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void kill(int signal) const { ::kill(pid_, signal); }
  Outcome finish() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    done_ = true;
    Outcome o = outcome_of(status);
    o.out = read_text(streams_ + "/out");
    o.err = read_text(streams_ + "/err");
    return o;
  }
  // Waits until `path` exists. Returns false if the process ends first, or after 60 s.
  bool wait_for(const std::string& path) {
    const auto end = Clock::now() + std::chrono::seconds(60);
    while (!fs::exists(path)) {
      siginfo_t info{};
      ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
      if (info.si_pid != 0 || Clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }

 private:
  static void redirect(const std::string& path, int flags, int target) {
    const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0600);
    if (fd < 0 || ::dup2(fd, target) < 0) ::_exit(126);
  }
  std::string streams_;
  pid_t pid_ = -1;
  bool done_ = false;
};

inline Outcome twinrun(const Folder& folder, const Words& words,
                       const std::map<std::string, std::string>& environment = {}) {
  return Process(folder, words, environment).finish();
}

// Runs twinrun with stdout and stderr on one pseudo-terminal; both end up in Outcome::out.
inline Outcome twinrun_on_terminal(const Folder& folder, const Words& words,
                                   const std::map<std::string, std::string>& environment = {},
                                   unsigned short columns = 100) {
  winsize size{};
  size.ws_col = columns;
  size.ws_row = 40;
  int terminal = -1;
  const pid_t pid = ::forkpty(&terminal, nullptr, nullptr, &size);
  if (pid == 0) {
    set_environment(environment);
    if (::chdir(folder.path().c_str()) != 0) ::_exit(126);
    execute(words);
  }
  std::string seen;
  char buffer[4096];
  for (ssize_t n; (n = ::read(terminal, buffer, sizeof buffer)) > 0;) {
    seen.append(buffer, static_cast<size_t>(n));
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  ::close(terminal);
  Outcome o = outcome_of(status);
  o.out = seen;
  return o;
}

inline nlohmann::json json_of(const std::string& text) { return nlohmann::json::parse(text); }

inline Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace twinrun::e2e
