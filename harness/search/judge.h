// Executes an oracle on candidates, repeatedly, and counts each candidate's answers in a tally.
// search() decides with it which candidate to try next; the session records every execution.
//
//   Judge judge(oracle, {.agree = 2}, session, progress, stop);
//   // Until two executions agree, or both answers were given:
//   TWINRUN_ASSIGN(const Tally t, judge.until("a1b2c3", {2, 2}));
//   t.outcome();                                                     // bad as soon as one was
#pragma once

#include <functional>
#include <map>
#include <string>

#include "harness/host/progress.h"
#include "harness/search/session.h"

namespace twinrun::bisect {

// Executes a candidate once. An error ends the search: a command that cannot be started, an
// interrupt.
using Oracle = std::function<Result<Execution>(const std::string& candidate)>;

struct Repeats {
  int agree = 2;  // executions of a candidate that must agree
  // Skips in a row after which a candidate counts as untestable. Builds may be flaky.
  int skips = 3;
  int most = 20;  // limit of executions of a good candidate, if bad ones sometimes answer good
  double confidence = 0.95;  // of statements about flakiness
};

struct Tally {
  int good = 0, bad = 0, skip = 0;
  std::string why_skipped;  // the last time: "exit code 125; see logs/002-1a2b3c.log"
  bool mixed() const { return good > 0 && bad > 0; }
  bool testable() const { return good + bad > 0; }
  // One bad answer makes a candidate bad, since the good end never gives one.
  Outcome outcome() const {
    return bad > 0 ? Outcome::kBad : good > 0 ? Outcome::kGood : Outcome::kSkip;
  }
  std::string text() const;  // "bad in 2 of 2", "bad in 1 of 3", "skipped 3 times (exit code 125)"
};

class Judge {
 public:
  struct Wanted {
    int good = 1, bad = 1;  // how many answers of either kind settle a candidate
  };

  // The session, progress and stop flag must outlive the judge.
  Judge(Oracle oracle, Repeats repeats, Session& session, Progress* progress, const StopFlag* stop)
      : oracle_(std::move(oracle)),
        repeats_(repeats),
        session_(session),
        progress_(progress),
        stop_(stop) {}

  // Executes the candidate until its answers, earlier ones included, are settled or mixed, or until
  // it was skipped Repeats::skips times in a row.
  Result<Tally> until(const std::string& candidate, Wanted wanted);
  // Executes the candidate until it has given `answers` further answers, good or bad, or has been
  // skipped Repeats::skips times in a row.
  Result<Tally> more(const std::string& candidate, int answers);
  Tally of(const std::string& candidate) const;

  const Repeats& repeats() const { return repeats_; }
  // Executions that this judge has counted, with those that the session knew already.
  int64_t executions() const { return executions_; }
  // Number of different candidates that gave an answer, and of those that gave none.
  int64_t testable() const;
  int64_t untestable() const;
  // Shown beside every execution: "about 4 tries left".
  void say_left(std::string text) { left_ = std::move(text); }
  // The name under which progress shows a candidate, if not its own.
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
