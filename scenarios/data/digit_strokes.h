// The pen strokes of the ten digits, a few ways of writing each.
// Unit box, x to the right, y downward; a curve runs through its points (Catmull-Rom), a line joins
// them.
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
