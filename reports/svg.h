// Charts as static SVG, styled by the classes of the page's style sheet: readable without script
// and on paper. Lines differ by dashes as well as by colour. Non-finite numbers, and zeros on a
// logarithmic axis, leave a gap.
//
//   LineChart c{.id = "loss", .title = "Loss by step", .x_label = "step", .y_label = "loss"};
//   c.x = {0, 1, 2};  c.lines = {{"R", 0, {2.3, 1.9, 1.7}}};
//   to_svg(thinned(c, 800));      // picture
//   to_data(thinned(c, 2000));    // the same as JSON, for the page's script
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reports/report.h"

namespace twinrun::html {

inline constexpr int kStyles = 7;  // of lines: combinations of colour and dash

struct Line {
  std::string name;
  int style = 0;          // 0 .. kStyles - 1
  std::vector<double> y;  // one for each x
  std::string note = {};  // shown beside its name in the legend
};

struct Mark {  // a vertical line that marks an event
  double x = 0;
  std::string label;
};

struct LineChart {
  std::string id;     // unique within the page
  std::string title;  // also the text for screen readers
  std::string description;
  std::string x_label, y_label;
  bool logarithmic = false;
  double knee = 0;        // > 0: the axis is compressed above it (text::Axis)
  std::vector<double> x;  // ascending
  std::vector<Line> lines;
  std::vector<double> low, high;  // a band, one value per x; empty: no band
  std::string band;               // name of the band
  std::vector<Mark> marks;
};

// Reduces a chart to about `most` points. Each stretch keeps its least and largest value, so that
// no peak is lost.
LineChart thinned(const LineChart& chart, size_t most);
// Whether there is anything to draw.
bool drawable(const LineChart& chart);
std::string to_svg(const LineChart& chart);
std::string to_data(const LineChart& chart);  // JSON that is safe inside <script>
std::string line_sample(int style);           // for a legend
// Worst error / bound on a logarithmic scale from 10^-3 to 10^4, clamped to it, with the bound
// marked.
std::string op_bar(const ProbeRow& row);

// Rows of cells, coloured in ten steps of a logarithmic scale. Every row has a name and every cell
// a description in words.
struct HeatMap {
  std::string title, description;
  std::vector<std::string> columns, rows;
  std::vector<std::vector<double>> cells;  // [row][column]
  std::string x_label;
};
std::string to_svg(const HeatMap& map);
// Rows of dots on a logarithmic scale, the largest of each row emphasised. Zeros are in a column of
// their own at the left, infinities at the right. A line marks 1, the bound.
struct DotPlot {
  struct Row {
    std::string name;
    std::vector<double> values;  // at least one; none is negative or NaN
    std::string note;            // shown when a reader points at the row
  };
  std::string title, description, x_label;
  std::vector<Row> rows;
};
std::string to_svg(const DotPlot& plot);
std::string to_svg(const TensorPicture& picture, std::string_view description);

}  // namespace twinrun::html
