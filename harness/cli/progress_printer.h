// Progress on stderr: on a terminal a live line with rate and remaining time, or with the time so far
// where a stage does not move, elsewhere one line per stage, nothing with -q; -v adds a line every train.log_every steps.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "harness/host/progress.h"

namespace twinrun::cli {

class ProgressPrinter : public Progress {
 public:
  ProgressPrinter(bool quiet, bool verbose);
  ~ProgressPrinter() override;  // erases a line of a stage that has not ended
  ProgressPrinter(const ProgressPrinter&) = delete;
  ProgressPrinter& operator=(const ProgressPrinter&) = delete;
  void begin(const std::string& what, int64_t total) override;
  void step(int64_t done, const std::string& detail) override;
  void log(const std::string& line) override;
  void note(const std::string& line) override;
  void alive(const std::string& what) override;
  void end(const std::string& result) override;

 private:
  void write(const std::string& line) const;  // over the live line
  void show(const std::string& line);         // as the live line
  void tick(const std::stop_token& stop);
  using Clock = std::chrono::steady_clock;
  bool quiet_, verbose_, terminal_;
  bool live_ = false;  // the last line is one that will be erased
  std::string what_;
  std::set<std::string> notes_;
  int64_t total_ = 0;
  bool running_ = false;  // a stage has begun and not ended
  Clock::time_point begin_, shown_, logged_;
  std::mutex mutex_;  // of all above: tick() runs in a thread of its own
  std::condition_variable_any stops_;
  std::jthread clock_;
};

// "8.0 s", "42 s", "2 min 05 s"
std::string duration_text(double seconds);

}  // namespace twinrun::cli
