// Charts as static SVG, drawn with what a page's style sheet says of their classes: readable without script and on paper. Lines are told
// apart by dashes as well as by colour. Numbers that are not finite, and zeros on a logarithmic axis, leave a gap.
//
//   LineChart c{.id = "loss", .title = "Loss by step", .x_label = "step", .y_label = "loss"};
//   c.x = {0, 1, 2};  c.lines = {{"R", 0, {2.3, 1.9, 1.7}}};
//   to_svg(thinned(c, 800));  to_data(thinned(c, 2000));      // picture; the same as JSON, for the page's script
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reports/report.h"

namespace twinrun::html {

inline constexpr int kStyles = 7;  // of lines: colour and dash

struct Line {
  std::string name;
  int style = 0;          // 0 .. kStyles - 1
  std::vector<double> y;  // one for each x
  std::string note = {};  // beside its name in the key
};

struct Mark {  // a vertical line: something happened here
  double x = 0;
  std::string label;
};

struct LineChart {
  std::string id;     // of the page
  std::string title;  // also what a screen reader says
  std::string description;
  std::string x_label, y_label;
  bool logarithmic = false;
  double knee = 0;        // > 0: squeezed above it (text::Axis)
  std::vector<double> x;  // ascending
  std::vector<Line> lines;
  std::vector<double> low, high;  // a band, one for each x; empty: none
  std::string band;               // its name
  std::vector<Mark> marks;
};

// At most about `most` points: of each stretch its least and its largest value, so that no peak is lost.
LineChart thinned(const LineChart& chart, size_t most);
// Whether there is anything to draw.
bool drawable(const LineChart& chart);
std::string to_svg(const LineChart& chart);
std::string to_data(const LineChart& chart);  // JSON that may stand inside <script>
std::string line_sample(int style);           // for a key
std::string op_bar(
    const ProbeRow& row);  // worst error / bound, 10^-3 to 10^4 and beyond, the bound marked

// Rows of cells in ten steps of a logarithmic scale. No row is without a name, no cell without a word for it.
struct HeatMap {
  std::string title, description;
  std::vector<std::string> columns, rows;
  std::vector<std::vector<double>> cells;  // [row][column]
  std::string x_label;
};
std::string to_svg(const HeatMap& map);
std::string to_svg(const TensorPicture& picture, std::string_view description);

}  // namespace twinrun::html
