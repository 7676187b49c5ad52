// The picture of what was checked: ops in groups (layers), groups in phases, both laid out by
// Graphviz (`dot`, on PATH). For a scenario it draws the program, for a text the text's
// instructions. On the data's path: Checked -> GraphPage (here) -> reports/graph_page.h.
//
//   TWINRUN_ASSIGN(const GraphPage page, draw(checked));
#pragma once

#include "harness/check/check.h"
#include "reports/graph_page.h"

namespace twinrun {

// Errors: nothing to draw; no Graphviz.
Result<GraphPage> draw(const Checked& checked);

namespace check {

// A picture before it is laid out: the sizes of its boxes, the fusion that each is part of (-1:
// none; empty: none at all), and arrows between their indices.
struct Sketch {
  std::vector<Drawing::Box> boxes;  // width and height
  std::vector<int> fusions;
  std::vector<std::pair<int, int>> arrows;
};
// Lays out all sketches in one run of dot. Names are not passed to it. A sketch that is too large,
// or that dot does not finish in time, gets an empty Drawing.
Result<std::vector<Drawing>> lay_out(const std::vector<Sketch>& sketches);

}  // namespace check
}  // namespace twinrun
