// A program of someone else's at work beside ours: lines to its standard input, lines from its standard output, and what it
// says on its standard error, kept. It gets a process group of its own and is ended with this object.
//
//   TWINRUN_ASSIGN(auto child, Child::start({"python3", "engine.py", "/tmp/session"}));
//   TWINRUN_RETURN_IF_ERROR(child->send(R"({"do":"hello"})"));
//   auto line = child->receive(std::chrono::seconds(60));      // error: how it ended, or that it is late; with its last words
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "program/base/result.h"

namespace twinrun {

class Child {
 public:
  static constexpr size_t kMostLine = size_t{1} << 20, kKeptErrors = size_t{64} << 10;

  // Errors: no such program, not executable.
  static Result<std::unique_ptr<Child>> start(const std::vector<std::string>& argv);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  Status send(const std::string& line);
  Result<std::string> receive(std::chrono::milliseconds limit);
  // Closes its input and waits; then SIGTERM, then SIGKILL, to the whole group.
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

  std::string name_, out_, errors_;
  int in_fd_ = -1, out_fd_ = -1, error_fd_ = -1;
  pid_t pid_ = -1;
  int status_ = 0;
  bool gone_ = false;
};

}  // namespace twinrun
