// Delta debugging: of n changes that together make something bad, a smallest set that does so alone.
//
//   TWINRUN_ASSIGN(const SmallestSet s, smallest_set(12, [](const std::vector<int>& changes) { return key_of(changes); }, judge));
//   s.changes      // {3, 7}: bad; without any one of them it is not bad
#pragma once

#include <functional>
#include <vector>

#include "harness/bisect/search.h"

namespace twinrun::bisect {

struct SmallestSet {
  Found::End end = Found::End::kFound;
  std::vector<int> changes;    // ascending
  std::vector<int> neighbour;  // `changes` less one, or less some that cannot be told apart: good
  std::string why;             // kNotReproducible
  Tally good_tally, bad_tally;
  std::vector<std::string> notes;
  int64_t executions = 0, testable = 0, untestable = 0;
  int64_t bound = 0;  // of `testable`, where leaving changes out never makes it bad
};

// `name` of a set (ascending numbers from 0) is the candidate that the judge asks about.
//
// The shortest bad prefix of the changes is found by search(); its last change is in the set, and the search goes on before it with
// that change kept: about log2(n) tests for each change of the set, where ddmin's granularity may cost n. Then each change is left
// out alone, and what is still bad goes on without it. So the set is 1-minimal, as ddmin's is (Zeller and Hildebrandt,
// "Simplifying and Isolating Failure-Inducing Input", IEEE TSE 28, 2002), also where tests are not monotone. Sets that cannot be
// tested (skip) count as not bad.
Result<SmallestSet> smallest_set(int n,
                                 const std::function<std::string(const std::vector<int>&)>& name,
                                 Judge& judge);

}  // namespace twinrun::bisect
