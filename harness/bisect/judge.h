// Asks an oracle about candidates, more than once, and remembers: what one candidate has answered is its tally.
//
//   Judge judge(oracle, {.agree = 2}, session, progress, stop);
//   TWINRUN_ASSIGN(const Tally t, judge.until("a1b2c3", {2, 2}));    // two executions that agree, or both answers
//   t.outcome();                                                     // bad as soon as one was
#pragma once

#include <functional>
#include <map>
#include <string>

#include "harness/bisect/session.h"
#include "harness/host/progress.h"

namespace twinrun::bisect {

// One execution of a candidate. Errors end the search: a command that cannot be started, an interrupt.
using Oracle = std::function<Result<Execution>(const std::string& candidate)>;

struct Repeats {
  int agree = 2;  // executions of a candidate that must say the same
  int skips = 3;  // in a row, until a candidate counts as untestable: builds may be flaky
  int most = 20;  // executions of a good candidate, where bad ones answer good now and then
  double confidence = 0.95;  // of what is said about flakiness
};

struct Tally {
  int good = 0, bad = 0, skip = 0;
  bool mixed() const { return good > 0 && bad > 0; }
  bool testable() const { return good + bad > 0; }
  // One bad answer is enough: the good end never gave any.
  Outcome outcome() const {
    return bad > 0 ? Outcome::kBad : good > 0 ? Outcome::kGood : Outcome::kSkip;
  }
  std::string text() const;  // "bad in 2 of 2", "bad in 1 of 3", "skipped 3 times"
};

class Judge {
 public:
  struct Wanted {
    int good = 1, bad = 1;  // answers of one kind that settle it
  };

  // Everything is kept by reference.
  Judge(Oracle oracle, Repeats repeats, Session& session, Progress* progress, const StopFlag* stop)
      : oracle_(std::move(oracle)),
        repeats_(repeats),
        session_(session),
        progress_(progress),
        stop_(stop) {}

  // Until the answers in all are settled, mixed, or skips alone.
  Result<Tally> until(const std::string& candidate, Wanted wanted);
  // So many answers more, whatever they are.
  Result<Tally> more(const std::string& candidate, int answers);
  Tally of(const std::string& candidate) const;

  const Repeats& repeats() const { return repeats_; }
  int64_t executions() const { return executions_; }  // told by this judge, known ones included
  // Different candidates that gave an answer, and that gave none.
  int64_t testable() const;
  int64_t untestable() const;
  // Shown beside every execution: "about 4 tries left".
  void say_left(std::string text) { left_ = std::move(text); }
  // How a candidate is called there, if not by its name.
  void shown_as(std::function<std::string(const std::string&)> shown) { shown_ = std::move(shown); }
  std::string shown(const std::string& candidate) const {
    return shown_ ? shown_(candidate) : candidate;
  }

 private:
  Status execute(const std::string& candidate, Tally& tally);

  Oracle oracle_;
  Repeats repeats_;
  Session& session_;
  Progress* progress_;
  const StopFlag* stop_;
  std::map<std::string, Tally> tallies_;
  std::map<std::string, int> skipped_in_a_row_;
  int64_t executions_ = 0;
  std::string left_;
  std::function<std::string(const std::string&)> shown_;
};

}  // namespace twinrun::bisect
