// graph.html: a training step drawn layer by layer, what a TPU runs in green and what it does not in red. One file that loads nothing,
// as report.html. Who calls has laid it out; words and numbers are made here.
//
//   GraphPage page{.title = "digits_cnn", .phases = ...};
//   write_file_atomically("graph.html", to_html(page));
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace twinrun {

// In points; y grows downwards. A line is a chain of cubic Bezier curves, 3 n + 1 points.
struct Drawing {
  struct Box {
    double x = 0, y = 0, width = 0, height = 0;  // x, y: its middle
  };
  double width = 0, height = 0;
  std::vector<Box> boxes;
  std::vector<std::vector<std::pair<double, double>>> lines;
  bool drawn() const { return width > 0; }
};

struct DrawnOp {
  std::string name, kind, shape, layout;  // layout: "f32[8,128]{1,0:T(8,128)}", "" of none
  bool compatible = true;                 // with a TPU
  std::string why;                        // not
  std::vector<int> operands;              // other ops
};

struct DrawnGroup {
  std::string name;
  std::vector<int> ops;
  Drawing inside;  // a box for each of `ops`; not drawn where they are too many
};

struct DrawnPhase {
  std::string name;
  std::vector<DrawnGroup> groups;
  Drawing drawing;  // a box for each group
};

struct GraphPage {
  std::string title, about;
  std::string memory;  // what a core's takes of it, in a line; "" where it is not known
  bool fits = true;    // into that memory
  std::vector<DrawnOp> ops;
  std::vector<DrawnPhase> phases;
  struct Remark {
    std::string severity, id, where, found, fix;
  };
  std::vector<Remark> remarks;
};

std::string to_html(const GraphPage& page);

}  // namespace twinrun
