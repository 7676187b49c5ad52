// Writes report.html of a judged trace: verdict and place first, then the findings, how close the
// calls come to their bounds, the operations, and what was not judged.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "reports/html_docs.h"
#include "reports/html_page.h"
#include "reports/html_text.h"
#include "reports/svg.h"
#include "reports/text.h"
#include "reports/trace_verdict.h"

namespace twinrun {
namespace {

constexpr size_t kOpen = 3;       // findings that are shown without a click
constexpr size_t kDrawn = 40;     // rows of the picture
constexpr size_t kMaxRows = 400;  // of a table

class TracePage {
 public:
  explicit TracePage(const TraceVerdict& verdict) : v_(verdict) {
    for (const auto& [name, op] : v_.ops) ops_.emplace_back(&name, &op);
    std::ranges::stable_sort(
        ops_, [](const auto& a, const auto& b) { return a.second->worst > b.second->worst; });
  }

  std::string render() {
    sections_.add("findings", "Findings", findings());
    sections_.add("open", "Not examined, though the new weights depend on it", open_questions());
    sections_.add("precision", "Losses of precision", precision_losses());
    sections_.add("digits", "Results without a correct digit", ill_conditioned());
    sections_.add("close", "How close to the bounds", picture());
    sections_.add("ops", "Operations", operations());
    sections_.add("not-judged", "Seen, not judged", not_judged());
    sections_.add("settings", "Settings", settings());
    sections_.add("notes", "Notes", notes());
    const std::string head = header();
    sections_.add("docs", "Documentation named here", html::docs_of(head + sections_.body()));
    return html::page(
        {.title = fmt::format("{}: {}", v_.word(), html::text(subject(), 100)),
         .styles = {"page.css"},
         .body = head + sections_.contents() + "<main>\n" + sections_.body() + "</main>\n"});
  }

 private:
  static std::string term(std::string_view name, const std::string& html) {
    return html.empty() ? "" : fmt::format("<dt>{}</dt><dd>{}</dd>\n", name, html);
  }
  std::string subject() const { return v_.script.empty() ? v_.trace : v_.script; }

  std::string header() const {
    std::string out = fmt::format(
        "<header>\n<p class=\"about\">twinrun judge, {}, {}</p>\n"
        "<h1><span class=\"badge v-{}\">{}</span> {}</h1>\n<dl class=\"answer\">\n",
        html::text(v_.framework), html::code(subject()), v_.word(), v_.word(),
        html::text(v_.headline()));
    if (!v_.findings.empty() && !v_.findings.front().place.empty())
      out += term("Where", html::code(innermost(v_.findings.front().place), 400));
    out +=
        term("Judged",
             html::text(fmt::format("{} of {} in {}; {}{}", text::count(v_.judged),
                                    text::plural(v_.calls, "call"), text::plural(v_.steps, "step"),
                                    text::plural(v_.elements, "element") + " compared",
                                    v_.untestable > 0 ? text::unbounded(v_.untestable) : "")));
    out += term("Depends on",
                html::text(v_.without_update
                               ? "no update of a weight is in the trace, so every call counts"
                               : fmt::format("{} of the calls, from the batch to the new weights",
                                             text::count(v_.on_path))));
    out += term("The question", html::text(std::string(kNotAsked)));
    out += term("Recording", html::text(observer()));
    out += term("How bounds are made", html::prose("docs/method/calls.md"));
    return out + "</dl>\n</header>\n";
  }
  static std::string innermost(const std::string& place) {
    return place.substr(0, place.find('\n'));
  }
  std::string observer() const {
    return v_.observer.empty() ? "whether it changes the result was not examined (watch --observer)"
                               : v_.observer;
  }

  std::string findings() const {
    std::string out;
    for (size_t i = 0; i < v_.findings.size(); ++i) {
      const CallFinding& f = v_.findings[i];
      const std::string title =
          fmt::format("{}. {}, step {}, call {} ({})", i + 1, f.op, f.step, f.call, f.phase);
      out += "<article>\n" +
             (i < kOpen ? fmt::format("<h3>{}</h3>\n{}", html::text(title), facts(f))
                        : html::folded(title, facts(f))) +
             "</article>\n";
    }
    const size_t all = static_cast<size_t>(v_.outside_calls), shown = v_.findings.size();
    return all > shown
               ? out + fmt::format("<p class=\"more\">{} more are not listed</p>\n", all - shown)
               : out;
  }

  static std::string facts(const CallFinding& f) {
    std::string out = "<dl>\n";
    if (!f.problem.empty()) out += term("problem", html::text(f.problem));
    if (!f.place.empty())
      out +=
          term(f.phase == "backward" ? "of the forward call at" : "at", html::block(f.place, 4000));
    out += term("module", html::code(f.module));
    out += term("node of autograd", html::code(f.node));
    if (f.problem.empty()) out += element(f);
    if (f.composed)
      out += term("composed",
                  "the function as a whole differs from its documented definition, "
                  "although the calls that it is made of may each be right");
    out += "</dl>\n";
    html::Table operands("Operands", {{"argument"}, {"type"}, {"values"}});
    for (const CallOperand& o : f.operands)
      operands.add({html::text(o.name, 100), html::code(o.type), html::text(o.values, 300)});
    return out + operands.str();
  }

  static std::string element(const CallFinding& f) {
    std::string out = term(
        "result", html::text(fmt::format("{}{}: {} of {} elements are outside their bound{}",
                                         f.result.empty() ? "" : f.result + ", ", f.type, f.outside,
                                         f.elements, f.pattern.empty() ? "" : ": " + f.pattern)));
    out += term("worst element", html::code(f.worst_index));
    out += term("found", html::text(fmt::format("{:.9g}", f.got)));
    out += term("expected", html::text(fmt::format("{:.17g} in binary64", f.expected)));
    out += term("error", html::text(fmt::format("{:.3g}, {} the bound of {:.3g}",
                                                std::fabs(f.got - f.expected),
                                                text::times(f.ratio()), f.bound)));
    out += term("wrong elements", html::text(f.signature));
    return out + (f.made_by.size() > 1
                      ? term("made by", html::code(fmt::format("{}", fmt::join(f.made_by, ", "))))
                      : "");
  }

  std::string precision_losses() const {
    html::Table t(
        "Outside of the bounds of kernels that add in float32, within those of kernels that keep "
        "their sums in half precision",
        {{"operation"}, {"place"}, {"module"}, {"result"}, {"calls", true}, {"right digits", true}},
        kMaxRows);
    for (const IllConditioned& f : v_.precision_losses)
      t.add({html::code(f.op), html::code(innermost(f.place), 400), html::code(f.module),
             html::text(f.result.empty() ? f.type : f.result + ", " + f.type), text::count(f.times),
             fmt::format("{:.1f}", f.digits)});
    return t.str();
  }

  std::string ill_conditioned() const {
    html::Table t("Within their bounds, but nothing is left of them except rounding error",
                  {{"operation"},
                   {"place"},
                   {"module"},
                   {"result"},
                   {"calls", true},
                   {"largest error", true},
                   {"largest expected value", true},
                   {"largest bound", true}},
                  kMaxRows);
    for (const IllConditioned& f : v_.ill_conditioned)
      t.add({html::code(f.op), html::code(innermost(f.place), 400), html::code(f.module),
             html::text(f.result.empty() ? f.type : f.result + ", " + f.type), text::count(f.times),
             text::number(f.error), text::number(f.expected), text::number(f.bound)});
    return t.str();
  }

  std::string picture() const {
    html::DotPlot plot{.title = "Error over bound of each call, by operation",
                       .x_label = "largest error / bound of a call"};
    int64_t exact = 0, more = 0;
    for (const auto& [name, op] : ops_) {
      if (op->ratios.empty()) continue;
      if (op->worst == 0) {
        ++exact;
      } else if (plot.rows.size() == kDrawn) {
        ++more;
      } else {
        plot.rows.push_back(
            {name->starts_with("aten.") ? name->substr(5) : *name, op->ratios,
             fmt::format("{}, median {}, largest {}",
                         text::plural(static_cast<int64_t>(op->ratios.size()), "call"),
                         text::number(op->median()), text::number(op->worst))});
      }
    }
    plot.description =
        "A dot is a judged call: the largest of |result - expected| / bound over its elements. "
        "What is right of the bound is wrong.";
    if (exact > 0)
      plot.description +=
          fmt::format(" Not drawn: {}, exact in every call.", text::plural(exact, "operation"));
    if (more > 0)
      plot.description += fmt::format(" {} are in the table only.", text::plural(more, "other"));
    if (plot.rows.empty()) return html::paragraph(exact > 0 ? plot.description : "");
    return fmt::format(
        "<figure>\n<figcaption>{}</figcaption>\n<div class=\"scroll\" tabindex=\"0\" "
        "role=\"region\" aria-label=\"{}\">\n{}</div>\n</figure>\n",
        html::text(plot.description), html::text(plot.title), to_svg(plot));
  }

  std::string operations() const {
    html::Table t("Operations, the largest error / bound first",
                  {{"operation"},
                   {"calls", true},
                   {"judged", true},
                   {"outside", true},
                   {"elements", true},
                   {"median of calls", true},
                   {"largest", true}},
                  kMaxRows);
    for (const auto& [name, op] : ops_) {
      const bool any = !op->ratios.empty();
      t.add(
          {html::code(*name), text::count(op->calls), text::count(op->judged),
           op->outside > 0 ? fmt::format("<b class=\"bad\">{}</b>", text::count(op->outside)) : "0",
           text::count(op->elements), any ? text::number(op->median()) : "–",
           any ? text::number(op->worst) : "–"});
    }
    return t.str();
  }

  std::string open_questions() const {
    html::Table t("Each makes the verdict INCONCLUSIVE",
                  {{"what"}, {"times", true}, {"where"}, {"how to examine it"}}, kMaxRows);
    for (const OpenQuestion& q : v_.open)
      t.add({html::text(q.what, 400), text::count(q.times), html::code(q.place, 400),
             html::text(q.how, 400)});
    return t.str();
  }

  std::string not_judged() const {
    html::Table t("Calls without a judgement",
                  {{"operation"}, {"calls", true}, {"that an update depends on", true}, {"why"}},
                  kMaxRows);
    for (const auto& [key, u] : v_.unjudged)
      t.add({html::code(key.first), text::count(u.calls), text::count(u.on_path),
             html::text(key.second, 300)});
    return t.str();
  }

  std::string settings() const {
    std::string out = term("framework", html::text(v_.framework));
    for (size_t i = 0; i < std::min<size_t>(v_.settings.size(), 100); ++i)
      out += term(html::text(v_.settings[i].first, 100), html::text(v_.settings[i].second, 300));
    return fmt::format("<dl>\n{}{}</dl>\n", out, term("trace", html::code(v_.trace, 300)));
  }

  std::string notes() const { return html::bullets(v_.notes); }

  const TraceVerdict& v_;
  std::vector<std::pair<const std::string*, const TraceOp*>> ops_;
  html::Sections sections_;
};

}  // namespace

std::string trace_html(const TraceVerdict& verdict) { return TracePage(verdict).render(); }

}  // namespace twinrun
