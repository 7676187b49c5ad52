// How long work reports itself, and how it is asked to stop. harness/cli prints; nothing else does.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace twinrun {

class Progress {
 public:
  virtual ~Progress() = default;
  // A stage of `total` steps begins; `what` says it to a person: "T: tpu, 8 cores".
  virtual void begin(const std::string& /*what*/, int64_t /*total*/) {}
  virtual void step(int64_t /*done*/, const std::string& /*detail*/) {}
  // A line for those who ask for detail (-v), every train.log_every steps.
  virtual void log(const std::string& /*line*/) {}
  // A line for everybody: what goes otherwise than one might think.
  virtual void note(const std::string& /*line*/) {}
  // What an engine of another process says while it is waited for: "compiling".
  virtual void alive(const std::string& /*what*/) {}
  virtual void end(const std::string& /*result*/) {}
};

// Set by a signal handler; runs end after the current step.
using StopFlag = std::atomic<bool>;

}  // namespace twinrun
