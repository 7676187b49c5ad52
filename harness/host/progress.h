// How long-running work reports its progress, and how it is stopped. Only harness/cli prints; it
// implements Progress.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace twinrun {

class Progress {
 public:
  virtual ~Progress() = default;
  // A stage of `total` steps begins; `what` describes it: "T: tpu, 8 cores".
  virtual void begin(const std::string& /*what*/, int64_t /*total*/) {}
  virtual void step(int64_t /*done*/, const std::string& /*detail*/) {}
  // A line of detail (-v), every train.log_every steps.
  virtual void log(const std::string& /*line*/) {}
  // A line that is shown even without -v: something that differs from what a user may expect.
  virtual void note(const std::string& /*line*/) {}
  // A message from an engine of another process while it is waited for: "compiling".
  virtual void alive(const std::string& /*what*/) {}
  virtual void end(const std::string& /*result*/) {}
};

// Set by a signal handler; runs end after the current step, or the current loop (HostLoop).
using StopFlag = std::atomic<bool>;

}  // namespace twinrun
