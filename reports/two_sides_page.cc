// Writes report.html of two traces that were compared: the verdict and its side first, then where
// they begin to differ, what they do not have alike, and how the difference grows.
#include <fmt/format.h>

#include <cmath>

#include "reports/html_docs.h"
#include "reports/html_page.h"
#include "reports/html_text.h"
#include "reports/text.h"
#include "reports/two_sides.h"

namespace twinrun {
namespace {

std::string term(std::string_view name, const std::string& html) {
  return html.empty() ? "" : fmt::format("<dt>{}</dt><dd>{}</dd>\n", name, html);
}

std::string bound_cell(const SideCall& s) {
  if (!s.judged) return "not judged";
  return s.outside > 0 ? fmt::format("<b class=\"bad\">{} outside</b>", text::count(s.outside))
                       : "within, " + text::number(s.worst);
}

std::string ratio_cell(double ratio) {
  return std::isnan(ratio) ? "–" : std::isinf(ratio) ? "∞" : text::number(ratio);
}

std::string differences(const std::string& caption, const std::vector<SideDifference>& all) {
  html::Table t(caption, {{"operation of A"},
                          {"of B"},
                          {"module"},
                          {"place"},
                          {"step", true},
                          {"call of A", true},
                          {"of B", true},
                          {"error / bound of A"},
                          {"of B"},
                          {"elements that differ", true},
                          {"of the largest value", true},
                          {"of both bounds", true}});
  for (const SideDifference& d : all) {
    t.add({html::code(d.a.op), d.a.op == d.b.op ? "" : html::code(d.b.op),
           html::code(d.a.module.empty() ? d.b.module : d.a.module),
           html::code(d.a.place.substr(0, d.a.place.find('\n')), 300), text::count(d.a.step),
           text::count(d.a.call), text::count(d.b.call), bound_cell(d.a), bound_cell(d.b),
           fmt::format("{} of {}", text::count(d.differing), text::count(d.elements)),
           text::number(d.relative), ratio_cell(d.ratio)});
  }
  return t.str();
}

std::vector<SideDifference> listed(const std::optional<SideDifference>& d) {
  return d ? std::vector{*d} : std::vector<SideDifference>();
}

std::string inputs(const TwoSides& s) {
  std::vector<std::string> out;
  for (const OtherInput& o : s.inputs) out.push_back(o.sentence());
  return html::bullets(out);
}

std::string steps(const TwoSides& s) {
  html::Table t("Each step", {{"step", true},
                              {"aligned results", true},
                              {"that differ", true},
                              {"after the optimizer, of the largest value", true},
                              {"the updates, of their norm", true}});
  for (const StepGrowth& g : s.steps)
    t.add({text::count(g.step), text::count(g.aligned), text::count(g.differing),
           text::number(g.relative), text::number(g.update)});
  return t.str();
}

std::string unaligned(const TwoSides& s) {
  html::Table t("Calls without a partner", {{"side"}, {"operation"}, {"calls", true}}, 400);
  for (const auto& [op, n] : s.unaligned_a) t.add({"A", html::code(op), text::count(n)});
  for (const auto& [op, n] : s.unaligned_b) t.add({"B", html::code(op), text::count(n)});
  return t.str();
}

std::string sides(const TwoSides& s) {
  html::Table t("Each side by itself", {{"side"},
                                        {"framework"},
                                        {"command or trace"},
                                        {"verdict"},
                                        {"judged calls", true},
                                        {"outside", true},
                                        {"page"}});
  for (const auto& [side, v, name, page] : {std::tuple{"A", &s.a, &s.a_name, "a/report.html"},
                                            std::tuple{"B", &s.b, &s.b_name, "b/report.html"}}) {
    t.add({side, html::text(v->framework), html::code(*name, 300), html::text(v->word()),
           fmt::format("{} of {}", text::count(v->judged), text::count(v->calls)),
           text::count(v->outside_calls), fmt::format("<a href=\"{}\">{}</a>", page, page)});
  }
  return t.str();
}

}  // namespace

std::string two_sides_html(const TwoSides& s) {
  const std::string word(to_string(s.verdict));
  std::string head = fmt::format(
      "<header>\n<p class=\"about\">twinrun diagnose, {} and {}</p>\n"
      "<h1><span class=\"badge v-{}\">{}</span> {}</h1>\n<dl class=\"answer\">\n",
      html::text(s.a.framework), html::text(s.b.framework), word, word, html::text(s.headline));
  for (const auto& [side, v] : {std::pair{"Side A", &s.a}, std::pair{"Side B", &s.b}}) {
    if (v->findings.empty()) continue;
    const CallFinding& f = v->findings.front();
    head += term(side,
                 html::text(fmt::format("{}, {}: {}", f.op, f.place.substr(0, f.place.find('\n')),
                                        f.problem.empty() ? fmt::format("{} of {} elements outside",
                                                                        f.outside, f.elements)
                                                          : f.problem)));
  }
  head +=
      term("Aligned",
           html::text(fmt::format("{} results by their bits, {} by their values, {} by module and "
                                  "order; {} differ",
                                  text::count(s.by_bits), text::count(s.by_values),
                                  text::count(s.by_order), text::count(s.differing))));
  head += term("How bounds are made", html::prose("docs/method/calls.md"));
  head += "</dl>\n</header>\n";
  html::Sections sections;
  sections.add("sides", "Both sides", sides(s));
  sections.add("inputs", "Not the same on both sides", inputs(s));
  sections.add("first", "First difference", differences("The earliest", listed(s.first)));
  auto wrong = listed(s.of_a);
  for (const SideDifference& d : listed(s.of_b)) wrong.push_back(d);
  sections.add("outside", "Outside its bounds", differences("First result of each side", wrong));
  sections.add(
      "growth", "How the difference grows",
      steps(s) + differences("Each larger than all before it, in units of the bounds", s.growth));
  sections.add(
      "unexplained", "Not explained",
      differences("They differ, and at least one side could not be judged", s.unexplained));
  sections.add("unaligned", "Only on one side", unaligned(s));
  sections.add("notes", "Notes", html::bullets(s.notes));
  sections.add("docs", "Documentation named here", html::docs_of(head + sections.body()));
  return html::page(
      {.title = fmt::format("{}: {}", word, html::text(s.a.script, 100)),
       .styles = {"page.css"},
       .body = head + sections.contents() + "<main>\n" + sections.body() + "</main>\n"});
}

}  // namespace twinrun
