// Writes graph.html: pictures of the phases, lists of ops and findings, data for the page's script.
#include "reports/graph_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "reports/html_page.h"
#include "reports/html_text.h"
#include "reports/text.h"

namespace twinrun {
namespace graph_page {
namespace {

// Points as an SVG path. Coordinates rounded to whole numbers are precise enough.
std::string path_of(const std::vector<std::pair<double, double>>& points) {
  std::string d;
  for (size_t i = 0; i < points.size(); ++i)
    d += fmt::format("{}{:.0f} {:.0f}",
                     i == 0       ? "M"
                     : i % 3 == 1 ? " C"
                                  : " ",
                     points[i].first, points[i].second);
  return d;
}

class Page {
 public:
  explicit Page(const GraphPage& page) : p_(page) {
    for (const DrawnOp& op : p_.ops) wrong_ += op.compatible ? 0 : 1;
    for (const GraphPage::Remark& r : p_.remarks) errors_ += r.severity == "error" ? 1 : 0;
  }

  std::string render() const {
    return html::page(
        {.title = html::text(p_.title, 100) + ": on a TPU",
         .styles = {"page.css", "graph.css"},
         .body = fmt::format(
             "{}<main>\n<div class=\"picture\">\n{}</div>\n<aside>\n{}</aside>\n</main>\n"
             "<script type=\"application/json\" id=\"data\">{}</script>\n",
             header(), pictures(), side(), data()),
         .scripts = {std::string(html::page_file("graph.js"))},
         .kind = "graph"});
  }

 private:
  size_t compatible() const { return p_.ops.size() - wrong_; }
  // Rounded down, so that it never shows "100%" while an op is not compatible.
  std::string percent() const {
    if (p_.ops.empty()) return "–";
    if (wrong_ == 0) return "100%";
    return fmt::format("{:.1f}%", std::floor(1000.0 * static_cast<double>(compatible()) /
                                             static_cast<double>(p_.ops.size())) /
                                      10);
  }

  // Ops may all be compatible while an error stops the run.
  std::string badge() const {
    if (wrong_ > 0 || errors_ == 0) return percent() + " compatible";
    return errors_ == 1 ? "1 error" : fmt::format("{} errors", errors_);
  }

  std::string header() const {
    return fmt::format(
        "<header>\n<p class=\"about\">twinrun check on {}{}</p>\n<h1><span class=\"badge "
        "{}\">{}</span> {} of {} ops run on a "
        "TPU{}</h1>\n{}</header>\n",
        html::code(p_.title, 120), p_.about.empty() ? "" : ": " + html::text(p_.about, 300),
        wrong_ + errors_ == 0 ? "v-NOISE" : "v-ENGINE_BUG", badge(), compatible(), p_.ops.size(),
        wrong_ == 0 ? "" : fmt::format(", {} not", wrong_),
        p_.memory.empty() ? ""
                          : fmt::format("<p class=\"memory{}\">{}</p>\n", p_.fits ? "" : " over",
                                        html::text(p_.memory, 300)));
  }

  static std::string words(size_t wrong, size_t all) {
    if (wrong == 0)
      return all == 1 ? "1 op, compatible" : fmt::format("{} ops, all compatible", all);
    if (wrong == all)
      return all == 1 ? "1 op, not compatible" : fmt::format("{} ops, none compatible", all);
    return fmt::format("{} of {} not compatible", wrong, all);
  }

  size_t wrong_in(const DrawnGroup& g) const {
    return static_cast<size_t>(std::ranges::count_if(
        g.ops, [&](int i) { return !p_.ops[static_cast<size_t>(i)].compatible; }));
  }

  std::string group(const DrawnGroup& g, const Drawing::Box& b, const std::string& id) const {
    const size_t wrong = wrong_in(g);
    const std::string said = words(wrong, g.ops.size());
    const double share =
        static_cast<double>(wrong) / static_cast<double>(std::max<size_t>(1, g.ops.size()));
    const double left = b.x - b.width / 2, top = b.y - b.height / 2;
    std::string out = fmt::format(
        "<g class=\"node {}\" data-g=\"{}\" tabindex=\"0\" role=\"button\" aria-label=\"{}: {}\">"
        "<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\" rx=\"4\"/>",
        wrong == 0              ? "good"
        : wrong == g.ops.size() ? "bad"
                                : "mixed",
        id, html::text(g.name, 80), said, left, top, b.width, b.height);
    if (wrong > 0 && share < 1)
      out += fmt::format(
          "<rect class=\"share\" x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.1f}\" height=\"4\"/>", left,
          top + b.height - 4, b.width * share);
    return out + fmt::format(
                     "<text x=\"{0:.0f}\" y=\"{1:.0f}\" class=\"name\">{2}</text><text "
                     "x=\"{0:.0f}\" y=\"{3:.0f}\">{4}</text></g>\n",
                     b.x, b.y - 4, html::text(g.name, 20), b.y + 10, said);
  }

  std::string pictures() const {
    std::string out =
        "<p class=\"legend\"><span><i class=\"swatch good\"></i> green: compatible</span> <span><i "
        "class=\"swatch bad\"></i> red, "
        "dashed: not compatible</span> <span><i class=\"swatch mixed\"></i> red bar: the share "
        "that "
        "is not</span>";
    if (!p_.fusions.empty())
      out += fmt::format(
          " <span><i class=\"swatch fusion\"></i> inside of a layer: one of {} fusions</span>",
          p_.fusions.size());
    out += "</p>\n";
    for (size_t i = 0; i < p_.phases.size(); ++i) {
      const DrawnPhase& phase = p_.phases[i];
      out += fmt::format(
          "<section class=\"phase\" data-phase=\"{}\" aria-label=\"{}\">\n<h2>{}</h2>\n", i,
          html::text(phase.name, 60), html::text(phase.name, 60));
      if (!phase.drawing.drawn()) {
        out += "<p>Too large to draw; use the search to find its ops.</p>\n</section>\n";
        continue;
      }
      out += fmt::format(
          "<svg class=\"graph\" role=\"group\" aria-label=\"{0}, {1} layers\" viewBox=\"0 0 "
          "{2:.0f} {3:.0f}\" width=\"{2:.0f}\" "
          "height=\"{3:.0f}\">\n",
          html::text(phase.name, 60), phase.groups.size(), phase.drawing.width,
          phase.drawing.height);
      out += fmt::format(
          "<marker id=\"tip{0}\" viewBox=\"0 0 10 8\" refX=\"0\" refY=\"4\" markerWidth=\"10\" "
          "markerHeight=\"8\" "
          "markerUnits=\"userSpaceOnUse\" orient=\"auto\"><path class=\"tip\" d=\"M0 0L10 4L0 "
          "8z\"/></marker>\n",
          i);
      for (const auto& line : phase.drawing.lines)
        out += fmt::format("<path class=\"edge\" marker-end=\"url(#tip{})\" d=\"{}\"/>\n", i,
                           path_of(line));
      for (size_t g = 0; g < phase.groups.size(); ++g)
        out += group(phase.groups[g], phase.drawing.boxes[g], fmt::format("{}.{}", i, g));
      out += "</svg>\n</section>\n";
    }
    return out;
  }

  std::string side() const {
    std::string out = fmt::format("<section><h2>Ops that are not compatible ({})</h2>\n", wrong_);
    constexpr size_t kMax = 200;
    size_t shown = 0;
    std::string rows;
    for (size_t i = 0; i < p_.ops.size() && shown < kMax; ++i) {
      const DrawnOp& op = p_.ops[i];
      if (op.compatible) continue;
      ++shown;
      rows += fmt::format("<li data-op=\"{}\">{} {}: {}</li>\n", i, html::code(op.name, 120),
                          html::text(op.shape, 80), html::text(op.why, 200));
    }
    out += rows.empty() ? "<p>None.</p>\n" : "<ul class=\"wrong\">\n" + rows + "</ul>\n";
    if (wrong_ > shown) out += fmt::format("<p>and {} more</p>\n", wrong_ - shown);
    out += fmt::format("</section>\n<section><h2>Findings ({})</h2>\n", p_.remarks.size());
    if (p_.remarks.empty()) out += "<p>None.</p>\n";
    for (const GraphPage::Remark& r : p_.remarks)
      out += fmt::format(
          "<div class=\"finding\"><p><b class=\"{0}\">{0}</b> {1}<br>{2}</p><p>{3}</p><p>Fix: "
          "{4}</p></div>\n",
          html::text(r.severity), html::code(r.id), html::text(r.where, 200),
          html::text(r.found, 600), html::text(r.fix, 600));
    return out + "</section>\n";
  }

  // JSON for the script. "<" is escaped, so that no name can close the script element.
  std::string data() const {
    using Json = nlohmann::ordered_json;
    Json j;
    const auto drawing = [](const Drawing& d) {
      Json boxes = Json::array(), lines = Json::array(), frames = Json::array();
      for (const Drawing::Frame& f : d.frames)
        frames.push_back({f.fusion, std::lround(f.box.x), std::lround(f.box.y),
                          std::lround(f.box.width), std::lround(f.box.height)});
      for (const Drawing::Box& b : d.boxes)
        boxes.push_back(
            {std::lround(b.x), std::lround(b.y), std::lround(b.width), std::lround(b.height)});
      for (const auto& line : d.lines) lines.push_back(path_of(line));
      return Json{{"w", std::lround(d.width)},
                  {"h", std::lround(d.height)},
                  {"boxes", boxes},
                  {"lines", lines},
                  {"frames", frames}};
    };
    j["ops"] = Json::array();
    for (const DrawnOp& op : p_.ops)
      j["ops"].push_back({text::clean(op.name), text::clean(op.kind), text::clean(op.shape),
                          text::clean(op.layout), op.compatible ? 1 : 0, text::clean(op.why),
                          op.operands, op.fusion});
    j["fusions"] = Json::array();
    for (const auto& [name, what] : p_.fusions)
      j["fusions"].push_back({text::clean(name), text::clean(what)});
    j["phases"] = Json::array();
    for (const DrawnPhase& phase : p_.phases) {
      Json groups = Json::array();
      for (const DrawnGroup& g : phase.groups)
        groups.push_back(
            {{"name", text::clean(g.name)}, {"ops", g.ops}, {"inside", drawing(g.inside)}});
      j["phases"].push_back({{"name", text::clean(phase.name)}, {"groups", groups}});
    }
    std::string out = j.dump(-1, ' ', false, Json::error_handler_t::replace);
    for (size_t at = out.find('<'); at != std::string::npos; at = out.find('<', at + 6))
      out.replace(at, 1, "\\u003c");
    return out;
  }

  const GraphPage& p_;
  size_t wrong_ = 0, errors_ = 0;
};

}  // namespace
}  // namespace graph_page

std::string to_html(const GraphPage& page) { return graph_page::Page(page).render(); }

}  // namespace twinrun
