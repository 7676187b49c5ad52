// Delta debugging: of n changes that together make something bad, a minimal set that does so alone.
// Used by the search over scenario keys (scenarios.h).
//
//   TWINRUN_ASSIGN(const SmallestSet s, smallest_set(12, key_of, judge));
//   s.changes      // {3, 7}: bad; without any one of them it is not bad
#pragma once

#include <functional>
#include <vector>

#include "harness/search/search.h"

namespace twinrun::bisect {

struct SmallestSet {
  Found::End end = Found::End::kFound;
  std::vector<int> changes;  // ascending
  // A good set: `changes` less one, or less several that cannot be tested separately.
  std::vector<int> neighbour;
  std::string why;  // kNotReproducible
  Tally good_tally, bad_tally;
  std::vector<std::string> notes;
  int64_t executions = 0, testable = 0, untestable = 0;
  // Upper bound of `testable`, if leaving changes out never makes a set bad.
  int64_t bound = 0;
};

// `name` gives the candidate that the judge executes for a set (ascending numbers from 0).
//
// search() finds the shortest bad prefix of the changes. Its last change is in the set, and the
// search continues before it with that change kept: about log2(n) tests for each change of the set,
// where ddmin's granularity may cost n. Then each change is left out alone, and if the rest is
// still bad, it is dropped. So the set is 1-minimal, as ddmin's is (Zeller and Hildebrandt,
// "Simplifying and Isolating Failure-Inducing Input", IEEE TSE 28, 2002), also if tests are not
// monotone. Sets that cannot be tested (skip) count as not bad.
Result<SmallestSet> smallest_set(int n,
                                 const std::function<std::string(const std::vector<int>&)>& name,
                                 Judge& judge);

}  // namespace twinrun::bisect
