// The program under test as its users run it: words, a folder, an environment; exit code, stdout
// and stderr as they came. On a terminal both are one stream.
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

namespace twinrun::e2e {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;
using Clock = std::chrono::steady_clock;

// Training steps of JAX, as texts.
inline const std::string kFixtures = TWINRUN_SOURCE_DIR "/tests/program/import/fixtures/";

inline std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline void write_text(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

// A folder that goes away; twinrun is run in it.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "twinrun-e2e-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
    ::mkdir((path_ + ".streams").c_str(), 0700);
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
    fs::remove_all(path_ + ".streams", ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }
  std::string streams() const { return path_ + ".streams"; }  // beside it, not in it
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  // Every file and folder below, as relative paths.
  std::set<std::string> entries() const {
    std::set<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(path_)) {
      names.insert(fs::relative(entry.path(), path_).string());
    }
    return names;
  }

 private:
  std::string path_;
};

struct Outcome {
  int code = -1;   // exit code, or -1
  int signal = 0;  // that ended it, or 0
  std::string out, err;
  bool says(const std::string& part) const { return err.find(part) != std::string::npos; }
  bool prints(const std::string& part) const { return out.find(part) != std::string::npos; }
};

inline void set_environment(const std::map<std::string, std::string>& environment) {
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "xterm", 1);
  ::setenv("TWINRUN_CACHE", "", 1);  // nothing from another test, nothing of the user's
  for (const auto& [key, value] : environment) ::setenv(key.c_str(), value.c_str(), 1);
}

[[noreturn]] inline void execute(const Words& words) {
  std::string program = TWINRUN_BINARY;
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

// A run in progress.
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
  // Until `path` exists; false if the process ends before, or in 60 s.
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

// stdout and stderr are one terminal.
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
