// Intervals of time on one device or thread: nesting, unions and intersections.
//
//   const std::vector<Span> busy = merged(spans);
//   total(busy);  total(intersection(busy, input));
#pragma once

#include <cstddef>
#include <vector>

namespace twinrun {

struct Span {
  double begin = 0, end = 0;  // seconds
};

struct OpSpan : Span {
  size_t op = 0;    // the caller's number of what ran
  double self = 0;  // seconds without the spans nested in it
};

// Sorts the spans of one line, and sets what each takes for itself. A span that begins in another
// and ends after it counts as nested up to that end.
void set_self_times(std::vector<OpSpan>& line);

// Sorted and disjoint spans that cover the same time.
std::vector<Span> merged(std::vector<Span> spans);
// Of spans as merged() returns them.
double total(const std::vector<Span>& spans);
std::vector<Span> intersection(const std::vector<Span>& a, const std::vector<Span>& b);

}  // namespace twinrun
