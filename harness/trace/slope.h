// The slope of a function along a direction, by differences in binary64.
#pragma once

#include <algorithm>
#include <cmath>

namespace twinrun {

// Of what is moved; the second step is an eighth of it. What a kink adds to a difference grows with
// the step, what the roundings of binary64 add shrinks with it.
constexpr double kFirstStep = 0x1p-20;
// A difference is told from none where the two steps agree eight times better than it is large.
constexpr double kCertain = 8;
// Relative to the function: what its evaluation in binary64 may be off by.
constexpr double kRounding = 0x1p-46;

// `slack`: how far the value may be off.
struct Slope {
  double value = 0, slack = 0;
};

// `at(by)`: the function, moved by so much of the direction, whose length is 1; `here`: unmoved;
// `size`: the length of what is moved. Where the function has a kink just here (a relu of exactly 0),
// its slopes to both sides differ, and any number between them is a gradient.
template <typename F>
Slope slope_of(F at, double here, double size) {
  double found[2] = {0, 0}, largest = 0, kink = 0, step = kFirstStep * std::max(size, 1e-3);
  for (double& d : found) {
    const double up = at(step), down = at(-step);
    d = (up - down) / (2 * step);
    kink = std::fabs(up - 2 * here + down) / step;
    largest = std::max({largest, std::fabs(up), std::fabs(down)});
    step /= 8;
  }
  return {found[1], std::fabs(found[1] - found[0]) + kink + kRounding * largest / (8 * step)};
}

}  // namespace twinrun
