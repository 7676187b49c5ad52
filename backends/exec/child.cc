// Starts, talks to and reliably kills the process of an engine.
#include "backends/exec/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>

#include "program/base/memory_limit.h"
#include "program/base/os_error.h"
#include "program/base/spawn.h"

extern char** environ;

namespace twinrun {
namespace {

using Clock = std::chrono::steady_clock;

struct Pipe {
  int read = -1, write = -1;
  static bool make(Pipe& p) {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) return false;
    p.read = fds[0];
    p.write = fds[1];
    return true;
  }
};

void close_fd(int& fd) {
  if (fd >= 0) ::close(fd);
  fd = -1;
}

// Files in /proc report size 0, so read until the end.
std::string read_procfs(const std::string& path) {
  std::string text;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return text;
  std::array<char, 65536> some;
  for (ssize_t n; (n = ::read(fd, some.data(), some.size())) > 0 && text.size() < (4 << 20);)
    text.append(some.data(), static_cast<size_t>(n));
  ::close(fd);
  return text;
}

// Kills the processes that carry this mark in their environment: a daemon leaves the process group,
// but keeps the environment.
void kill_marked(const std::string& mark) {
  namespace fs = std::filesystem;
  bool found = true;
  for (int pass = 0; pass < 5 && found; ++pass) {  // a process may start another one meanwhile
    found = false;
    std::error_code error;
    for (fs::directory_iterator at("/proc", error), end; !error && at != end; at.increment(error)) {
      const std::string pid = at->path().filename().string();
      if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
      const std::string environment = read_procfs("/proc/" + pid + "/environ");
      if (environment.find(mark + '\0') == std::string::npos) continue;
      found = true;
      kill(std::stoi(pid), SIGKILL);
    }
  }
}

// Blocks SIGPIPE, so that a write to a child that has ended returns an error instead of ending this
// program.
class NoPipeSignal {
 public:
  NoPipeSignal() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoPipeSignal() {
    const timespec now{};
    while (sigtimedwait(&pipe_, nullptr, &now) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoPipeSignal(const NoPipeSignal&) = delete;
  NoPipeSignal& operator=(const NoPipeSignal&) = delete;

 private:
  sigset_t pipe_{}, before_{};
};

}  // namespace

Result<std::unique_ptr<Child>> Child::start(const std::vector<std::string>& argv,
                                            const std::string& folder, const std::string& name) {
  std::unique_ptr<Child> child(new Child);
  child->name_ = name;
  child->mark_ = "TWINRUN_SESSION=" + folder;
  Pipe in, out, errors;
  if (!Pipe::make(in) || !Pipe::make(out) || !Pipe::make(errors))
    return Error{std::string("cannot make a pipe: ") + std::strerror(errno), name, "",
                 kind_of_failure(errno)};
  child->in_fd_ = in.write;
  child->out_fd_ = out.read;
  child->error_fd_ = errors.read;
  for (const int fd : {in.write, out.read, errors.read}) fcntl(fd, F_SETFL, O_NONBLOCK);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.read, 0);
  posix_spawn_file_actions_adddup2(&actions, out.write, 1);
  posix_spawn_file_actions_adddup2(&actions, errors.write, 2);
  const SpawnAttributes attributes;
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!std::string_view(*entry).starts_with("TWINRUN_SESSION=")) environment.push_back(*entry);
  }
  environment.push_back(child->mark_.data());
  environment.push_back(nullptr);
  child->watcher_.emplace(folder, child->mark_);
  const int failed = posix_spawnp(&child->pid_, words[0], &actions, attributes.get(), words.data(),
                                  environment.data());
  if (failed == 0) lift_memory_limit(child->pid_);
  posix_spawn_file_actions_destroy(&actions);
  close_fd(in.read);
  close_fd(out.write);
  close_fd(errors.write);
  if (failed != 0) {
    child->pid_ = -1;
    return Error{"'" + argv[0] + "' cannot be started: " + std::strerror(failed), name,
                 "the command after exec: is split into shell words and looked up on PATH",
                 kind_of_failure(failed)};
  }
  child->last_resort_.emplace(child->pid_, folder);
  child->watcher_->guard(child->pid_);
  return child;
}

Child::~Child() {
  end(std::chrono::seconds(2));
  close_all();
}

void Child::close_all() {
  close_fd(in_fd_);
  close_fd(out_fd_);
  close_fd(error_fd_);
}

Child::Read Child::read_some(int fd, std::string& into) {
  std::array<char, 65536> some;
  const ssize_t n = ::read(fd, some.data(), some.size());
  if (n < 0) return errno == EINTR || errno == EAGAIN ? Read::kNothingNow : Read::kEnd;
  into.append(some.data(), static_cast<size_t>(n));
  if (&into == &errors_ && errors_.size() > 2 * kKeptErrors)
    errors_.erase(0, errors_.size() - kKeptErrors);
  return n > 0 ? Read::kSome : Read::kEnd;
}

// Reads what is available and does not wait for the end of the pipe: a process that the child
// started may hold it open for ever.
void Child::drain_errors() {
  while (error_fd_ >= 0 && read_some(error_fd_, errors_) == Read::kSome) {
  }
}

std::string Child::last_words() const {
  constexpr size_t kMaxQuoted = 2000;
  std::string text =
      errors_.size() > kMaxQuoted ? errors_.substr(errors_.size() - kMaxQuoted) : errors_;
  if (text.size() < errors_.size()) text.erase(0, text.find('\n') + 1);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

Error Child::failed(const std::string& what) {
  const std::string words = last_words();
  return Error{what + (words.empty() ? "" : "; the last it said on its standard error:\n" + words),
               name_, ""};
}

std::string Child::how() const {
  if (!signalled_) return "ended with exit status " + std::to_string(status_);
  return "was ended by signal " + std::to_string(status_) + " (" + strsignal(status_) + ")";
}

// Waits for the child to end, but leaves it as a zombie (WNOWAIT): its number must not be reused
// before the group is killed.
bool Child::reap(std::chrono::milliseconds limit) {
  const auto end = Clock::now() + limit;
  while (!gone_ && pid_ > 0) {
    siginfo_t info{};
    const int code = waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
    if (code < 0 && errno == ECHILD) gone_ = true;
    if (code == 0 && info.si_pid == pid_) {
      gone_ = true;
      signalled_ = info.si_code != CLD_EXITED;
      status_ = info.si_status;
    }
    if (gone_ || Clock::now() >= end) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return gone_ || pid_ <= 0;
}

void Child::end(std::chrono::milliseconds patience) {
  if (pid_ <= 0) return;
  close_fd(in_fd_);
  // Keep reading its output: a child that blocks on a full pipe would not end.
  for (const auto late = Clock::now() + patience;
       !reap(std::chrono::milliseconds(10)) && Clock::now() < late;) {
    drain_errors();
    for (std::string unread; read_some(out_fd_, unread) == Read::kSome; unread.clear()) {
    }
  }
  if (!gone_) {
    kill(-pid_, SIGTERM);
    reap(std::chrono::seconds(1));
  }
  // Its own children may live on: kill the whole group, then the processes that have left it.
  kill(-pid_, SIGKILL);
  kill_marked(mark_);
  reap(std::chrono::seconds(10));
  watcher_.reset();  // before waitpid(): after it, the number may belong to another process
  last_resort_.reset();
  waitpid(pid_, nullptr, WNOHANG);
  pid_ = -1;
}

Status Child::send(const std::string& line) {
  const NoPipeSignal guard;
  const std::string text = line + "\n";
  const auto limit = Clock::now() + std::chrono::seconds(60);
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = ::write(in_fd_, text.data() + at, text.size() - at);
    if (n > 0) {
      at += static_cast<size_t>(n);
      continue;
    }
    if (n < 0 && errno != EAGAIN && errno != EINTR) {
      // The child has ended, or is about to report why on its standard error.
      reap(std::chrono::seconds(2));
      drain_errors();
      return failed(gone_ ? how() : "no longer reads its standard input");
    }
    if (Clock::now() > limit) return failed("does not read its standard input");
    pollfd ready{in_fd_, POLLOUT, 0};
    poll(&ready, 1, 100);
  }
  return Ok{};
}

std::string Child::unread() {
  while (out_.size() <= kMaxLine && read_some(out_fd_, out_) == Read::kSome) {
  }
  return out_;
}

bool Child::is_quiet() { return !reap(std::chrono::milliseconds(0)) && unread().empty(); }

Result<std::string> Child::receive(std::chrono::milliseconds limit) {
  const auto end = Clock::now() + limit;
  for (;;) {
    if (const size_t line = out_.find('\n'); line != std::string::npos) {
      std::string text = out_.substr(0, line);
      out_.erase(0, line + 1);
      return text;
    }
    if (out_.size() > kMaxLine)
      return failed("sent a line of more than 1 MiB: " + out_.substr(0, 80) + "...");
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() <= 0)
      return failed("has not answered within " + std::to_string(limit.count() / 1000) + " s");
    pollfd ready[2] = {{out_fd_, POLLIN, 0}, {error_fd_, POLLIN, 0}};
    const int n = poll(ready, 2, static_cast<int>(std::min<int64_t>(left.count(), 200)));
    // A process that the child started may keep the pipe open, so also check whether it has ended.
    if (n == 0 && reap(std::chrono::milliseconds(0))) return failed(how() + " without an answer");
    if (n <= 0) continue;
    if (ready[1].revents != 0 && read_some(error_fd_, errors_) == Read::kEnd) close_fd(error_fd_);
    if (ready[0].revents == 0 || read_some(out_fd_, out_) != Read::kEnd) continue;
    reap(std::chrono::seconds(1));
    drain_errors();
    return failed(gone_ ? how() + " without an answer" : "closed its standard output");
  }
}

}  // namespace twinrun
