// The one search: from a candidate that is good to one that is bad, by halving what lies between. Candidates are a line (steps,
// prefixes of keys) or a history with merges (commits): both are a Lineage.
//
//   const Lineage steps = Lineage::line({"0", "1", "2", "3"});
//   TWINRUN_ASSIGN(const Found f, search(steps, 0, 3, judge));
//   if (f.end == Found::End::kFound) use(f.last_good, f.first_bad);
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/bisect/judge.h"

namespace twinrun::bisect {

// Candidates, each with those directly before it. Those before come first: before[i] holds numbers below i.
struct Lineage {
  std::vector<std::string> names;
  std::vector<std::vector<int>> before;
  static Lineage line(std::vector<std::string> names);
  int size() const { return static_cast<int>(names.size()); }
};

struct Found {
  enum class End : uint8_t {
    kFound,            // first_bad, and last_good directly before it
    kUndecided,        // what could tell cannot be tested: first_bad or one of `skipped`
    kNotReproducible,  // an end does not answer as it was said to, or not any more
  } end = End::kFound;
  int last_good = -1, first_bad = -1;
  std::vector<int> skipped;  // between the two
  std::string why;           // kNotReproducible: which end, what it answered; "flaky" or "lost"
  Tally good_tally, bad_tally;
  // What the repeats are worth: sentences, with the confidence that was asked for.
  std::vector<std::string> notes;
  int64_t executions = 0;
  int64_t testable = 0, untestable = 0;  // different candidates, the ends included
  // Of `testable`, on a line: 2 + ceil(log2(candidates between + 1)). 0, with merges: none.
  int64_t bound = 0;
};

std::string_view to_string(Found::End end);  // "found", "undecided", "not reproducible"

// Both ends are proven first; every candidate is asked until `agree` executions say the same; the pair that is found is asked once
// more. Chooses what splits the candidates that may be testable best, so that on a line each answer halves them: `testable` is
// within `bound` however many are skipped. A candidate that answers both ways is bad, and from then on good ones must answer so
// often that one like it would hardly be missed. Errors: the oracle's; interrupted.
Result<Found> search(const Lineage& lineage, int good, int bad, Judge& judge);

// Smallest n with 2^n >= count + 1: answers that are needed to tell count + 1 outcomes apart.
int tries_left(int64_t count);
// Rate of other answers that k agreeing ones exclude with this confidence: (1 - q)^k = 1 - confidence.
double excluded_rate(int k, double confidence);

}  // namespace twinrun::bisect
