// A program of someone else's at work beside ours: lines to its standard input, lines from its standard output, and what it
// says on its standard error, kept. It gets a process group of its own and is ended with this object, or with this program however that
// ends; so is what it has started, told by the group and by the mark that it inherits in its environment, TWINRUN_SESSION.
//
//   TWINRUN_ASSIGN(auto child, Child::start({"python3", "engine.py", "/tmp/session"}, "/tmp/session", "exec:python3 engine.py"));
//   TWINRUN_RETURN_IF_ERROR(child->send(R"({"do":"hello"})"));
//   auto line = child->receive(std::chrono::seconds(60));      // error: how it ended, or that it is late; with its last words
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/exec/last_resort.h"
#include "backends/exec/watcher.h"
#include "program/base/result.h"

namespace twinrun {

class Child {
 public:
  static constexpr size_t kMostLine = size_t{1} << 20, kKeptErrors = size_t{64} << 10;

  // `folder`: of its session, its own. `name`: the place that errors name. Errors: no such program, not executable.
  static Result<std::unique_ptr<Child>> start(const std::vector<std::string>& argv,
                                              const std::string& folder, const std::string& name);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  Status send(const std::string& line);
  Result<std::string> receive(std::chrono::milliseconds limit);
  // What it has said that nobody has received yet; "" if there is nothing. Does not wait.
  std::string unread();
  // Has it neither ended nor said anything that nobody has received?
  bool is_quiet();
  // Closes its input and waits; then SIGTERM, then SIGKILL, to the whole group and to what left it.
  void end(std::chrono::milliseconds patience);

  const std::string& name() const { return name_; }
  // The last lines of its standard error; "" if there are none.
  std::string last_words() const;

 private:
  Child() = default;
  Error failed(const std::string& what);
  enum class Read : uint8_t { kSome, kNothingNow, kEnd };
  Read read_some(int fd, std::string& into);
  void drain_errors();
  void close_all();
  bool reap(std::chrono::milliseconds limit);
  std::string how() const;  // it ended

  std::string name_, mark_, out_, errors_;
  int in_fd_ = -1, out_fd_ = -1, error_fd_ = -1;
  pid_t pid_ = -1;
  std::optional<LastResort> last_resort_;
  std::optional<Watcher> watcher_;
  int status_ = 0;          // of its exit, or the signal
  bool signalled_ = false;  // that ended it
  bool gone_ = false;
};

}  // namespace twinrun
