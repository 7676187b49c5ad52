// Lays out sketches: writes Graphviz's text, runs dot and reads the positions. Format:
// https://graphviz.org/docs/outputs/plain/.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "checkpoints/container/temporary.h"
#include "harness/check/drawing.h"
#include "harness/host/command.h"

namespace twinrun::check {
namespace {

constexpr double kPoints = 72;  // per inch
constexpr size_t kMaxBoxes = 700, kMaxArrows = 6000, kMaxFramed = 100;
constexpr double kSeconds = 120;

bool small_enough(const Sketch& s) {
  return !s.boxes.empty() && s.boxes.size() <= kMaxBoxes && s.arrows.size() <= kMaxArrows;
}

// The boxes of each fusion of which a sketch has two or more. A large sketch has no frames: its
// unconnected parts must be put into rows, which dot does not do with frames.
std::map<int, std::vector<size_t>> framed(const Sketch& s) {
  std::map<int, std::vector<size_t>> all;
  if (s.boxes.size() > kMaxFramed) return all;
  for (size_t i = 0; i < s.fusions.size(); ++i) {
    if (s.fusions[i] >= 0) all[s.fusions[i]].push_back(i);
  }
  std::erase_if(all, [](const auto& fusion) { return fusion.second.size() < 2; });
  return all;
}

// Clusters keep other boxes out; the plain format does not say where they are.
void add_frames(const Sketch& s, Drawing& d) {
  constexpr double kAround = 6;  // less than the 8 points that dot leaves around a cluster's boxes
  for (const auto& [fusion, boxes] : framed(s)) {
    double left = d.width, top = d.height, right = 0, bottom = 0;
    for (const size_t i : boxes) {
      const Drawing::Box& b = d.boxes[i];
      left = std::min(left, b.x - b.width / 2);
      right = std::max(right, b.x + b.width / 2);
      top = std::min(top, b.y - b.height / 2);
      bottom = std::max(bottom, b.y + b.height / 2);
    }
    d.frames.push_back({fusion,
                        {(left + right) / 2, (top + bottom) / 2, right - left + 2 * kAround,
                         bottom - top + 2 * kAround}});
  }
}

std::string graph_text(const Sketch& s) {
  // The pack options put unconnected parts beside each other in rows, not in one line. With frames,
  // dot 2.43 crashes on them.
  const auto frames = framed(s);
  std::string out = fmt::format(
      "digraph g {{\nnode [shape=box fixedsize=true label=\"\"]\ngraph [nslimit=4 nslimit1=4 "
      "mclimit=0.6 nodesep=0.2 ranksep=0.35{}]\n",
      frames.empty() ? " pack=16 packmode=array_i6" : "");
  for (size_t i = 0; i < s.boxes.size(); ++i)
    out += fmt::format("{} [width={:.3f} height={:.3f}]\n", i, s.boxes[i].width / kPoints,
                       s.boxes[i].height / kPoints);
  for (const auto& [fusion, boxes] : frames) {
    out += fmt::format("subgraph cluster_{} {{ ", fusion);
    for (const size_t box : boxes) out += fmt::format("{}; ", box);
    out += "}\n";
  }
  for (const auto& [from, to] : s.arrows) out += fmt::format("{}->{}\n", from, to);
  return out + "}\n";
}

// Reads one drawing: lines "graph 1 w h", "node 3 x y w h ...", "edge 3 4 n x1 y1 ..", "stop".
// False: it is incomplete or invalid.
bool read_drawing(std::istream& in, const Sketch& s, Drawing& d) {
  constexpr double kMargin = 12;
  d.boxes = s.boxes;
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    const auto point = [&](double& x, double& y) {
      words >> x >> y;
      x = x * kPoints + kMargin;
      y = d.height - kMargin - y * kPoints;
    };
    if (word == "graph") {
      double scale = 1, w = 0, h = 0;
      words >> scale >> w >> h;
      d.width = w * kPoints + 2 * kMargin;
      d.height = h * kPoints + 2 * kMargin;
    } else if (word == "node") {
      size_t i = 0;
      words >> i;
      if (!words || i >= d.boxes.size()) return false;
      point(d.boxes[i].x, d.boxes[i].y);
    } else if (word == "edge") {
      size_t from = 0, to = 0, n = 0;
      words >> from >> to >> n;
      if (!words || n > 10'000) return false;
      auto& points = d.lines.emplace_back(n);
      for (auto& [x, y] : points) point(x, y);
    } else if (word == "stop") {
      add_frames(s, d);
      return true;
    }
    if (!words) return false;
  }
  return false;
}

// One run of dot. `finished`: whether it ended as it should.
Result<std::vector<Drawing>> run_dot(const std::vector<Sketch>& sketches, bool& finished) {
  TWINRUN_ASSIGN(const TemporaryFolder work, TemporaryFolder::make("graph"));
  const std::string in = work.path() + "/in.dot", out = work.path() + "/out.txt";
  std::ofstream text(in);
  for (const Sketch& s : sketches) {
    if (small_enough(s)) text << graph_text(s);
  }
  text.close();
  if (!text) return Error{"cannot write", in, "free space in the folder for temporary files"};
  CommandOptions options;
  options.timeout_seconds = kSeconds;
  options.out = out;
  const auto ran = run_command({"dot", "-Tplain", in}, options, nullptr);
  if (!ran)
    return Error{"the graph page needs Graphviz, which cannot be run: " + ran.error().what, "dot",
                 "apt-get install graphviz (or leave out -o)"};
  finished = ran->ended == CommandResult::Ended::kExit;
  std::ifstream places(out);
  std::vector<Drawing> drawings(sketches.size());
  for (size_t i = 0; i < sketches.size(); ++i) {
    if (!small_enough(sketches[i])) continue;
    // Leave this drawing and all later ones empty if dot did not finish it or its output is
    // invalid.
    if (!read_drawing(places, sketches[i], drawings[i])) {
      drawings[i] = {};
      break;
    }
  }
  return drawings;
}

}  // namespace

Result<std::vector<Drawing>> lay_out(const std::vector<Sketch>& sketches) {
  bool finished = false;
  Result<std::vector<Drawing>> drawings = run_dot(sketches, finished);
  if (!drawings || finished) return drawings;
  // dot has crashed on frames before; a picture without them is better than none.
  std::vector<Sketch> plain = sketches;
  for (Sketch& s : plain) s.fusions.clear();
  return run_dot(plain, finished);
}

}  // namespace twinrun::check
