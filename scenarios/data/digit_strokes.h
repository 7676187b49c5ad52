// The pen strokes of the ten digits, with several variants of each; digits.cc draws them.
// Coordinates are in the unit box, x to the right, y downward. A curved stroke is a Catmull-Rom
// curve through its points, any other a sequence of straight lines.
#pragma once

#include <span>
#include <vector>

namespace twinrun::data {

struct Point {
  double x = 0, y = 0;
};

struct Stroke {
  bool curved = false;
  std::vector<Point> points;
};

using Glyph = std::vector<Stroke>;

// digit from 0 to 9; never empty.
std::span<const Glyph> glyphs(int digit);

}  // namespace twinrun::data
