// Assembles report.html: verdict, place, reason, confidence and next steps on the first screen, the
// evidence below. One file that loads nothing, since its policy forbids it; every string in it has
// gone through reports/html_text.h.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "reports/drift.h"
#include "reports/html_docs.h"
#include "reports/html_page.h"
#include "reports/html_parts.h"
#include "reports/html_text.h"
#include "reports/report.h"
#include "reports/svg.h"
#include "reports/tables.h"
#include "reports/text.h"

namespace twinrun {
namespace {

// A sign in addition to word and colour, for readers who do not see colours.
std::string_view sign_of(VerdictClass verdict) {
  switch (verdict) {
    case VerdictClass::kIdentical:
      return "=";
    case VerdictClass::kNoise:
      return "≈";
    case VerdictClass::kSharding:
      return "÷";
    case VerdictClass::kProgram:
      return "≠";
    case VerdictClass::kEngineBug:
      return "✗";
    case VerdictClass::kNondeterministic:
      return "~";
    case VerdictClass::kInconclusive:
      return "?";
  }
  return "?";
}

class Document {
 public:
  explicit Document(const Report& report) : r_(report) {
    lead_ = text::first_divergence(r_);
    if (lead_ == nullptr && !r_.findings.empty()) lead_ = &r_.findings.front();
  }

  std::string render() {
    add("asked", tables::answers(r_));
    sections_.add("remarks", "Look at this", html::bullets(r_.remarks));
    add("open", tables::open_questions(r_));
    sections_.add("corners", "The experiment", html::corners(r_));
    sections_.add("findings", "Findings", html::findings(r_));
    if (r_.figure) sections_.add("close", "How close to the bounds", figure());
    std::vector<tables::Section> details = tables::details(r_);
    for (size_t i = 0; i < details.size(); ++i) {
      details[i].title = html::text(details[i].title, 80);
      for (tables::Column& c : details[i].tables.front().columns)
        c.layout.title = html::text(c.layout.title, 80);
      add(r_.details[i].id, details[i]);
    }
    sections_.add("loss", "Loss", html::loss_figure(r_) + html::drift_figure(r_));
    add("drift", tables::drift(r_));
    add("matter", tables::trajectories(r_));
    sections_.add("cure", "The cure, applied", html::cures(r_));
    add("ensembles", tables::ensembles(r_));
    add("bounds", tables::probes(r_, 6));
    sections_.add("weights", "Weights", html::weight_figure(r_));
    sections_.add("digests", "Bits", html::digests(r_));
    add("ablations", tables::ablations(r_));
    add("many-cores", tables::many_cores(r_));
    sections_.add("interaction", "Interaction", html::paragraph(text::interaction_of(r_)));
    sections_.add("ruled-out", "Ruled out", html::bullets(r_.ruled_out));
    add("controls", tables::controls(r_));
    add("checklist", tables::checklist(r_));
    sections_.add("notes", "Notes", html::bullets(r_.notes));
    sections_.add("program", "Ops around the finding",
                  r_.program_excerpt.empty() ? "" : html::block(r_.program_excerpt));
    sections_.add("commands", "Commands", html::commands(r_));
    add("environment", tables::environment(r_));
    if (r_.kind == "scenario") sections_.add("words", "Words", words());
    const std::string head = header();
    sections_.add("docs", "Documentation named here", html::docs_of(head + sections_.body()));
    const std::string library =
        fmt::format("/*\n{}*/\n{}\n", html::page_file("dygraphs-license.txt"),
                    html::page_file("dygraph.min.js"));
    return html::page(
        {.title = fmt::format("{}: {}", to_string(r_.verdict), html::text(r_.scenario_name, 100)),
         .styles = {"dygraph.min.css", "page.css"},
         .body =
             head + sections_.contents() + "<main>\n" + sections_.body() + "</main>\n" + footer(),
         .scripts = {library, std::string(html::page_file("page.js"))}});
  }

 private:
  void add(std::string_view id, const tables::Section& section) {
    sections_.add(id, section.title, html::tables_of(section));
  }

  std::string figure() const {
    html::DotPlot plot{.title = r_.figure->title, .x_label = r_.figure->x_label};
    for (const DotFigure::Row& row : r_.figure->rows) {
      std::vector<double> values;
      for (const double v : row.values) {
        if (v >= 0) values.push_back(v);
      }
      if (values.empty()) continue;
      plot.rows.push_back(
          {row.name, values,
           fmt::format("{}, largest {}", text::plural(static_cast<int64_t>(values.size()), "call"),
                       text::number(*std::ranges::max_element(values)))});
    }
    plot.description = r_.figure->description;
    if (plot.rows.empty()) return html::paragraph(plot.description);
    return fmt::format(
        "<figure>\n<figcaption>{}</figcaption>\n<div class=\"scroll\" tabindex=\"0\" "
        "role=\"region\" aria-label=\"{}\">\n{}</div>\n</figure>\n",
        html::text(plot.description), html::text(plot.title), to_svg(plot));
  }

  std::string header() const {
    std::string scenario = html::code(r_.scenario_name, 120);
    if (!r_.scenario_description.empty())
      scenario += " – " + html::text(r_.scenario_description, 300);
    const bool by_scenario = r_.kind == "scenario";
    std::string out = fmt::format(
        "<header>\n<p class=\"about\">twinrun on {}<br>{}{}</p>\n"
        "<h1><span class=\"badge v-{}\"><span aria-hidden=\"true\">{}</span> {}</span> {}</h1>\n",
        scenario, by_scenario ? "subject" : html::text(r_.kind),
        r_.subject.empty() ? "" : ": " + html::code(text::engine_name(r_.subject), 400),
        to_string(r_.verdict), sign_of(r_.verdict), to_string(r_.verdict),
        by_scenario ? std::string(text::meaning(r_.verdict)) : html::prose(r_.headline));
    if (by_scenario && !r_.headline.empty())
      out += fmt::format("<p class=\"headline\">{}</p>\n", html::prose(r_.headline));
    const auto remark = [&](const std::string& words) {
      if (!words.empty()) out += fmt::format("<p class=\"remark\">{}</p>\n", html::prose(words));
    };
    remark(r_.injected);
    for (size_t i = 0; i < std::min<size_t>(r_.controls.size(), 8); ++i)
      remark(text::failure_of(r_.controls[i]));
    const std::string matter = html::prose(text::effect_of(r_)), place = where();
    const std::string rest =
        answer("Why", why()) + answer("How sure", sure()) + answer("What next", next());
    const std::string runs = html::runs_named(out + matter + place + rest);
    const std::string answers = (by_scenario ? answer("Does it matter", matter) : "") +
                                answer("The cure", cures()) + answer("Where", place + runs) + rest;
    if (!answers.empty()) out += "<dl class=\"answer\">\n" + answers + "</dl>\n";
    return out + "</header>\n";
  }

  static std::string answer(std::string_view question, const std::string& html) {
    return html.empty() ? "" : fmt::format("<dt>{}</dt><dd>{}</dd>\n", question, html);
  }

  std::string where() const {
    std::string out;
    if (lead_ != nullptr) {
      const std::string place = text::place_of(*lead_);
      if (!place.empty()) out = fmt::format("<b>{}</b>", html::text(place));
      if (!lead_->op.empty()) {
        out += fmt::format("{}op {}", out.empty() ? "" : ": ", html::code(lead_->op));
        if (!lead_->op_kind.empty() && lead_->op_kind != lead_->op)
          out += fmt::format(" ({})", html::text(lead_->op_kind, 120));
      }
      if (!lead_->elements.empty()) out += ", " + html::text(lead_->elements);
      if (!lead_->place.empty())
        out += (out.empty() ? "" : "<br>") +
               html::code(lead_->place.substr(0, lead_->place.find('\n')), 400);
    }
    if (lead_ != nullptr && !lead_->op.empty()) return out;
    if (r_.kind != "scenario") return out;
    if (const std::string apart = text::first_apart(r_); !apart.empty())
      return out + (out.empty() ? "" : ": ") + html::text(apart, 300);
    // No single op is known: list where the loss curves diverge.
    std::string parts;
    for (const text::DriftRow& row : text::drift_of(r_)) {
      if (!row.first_step) continue;
      parts += fmt::format("<li>{} ({}): from step {} on, losses differ by up to {}</li>\n",
                           row.isolates, html::prose(row.pair), *row.first_step,
                           text::number(row.largest));
    }
    if (parts.empty()) return out.empty() ? "nowhere: the loss curves are bit-identical" : out;
    return fmt::format("{}No single op explains the divergence.\n<ul>\n{}</ul>\n",
                       out.empty() ? "" : out + ". ", parts);
  }

  std::string cures() const {
    std::string out;
    for (const CureRow& cure : r_.cures)
      out += fmt::format("{}{}", out.empty() ? "" : "<br>", html::prose(text::cured(cure)));
    return out;
  }

  std::string why() const {
    if (lead_ == nullptr) return "";
    std::string out;
    const std::string number = text::number_of(*lead_);
    const auto line = [&](const std::string& html) { out += (out.empty() ? "" : "<br>") + html; };
    // Skip the sentence where the headline already says it, or where number and fingerprint say it
    // in short; the place is stated above.
    const bool in_short = !lead_->op.empty() && !lead_->fingerprint.empty() && !number.empty();
    if (!in_short && !lead_->sentence.empty() && lead_->sentence != r_.headline)
      out = html::prose(lead_->sentence);
    if (!number.empty() && (in_short || lead_->sentence.find(number) == std::string::npos))
      line(html::prose(number));
    if (in_short) line("looks like: " + html::text(lead_->fingerprint));
    if (!lead_->bound_source.empty()) line("bound: " + html::prose(lead_->bound_source));
    return out;
  }

  std::string sure() const {
    std::string out = html::prose(r_.confidence);
    if (lead_ == nullptr) return out;
    if (const std::string_view rests_on = text::meaning(lead_->level); !rests_on.empty())
      out += fmt::format("{}{}", out.empty() ? "" : "<br>", rests_on);
    return out;
  }

  std::string next() const {
    std::string out = html::bullets(r_.next_steps, 4);
    // Say that all is in order only where the effect was tested.
    const bool tested = r_.effect < Effect::kHarmful;
    if (out.empty() && tested && exit_code(r_.verdict, r_.effect) == 0)
      out = "<p>Nothing to fix and nothing to report.</p>\n";
    const std::string& command =
        lead_ != nullptr && !lead_->reproduce.empty() ? lead_->reproduce : r_.command;
    if (!command.empty())
      out += fmt::format("<p>{}</p>\n{}", "To reproduce:", html::block(command, 4000));
    return out;
  }

  static std::string words() {
    std::string out = "<ul>\n";
    for (const std::string& line : text::glossary())
      out += fmt::format("<li>{}</li>\n", html::prose(line));
    return out + "</ul>\n";
  }

  std::string footer() const {
    std::string out = "<footer>\n";
    if (!r_.directory.empty()) out += fmt::format("<p>Results: {}", html::code(r_.directory, 300));
    out += fmt::format(
        "{}<code>report.json</code> holds every number, for programs; <code>report.md</code> is "
        "for pasting into a bug report. Exit code {}.</p>\n",
        r_.directory.empty() ? "<p>" : ". ", exit_code(r_.verdict, r_.effect));
    if (!r_.smallest_effect.empty())
      out += html::paragraph("Smallest effect that this diagnosis could have detected: " +
                             r_.smallest_effect);
    return out + "</footer>\n";
  }

  const Report& r_;
  const Finding* lead_ = nullptr;
  html::Sections sections_;
};

}  // namespace

std::string to_html(const Report& report) { return Document(report).render(); }

}  // namespace twinrun
