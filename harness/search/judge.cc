// Executes candidates, or takes their known executions from the session, and counts the answers.
#include "harness/search/judge.h"

#include <fmt/format.h>

#include <algorithm>

namespace twinrun::bisect {

std::string Tally::text() const {
  if (!testable())
    return (skip == 1 ? "skipped once" : fmt::format("skipped {} times", skip)) +
           (why_skipped.empty() ? "" : fmt::format(" ({})", why_skipped));
  const bool is_bad = bad > 0;
  const std::string skipped = skip > 0 ? fmt::format(", and skipped {}", skip) : "";
  return fmt::format("{} in {} of {}{}", is_bad ? "bad" : "good", is_bad ? bad : good, good + bad,
                     skipped);
}

Tally Judge::of(const std::string& candidate) const {
  const auto it = tallies_.find(candidate);
  return it == tallies_.end() ? Tally{} : it->second;
}

int64_t Judge::testable() const {
  return std::ranges::count_if(tallies_, [](const auto& t) { return t.second.testable(); });
}
int64_t Judge::untestable() const { return static_cast<int64_t>(tallies_.size()) - testable(); }

Status Judge::execute(const std::string& candidate, Tally& tally) {
  if (stop_ != nullptr && stop_->load()) return interrupted();
  Execution e;
  if (const Execution* known = session_.next_known(candidate)) {
    e = *known;
  } else {
    if (progress_ != nullptr)
      progress_->begin(fmt::format("{}{}", shown(candidate), left_.empty() ? "" : ", " + left_), 1);
    TWINRUN_ASSIGN(e, oracle_(candidate));
    e.candidate = candidate;
    TWINRUN_RETURN_IF_ERROR(session_.add(e));
    if (progress_ != nullptr)
      progress_->end(fmt::format("{}{}", to_string(e.outcome), e.why.empty() ? "" : ": " + e.why));
  }
  ++executions_;
  int& skipped = skipped_in_a_row_[candidate];
  skipped = e.outcome == Outcome::kSkip ? skipped + 1 : 0;
  ++(e.outcome == Outcome::kGood  ? tally.good
     : e.outcome == Outcome::kBad ? tally.bad
                                  : tally.skip);
  if (e.outcome == Outcome::kSkip)
    tally.why_skipped = e.why + (e.log.empty() ? "" : fmt::format("; see {}", e.log));
  return Ok{};
}

Result<Tally> Judge::until(const std::string& candidate, Wanted wanted) {
  Tally& tally = tallies_[candidate];
  while (!tally.mixed() && tally.good < wanted.good && tally.bad < wanted.bad &&
         skipped_in_a_row_[candidate] < repeats_.skips) {
    TWINRUN_RETURN_IF_ERROR(execute(candidate, tally));
  }
  return tally;
}

Result<Tally> Judge::more(const std::string& candidate, int answers) {
  Tally& tally = tallies_[candidate];
  const int wanted = tally.good + tally.bad + answers;
  skipped_in_a_row_[candidate] = 0;
  while (tally.good + tally.bad < wanted && skipped_in_a_row_[candidate] < repeats_.skips) {
    TWINRUN_RETURN_IF_ERROR(execute(candidate, tally));
  }
  return tally;
}

}  // namespace twinrun::bisect
