// The search behind twinrun bisect: from a good candidate to a bad one, by halving what lies
// between. Candidates form a line (segments of a run, prefixes of keys) or a history with merges
// (commits); a Lineage describes both.
//
//   const Lineage steps = Lineage::line({"0", "1", "2", "3"});
//   TWINRUN_ASSIGN(const Found f, search(steps, 0, 3, judge));
//   if (f.end == Found::End::kFound) use(f.last_good, f.first_bad);
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/search/judge.h"

namespace twinrun::bisect {

// Candidates, each with its parents: before[i] holds the numbers of those directly before i, all
// below i.
struct Lineage {
  std::vector<std::string> names;
  std::vector<std::vector<int>> before;
  static Lineage line(std::vector<std::string> names);
  int size() const { return static_cast<int>(names.size()); }
};

struct Found {
  enum class End : uint8_t {
    kFound,      // first_bad, and last_good directly before it
    kUndecided,  // candidates that would decide cannot be tested: first_bad or one of `skipped`
    kNotReproducible,  // an end does not answer as required, or no longer does
  } end = End::kFound;
  int last_good = -1, first_bad = -1;
  std::vector<int> skipped;  // untestable candidates between the two
  std::string why;           // kNotReproducible: which end, what it answered; "flaky" or "lost"
  Tally good_tally, bad_tally;
  // Sentences on what the repeats show about flakiness, with the requested confidence.
  std::vector<std::string> notes;
  int64_t executions = 0;
  int64_t testable = 0, untestable = 0;  // different candidates, the ends included
  // Upper bound of `testable` on a line: 2 + ceil(log2(candidates between + 1)). 0 with merges,
  // where there is none.
  int64_t bound = 0;
};

std::string_view to_string(Found::End end);  // "found", "undecided", "not reproducible"

// Checks both ends first, executes every candidate until Repeats::agree executions agree, and
// executes the pair that it finds once more. It tries the candidate that best splits those that may
// be testable, so on a line each answer halves them: `testable` stays within `bound` however many
// are skipped. A candidate that answers both ways is bad; from then on good ones must answer so
// often that a flaky one would hardly be missed. Errors: the oracle's; interrupted.
Result<Found> search(const Lineage& lineage, int good, int bad, Judge& judge);

// Smallest n with 2^n >= count + 1: the number of answers that distinguish count + 1 outcomes.
int tries_left(int64_t count);
// Rate q of deviating answers that k agreeing ones exclude with this confidence: (1 - q)^k = 1 -
// confidence.
double excluded_rate(int k, double confidence);

}  // namespace twinrun::bisect
