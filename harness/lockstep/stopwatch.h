// Adds up the time that is spent in a scope. Only the report of the cost uses it.
//
//   const Stopwatch watch(seconds_);
#pragma once

#include <chrono>

namespace twinrun {

class Stopwatch {
 public:
  explicit Stopwatch(double& total) : total_(total), begin_(now()) {}
  ~Stopwatch() { total_ += now() - begin_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

 private:
  double& total_;
  double begin_;
};

}  // namespace twinrun
