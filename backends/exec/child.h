// A child process (an engine): sends lines to its standard input, receives lines from its standard
// output, and keeps the end of its standard error. The child gets its own process group. It is
// ended when this object is destroyed, or when this program ends, in whatever way. The processes
// that it has started are ended too: they are found by the group, and by the variable
// TWINRUN_SESSION, which they inherit in their environment.
//
//   TWINRUN_ASSIGN(auto child, Child::start({"python3", "engine.py", "/tmp/session"},
//                                           "/tmp/session", "exec:python3 engine.py"));
//   TWINRUN_RETURN_IF_ERROR(child->send(R"({"do":"hello"})"));
//   // Error: how the child ended, or that it is late, with the end of its standard error.
//   auto line = child->receive(std::chrono::seconds(60));
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
  static constexpr size_t kMaxLine = size_t{1} << 20, kKeptErrors = size_t{64} << 10;

  // `folder`: the folder of this session, used by no other. `name`: what errors give as their
  // place. Errors: no such program, not executable.
  static Result<std::unique_ptr<Child>> start(const std::vector<std::string>& argv,
                                              const std::string& folder, const std::string& name);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  Status send(const std::string& line);
  Result<std::string> receive(std::chrono::milliseconds limit);
  // Output that receive() has not yet returned; "" if there is none. Does not wait.
  std::string unread();
  // True if the child still runs and has no unread output.
  bool is_quiet();
  // Closes the child's input and waits up to `patience`; then sends SIGTERM to the group; then
  // SIGKILL to the group and to all descendants that have left it.
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
  std::string how() const;  // describes how the child ended

  std::string name_, mark_, out_, errors_;
  int in_fd_ = -1, out_fd_ = -1, error_fd_ = -1;
  pid_t pid_ = -1;
  std::optional<LastResort> last_resort_;
  std::optional<Watcher> watcher_;
  int status_ = 0;          // the exit status, or the number of the signal that ended it
  bool signalled_ = false;  // it was ended by a signal
  bool gone_ = false;
};

}  // namespace twinrun
