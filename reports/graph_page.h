// graph.html: a training step drawn layer by layer, ops that a TPU can run in green and others in
// red. One file that loads nothing, like report.html. The caller computes the layout; this page
// adds words and numbers.
//
//   GraphPage page{.title = "digits_cnn", .phases = ...};
//   write_file_atomically("graph.html", to_html(page));
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace twinrun {

// Coordinates are in points; y grows downwards. A line is a chain of cubic Bezier curves, 3 n + 1
// points. A frame is around the boxes of one fusion, and no other box is inside of it.
struct Drawing {
  struct Box {
    double x = 0, y = 0, width = 0, height = 0;  // x, y: the centre
  };
  double width = 0, height = 0;
  std::vector<Box> boxes;
  std::vector<std::vector<std::pair<double, double>>> lines;
  struct Frame {
    int fusion = 0;  // index into GraphPage::fusions
    Box box;
  };
  std::vector<Frame> frames;
  bool drawn() const { return width > 0; }
};

struct DrawnOp {
  // layout: "f32[8,128]{1,0:T(8,128)}", "" when there is none.
  std::string name, kind, shape, layout;
  bool compatible = true;     // with a TPU
  std::string why;            // why it is not compatible
  std::vector<int> operands;  // indices of other ops
  int fusion = -1;            // index into GraphPage::fusions; -1: it runs by itself
};

struct DrawnGroup {
  std::string name;
  std::vector<int> ops;
  Drawing inside;  // one box per entry of `ops`; not drawn where there are too many
};

struct DrawnPhase {
  std::string name;
  std::vector<DrawnGroup> groups;
  Drawing drawing;  // one box per group
};

struct GraphPage {
  std::string title, about;
  std::string memory;  // one line on a core's memory use; "" where it is not known
  bool fits = true;    // whether that use fits into the memory
  std::vector<DrawnOp> ops;
  // Ops that run as one, with one pass over memory: each fusion's name and what is known of it.
  std::vector<std::pair<std::string, std::string>> fusions;
  std::vector<DrawnPhase> phases;
  struct Remark {
    std::string severity, id, where, found, fix;
  };
  std::vector<Remark> remarks;
};

std::string to_html(const GraphPage& page);

}  // namespace twinrun
