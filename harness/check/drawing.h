// The picture of what was checked: ops in groups (layers), groups in phases, both laid out by Graphviz (`dot`, on PATH). Of a scenario
// its program is drawn, of a text the text. On the data's path: Checked -> GraphPage (here) -> reports/graph_page.h.
//
//   TWINRUN_ASSIGN(const GraphPage page, draw(checked));
#pragma once

#include "harness/check/check.h"
#include "reports/graph_page.h"

namespace twinrun {

// Errors: nothing to draw; no Graphviz.
Result<GraphPage> draw(const Checked& checked);

namespace check {

// A picture to be: sizes of its boxes, and who leads to whom.
struct Sketch {
  std::vector<Drawing::Box> boxes;  // width and height
  std::vector<std::pair<int, int>> arrows;
};
// One run of dot for all; names never reach it. A sketch that is too large, or that dot does not finish in time, is not drawn.
Result<std::vector<Drawing>> lay_out(const std::vector<Sketch>& sketches);

}  // namespace check
}  // namespace twinrun
