// Finds a minimal bad set of changes by repeated searches over prefixes, then leaves out each
// change.
#include "harness/search/smallest_set.h"

#include <algorithm>

namespace twinrun::bisect {
namespace {

using Changes = std::vector<int>;
using Name = std::function<std::string(const Changes&)>;

// `kept` and the first `prefix` of all changes.
Changes with_prefix(const Changes& kept, int prefix) {
  Changes set;
  for (int i = 0; i < prefix; ++i) set.push_back(i);
  set.insert(set.end(), kept.begin(), kept.end());  // all kept changes lie beyond the prefix
  std::ranges::sort(set);
  return set;
}

Changes without(Changes set, int change) {
  std::erase(set, change);
  return set;
}

// Drops each change, one at a time, without which the set is still bad.
Status leave_out(SmallestSet& found, const Name& name, Judge& judge) {
  const int agree = judge.repeats().agree;
  for (size_t i = 0; i < found.changes.size() && found.changes.size() > 1;) {
    const Changes less = without(found.changes, found.changes[i]);
    judge.say_left("is each of them needed?");
    TWINRUN_ASSIGN(const Tally t, judge.until(name(less), {agree, agree}));
    if (t.outcome() == Outcome::kBad) {
      found.changes = less;
      found.neighbour.clear();
      i = 0;  // changes that were needed before may be unnecessary now
      continue;
    }
    if (t.testable()) found.neighbour = less;
    ++i;
  }
  return Ok{};
}

}  // namespace

Result<SmallestSet> smallest_set(int n, const Name& name, Judge& judge) {
  SmallestSet found;
  found.bound = 2;
  for (int limit = n;;) {
    if (!found.changes.empty()) {
      judge.say_left("are they enough?");
      const int agree = judge.repeats().agree;
      TWINRUN_ASSIGN(const Tally kept, judge.until(name(found.changes), {agree, agree}));
      ++found.bound;
      if (kept.outcome() == Outcome::kBad) break;
    }
    // The candidates: no change, which is good; the kept changes alone, which may be untestable;
    // then longer and longer prefixes, up to the set that is known to be bad.
    std::vector<std::string> names;
    if (!found.changes.empty()) names.push_back(name({}));
    const int alone = static_cast<int>(names.size());
    for (int i = 0; i <= limit; ++i) names.push_back(name(with_prefix(found.changes, i)));
    const int last = static_cast<int>(names.size()) - 1;
    TWINRUN_ASSIGN(const Found f, search(Lineage::line(names), 0, last, judge));
    if (f.end == Found::End::kNotReproducible) {
      found.end = f.end;
      found.why = f.why;
      break;
    }
    found.notes = f.notes;
    found.bound += tries_left(last - 1);
    // If prefixes in between cannot be tested, their changes are kept together.
    const int before = std::max(f.last_good - alone, 0), after = f.first_bad - alone;
    found.neighbour =
        f.last_good < alone ? Changes{} : with_prefix(found.changes, f.last_good - alone);
    for (int i = before; i < after; ++i) found.changes.push_back(i);
    std::ranges::sort(found.changes);
    limit = before;
  }
  if (found.end == Found::End::kFound) {
    TWINRUN_RETURN_IF_ERROR(leave_out(found, name, judge));
    found.bound += static_cast<int64_t>(found.changes.size());  // each is left out once
    found.bad_tally = judge.of(name(found.changes));
    found.good_tally = judge.of(name(found.neighbour));
  }
  found.executions = judge.executions();
  found.testable = judge.testable();
  found.untestable = judge.untestable();
  return found;
}

}  // namespace twinrun::bisect
