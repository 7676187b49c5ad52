// Tests the text of report.html: it is well formed, contains no foreign markup, and gives the
// answer first. tests/browser tests how it looks and works.
#include <gtest/gtest.h>

#include <cmath>
#include <ctime>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "reports/axis.h"
#include "reports/html_docs.h"
#include "reports/html_page.h"
#include "reports/html_text.h"
#include "reports/run_names.h"
#include "reports/svg.h"
#include "reports/text.h"
#include "tests/reports/examples.h"

namespace twinrun {
namespace {

std::vector<Report> reports() {
  return {Report{},
          examples::noise(),
          examples::sharding(),
          examples::engine_bug(),
          examples::inconclusive(),
          examples::hostile()};
}

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

int count(std::string_view text, std::string_view part) {
  int n = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// The part of the page between our style sheet and our script, which is what depends on the report.
std::string body_of(const std::string& page) {
  const size_t from = page.find("</style>"), to = page.find("<script>\n/*");
  EXPECT_NE(from, std::string::npos);
  EXPECT_NE(to, std::string::npos);
  return page.substr(from + 8, to - from - 8);
}

struct Tag {
  std::string name;
  std::vector<std::pair<std::string, std::string>> attributes;
};

// A strict parser of the HTML that to_html may write: every attribute must be in double quotes, and
// every element must be closed in order. Anything else fails the test.
std::vector<Tag> tags_of(std::string_view html) {
  std::vector<Tag> tags;
  std::vector<std::string> open = {"html", "head"};
  const std::set<std::string> empty = {"br", "meta"};
  while (!html.empty()) {
    const size_t at = html.find('<');
    EXPECT_EQ(html.substr(0, at).find('>'), std::string_view::npos) << html.substr(0, 80);
    if (at == std::string_view::npos) break;
    html.remove_prefix(at + 1);
    const bool closing = html.starts_with('/');
    if (closing) html.remove_prefix(1);
    const size_t name = html.find_first_of(" />");
    Tag tag{std::string(html.substr(0, name)), {}};
    html.remove_prefix(name);
    for (;;) {
      while (html.starts_with(' ')) html.remove_prefix(1);
      if (html.starts_with('>') || html.starts_with("/>")) break;
      const size_t equals = html.find("=\"");
      if (equals == std::string_view::npos || equals > 40) {
        ADD_FAILURE() << "no attribute: " << html.substr(0, 60);
        return tags;
      }
      const size_t end = html.find('"', equals + 2);
      tag.attributes.emplace_back(html.substr(0, equals),
                                  html.substr(equals + 2, end - equals - 2));
      html.remove_prefix(end + 1);
    }
    const bool closed = html.starts_with("/>");
    html.remove_prefix(closed ? 2 : 1);
    if (closing) {
      EXPECT_EQ(open.back(), tag.name);
      if (open.empty() || open.back() != tag.name) return tags;
      open.pop_back();
      continue;
    }
    if (!closed && !empty.contains(tag.name)) open.push_back(tag.name);
    tags.push_back(std::move(tag));
  }
  EXPECT_EQ(open, (std::vector<std::string>{"html", "body"}));
  return tags;
}

TEST(Html, IsWellFormedWithLinksThatLeadSomewhere) {
  for (const Report& report : reports()) {
    const std::string page = to_html(report);
    EXPECT_TRUE(page.starts_with("<!DOCTYPE html>\n<html lang=\"en\">"));
    std::set<std::string> ids;
    std::vector<std::string> targets;
    for (const Tag& tag : tags_of(body_of(page))) {
      for (const auto& [name, value] : tag.attributes) {
        if (name == "id") {
          EXPECT_TRUE(ids.insert(value).second) << value;
        }
        if (name == "href") targets.push_back(value);
        EXPECT_FALSE(name.starts_with("on")) << name;
        EXPECT_NE(name, "src");
      }
    }
    for (const std::string& target : targets) {
      ASSERT_TRUE(target.starts_with("#")) << target;
      EXPECT_TRUE(ids.contains(target.substr(1))) << target;
    }
  }
}

TEST(Html, LoadsNothingFromElsewhere) {
  for (const Report& report : reports()) {
    const std::string page = to_html(report);
    EXPECT_TRUE(has(page, "default-src 'none'"));
    for (const char* part : {"src=", "@import", "url(", "<link", "<iframe", "sourceMappingURL"})
      EXPECT_FALSE(has(body_of(page), part)) << part;
    EXPECT_FALSE(has(page, "sourceMappingURL"));
    // The only URL is that of the chart library's licence, in a comment.
    EXPECT_EQ(count(page, "http://") + count(page, "https://"), 1);
    EXPECT_TRUE(has(page, "Copyright (c)") && has(page, "MIT licence"));
  }
}

TEST(Html, NothingFromOutsideIsMarkup) {
  const std::string body = body_of(to_html(examples::hostile()));
  EXPECT_FALSE(has(body, "</details> @me"));
  EXPECT_TRUE(has(body, "&lt;/details&gt; @me"));
  for (const char c : body) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20);
  for (const char* hidden : {"\xe2\x80\xae", "\xc2\x9b", "\xff"}) EXPECT_FALSE(has(body, hidden));
  Report r = examples::engine_bug();
  const std::string end = "</script><script>alert(1)</script>\"'&<!--";
  r.findings[0].op = r.runs[0].name = r.runs[0].meaning = r.headline = r.loss_band.source = end;
  r.scenario_name = r.weight_drift.rows[0].variable = r.weight_drift.pair = end;
  const std::string page = to_html(r);
  EXPECT_FALSE(has(page, "<script>alert"));
  EXPECT_FALSE(has(body_of(page), "<!--"));
  EXPECT_EQ(count(page, "</script>"), count(page, "<script"));
  tags_of(body_of(page));
}

TEST(Html, SameReportSameBytes) {
  for (const Report& report : reports()) EXPECT_EQ(to_html(report), to_html(report));
}

TEST(Html, TheAnswerComesFirst) {
  for (const Report& report : reports()) {
    const std::string page = to_html(report);
    const std::string head = page.substr(0, page.find("<nav"));
    EXPECT_TRUE(has(head, to_string(report.verdict)));
    if (report.findings.empty() || report.runs.front().name.size() > 9) continue;
    EXPECT_TRUE(has(head, html::text(report.headline)));
    for (const char* question : {"Where", "Why", "How sure", "What next"})
      EXPECT_TRUE(has(head, std::string("<dt>") + question + "</dt>")) << question;
    EXPECT_TRUE(has(head, html::text(report.next_steps.front())));
  }
  const std::string bug = to_html(examples::engine_bug());
  const std::string head = bug.substr(0, bug.find("<nav"));
  for (const char* part : {"step 3, gradient, core 5", "conv1/kernel.grad", "12 of 4608",
                           "4130 times", "twinrun bisect op", "Injected on purpose"})
    EXPECT_TRUE(has(head, part)) << part;
  // Without a faulty op, the head says where the loss curves diverge.
  const std::string noise = to_html(examples::noise());
  EXPECT_TRUE(has(noise.substr(0, noise.find("<nav")), "what you see (<abbr title="));
  EXPECT_TRUE(has(noise.substr(0, noise.find("<nav")), ">R</abbr>): from step 1 on"));
}

TEST(Html, EveryPartIsThere) {
  const std::string noise = to_html(examples::noise()), bug = to_html(examples::engine_bug());
  for (const char* id :
       {"corners", "findings", "loss", "drift", "matter", "bounds", "weights", "digests",
        "ablations", "ruled-out", "controls", "commands", "environment", "words"})
    EXPECT_TRUE(has(noise, std::string("<section id=\"") + id + "\"")) << id;
  EXPECT_TRUE(has(noise, "noise band") && has(noise, "class=\"band\""));
  EXPECT_TRUE(has(bug, "No noise band"));
  EXPECT_TRUE(has(bug, "The wrong tensor") && has(bug, "class=\"w9\"") && has(bug, "class=\"wx\""));
  EXPECT_TRUE(has(bug, "3 x 3 elements down, 32 x 16 across"));
  EXPECT_TRUE(has(bug, "as finding 1"));
}

TEST(Html, NothingIsDrawnOfWhatIsNotThere) {
  Report r = examples::noise();
  for (RunSummary& run : r.runs) run.losses = r.runs[0].losses;
  r.weight_drift = {};
  const std::string same = to_html(r);
  EXPECT_FALSE(has(same, "<figure class=\"chart\" id=\"chart-drift\""));
  EXPECT_TRUE(has(same, "same bits"));
  EXPECT_FALSE(has(same, "id=\"weights\""));
  for (RunSummary& run : r.runs) run.losses.assign(3, std::numeric_limits<float>::quiet_NaN());
  r.loss_band = {};
  const std::string broken = to_html(r);
  EXPECT_FALSE(has(broken, "<figure class=\"chart\""));
  EXPECT_TRUE(has(broken, "not finite from step 0 on"));
}

TEST(Html, AbsurdReportIsCutShort) {
  Report r = examples::hostile();
  const auto grow = [](auto& list, size_t n) {
    const auto one = list.front();
    list.assign(n, one);
  };
  const std::string big(1 << 20, '<');
  r.headline = r.command = r.program_excerpt = r.scenario_toml = r.subject = big;
  grow(r.findings, 500);
  grow(r.runs, 200);
  grow(r.controls, 500);
  grow(r.probes, 50);
  for (EngineProbe& p : r.probes) grow(p.rows, 300);
  grow(r.ablations, 500);
  grow(r.weight_drift.rows, 1000);
  r.ruled_out.assign(1000, big);
  for (size_t i = 0; i < r.runs.size(); ++i) {
    r.runs[i].name = "R" + std::to_string(i);
    r.runs[i].losses.assign(50000, static_cast<float>(i));
  }
  const std::clock_t began =
      std::clock();  // of the processor: other work on the machine is no fault
  const std::string page = to_html(r);
  EXPECT_LT((std::clock() - began) / CLOCKS_PER_SEC, 10);
  EXPECT_LT(page.size(), size_t{6} << 20);
  EXPECT_TRUE(has(page, "more in report.json"));
}

TEST(Html, NamesOfRunsAreExplainedWhereTheyFirstStand) {
  const std::string page = to_html(examples::noise());
  const std::string head = page.substr(0, page.find("<nav"));
  for (const char* name : {"R", "S", "T", "R1", "E1"}) {
    const std::string words = html::text(text::words_of_run(name));
    ASSERT_FALSE(words.empty()) << name;
    // As a tooltip, and in text that is visible without a pointer.
    EXPECT_TRUE(has(head, "<abbr title=\"" + words + "\">" + name + "</abbr>")) << name;
    EXPECT_TRUE(has(head, std::string("<b>") + name + "</b> " + words)) << name;
    EXPECT_TRUE(has(text::glossary().front(), std::string(name) + ": ")) << name;
  }
  EXPECT_FALSE(has(head, "<b>R2</b>")) << "what is not named is not explained";
  EXPECT_EQ(html::prose("T#1, runs/T.h5 and |T - R|, Table S1"),
            "T#1, runs/T.h5 and |" + html::prose("T - R") + "|, Table S1");
}

TEST(Html, PagesOfTheDocumentationThatItNamesAreOnIt) {
  Report r = examples::engine_bug();
  r.headline = "Wrong <b>, docs/method/bounds.md#sums, and docs/none.md.";
  r.confidence = "statistical (docs/method/bounds.md, Bias below the bound)";
  r.notes = {"conventions = \"keras\" (docs/reference/formulas.md)."};
  const std::string page = to_html(r);
  for (const char* id : {"doc-method-bounds--sums", "doc-method-bounds--bias-below-the-bound",
                         "doc-reference-formulas"}) {
    EXPECT_EQ(count(page, std::string("<details class=\"doc\" id=\"") + id + "\""), 1) << id;
    EXPECT_TRUE(has(page, std::string("<a href=\"#") + id + "\">docs/")) << id;
  }
  EXPECT_TRUE(has(page, "and docs/none.md."));
  EXPECT_FALSE(has(page, "id=\"doc-method-diagnosis")) << "what is not named is not carried";
  EXPECT_FALSE(has(to_html(Report{}), "class=\"doc\""));
  tags_of(body_of(page));
}

TEST(Html, EveryPageOfTheDocumentationCanStandOnAPage) {
  const std::filesystem::path source = TWINRUN_SOURCE_DIR;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(source / "docs")) {
    const std::string name = entry.path().lexically_relative(source);
    if (entry.path().filename() == "README.md" || entry.path().extension() != ".md") continue;
    const html::DocName doc = html::doc_named_at(name, 0);
    ASSERT_EQ(doc.size, name.size()) << name;
    const std::string shown = html::docs_of("<a href=\"#" + doc.id + "\">");
    EXPECT_TRUE(has(shown, "<summary>" + name)) << name;
    EXPECT_GT(shown.size(), entry.file_size() / 2) << name;
    tags_of("</head><body>" + shown);
  }
}

TEST(Html, EveryCurveCanBeShownAndHidden) {
  const std::string page = to_html(examples::noise());
  const std::string loss = page.substr(page.find("id=\"chart-loss\""));
  for (const char* shows : {"0", "4", "band"})
    EXPECT_TRUE(has(loss.substr(0, loss.find("</figure>")),
                    std::string("<li data-shows=\"") + shows + "\">"))
        << shows;
  for (const char* part : {"aria-pressed", "setVisibility", "Smoothing", "dateWindow"})
    EXPECT_TRUE(has(html::page_file("page.js"), part)) << part;
  // Losses and their differences are drawn below each other on the same axis of steps.
  const std::string section = page.substr(page.find("<section id=\"loss\""));
  EXPECT_TRUE(has(section.substr(0, section.find("</section>")), "id=\"chart-drift\""));
  Report r = examples::inconclusive();  // T ends early
  const auto steps_of = [](const std::string& html, const char* id) {
    const std::string figure = html.substr(html.find(id));
    const size_t from = figure.find("json\">") + 6;
    return nlohmann::json::parse(figure.substr(from, figure.find("</script>") - from))["x"];
  };
  const std::string early = to_html(r);
  EXPECT_EQ(steps_of(early, "id=\"chart-loss\""), steps_of(early, "id=\"chart-drift\""));
}

TEST(Html, TheEmulatorIsCalledSo) {
  std::string page = body_of(to_html(examples::engine_bug()));
  page.resize(page.find("<section id=\"docs\""));  // the pages after it use engine ids
  EXPECT_TRUE(has(page, "subject: <code>emulated TPU, 8 cores"));
  EXPECT_TRUE(has(page, "<td>emulated TPU</td>"));
  EXPECT_FALSE(has(page, "on tpu") || has(page, ">tpu<"));
  EXPECT_EQ(text::engine_name("tpu precision=default"), "emulated TPU precision=default");
  EXPECT_EQ(text::engine_name("tpus"), "tpus");
  EXPECT_EQ(text::engine_name("exec:python3 tpu.py"), "exec:python3 tpu.py");
  EXPECT_TRUE(has(to_json(examples::engine_bug()), "\"engine\": \"tpu\"") ||
              has(to_json(examples::engine_bug()), "\"engine\":\"tpu\""));
}

// The loss falls to 0.5, grows tenfold per step from step 20 on, up to 1e20, and ends in NaN.
Report diverging() {
  Report r = examples::noise();
  r.loss_band = {};
  for (size_t i = 20; i < 40; ++i)
    r.runs.back().losses[i] = i == 39 ? NAN : std::pow(10.0f, static_cast<float>(i) - 18.0f);
  return r;
}

TEST(Axis, ShowsADivergenceAndWhatWasBeforeIt) {
  const text::Axis usual = text::axis_of_losses(examples::noise());
  EXPECT_TRUE(usual.plain());
  const text::Axis axis = text::axis_of_losses(diverging());
  EXPECT_TRUE(axis.logarithmic);
  EXPECT_FLOAT_EQ(axis.high, 1e20);
  // Half of the axis is left to the losses before the divergence; above them the axis is monotonic.
  EXPECT_GT(axis.part(2.3) - axis.part(0.3), 0.3);
  EXPECT_DOUBLE_EQ(axis.part(axis.high), 1);
  EXPECT_DOUBLE_EQ(axis.part(axis.low), 0);
  double last = -1;
  for (double v = axis.low; v <= axis.high; v *= 1.5) {
    EXPECT_GT(axis.part(v), last);
    last = axis.part(v);
  }
  // A few decades need no compression (no knee), and losses below 0 rule out a logarithmic axis.
  Report r = examples::noise();
  r.runs[0].losses[7] = 5000;
  EXPECT_TRUE(text::axis_of_losses(r).logarithmic);
  EXPECT_EQ(text::axis_of_losses(r).knee, 0);
  r.runs[0].losses[3] = -1;
  r.runs[0].losses[7] = 1e30f;
  EXPECT_FALSE(text::axis_of_losses(r).logarithmic);
  EXPECT_GT(text::axis_of_losses(r).part(2.0) - text::axis_of_losses(r).part(-1.0), 0.3);
  // After a spike, the losses that the run settles at lie below the knee.
  Report spike = examples::noise();
  for (RunSummary& run : spike.runs)
    for (size_t i = 2; i < run.losses.size(); ++i) run.losses[i] = i == 2 ? 1e15f : 400;
  EXPECT_GT(text::axis_of_losses(spike).knee, 400);
}

TEST(Axis, IsThatOfPictureScriptAndTerminal) {
  const std::string page = to_html(diverging());
  EXPECT_TRUE(has(page, "class=\"knee\"") && has(page, "loss, log scale"));
  EXPECT_TRUE(has(page, "\"axis\":{\"log\":true") && has(page, "not finite from step 39 on"));
  EXPECT_TRUE(
      has(page, "the scale is compressed, up to 1.00e+20, to show how far a loss diverges."));
  EXPECT_FALSE(has(to_html(examples::noise()), "class=\"knee\""));
  const std::string screen = to_terminal(diverging(), {.width = 100});
  EXPECT_TRUE(has(screen, "on one logarithmic scale"));
  const std::string row = screen.substr(screen.find("\n  T "));
  // The sparkline is high, low and high again; a block that contains NaN has no mean.
  for (const char* block : {"▅", "▃", "█"})
    EXPECT_TRUE(has(row.substr(0, row.find('\n', 1)), block)) << row.substr(0, 120);
}

TEST(Chart, ThinningLosesNoPeak) {
  html::LineChart chart{.id = "x", .title = "x"};
  html::Line line{"R", 0, {}};
  for (int i = 0; i < 10000; ++i) {
    chart.x.push_back(i);
    line.y.push_back(i == 7777 ? 5 : i == 1234 ? -5 : 1);
  }
  chart.lines = {line};
  const html::LineChart thin = html::thinned(chart, 500);
  EXPECT_LE(thin.x.size(), 502U);
  EXPECT_TRUE(std::ranges::is_sorted(thin.x));
  EXPECT_EQ(std::ranges::max(thin.lines[0].y), 5);
  EXPECT_EQ(std::ranges::min(thin.lines[0].y), -5);
  EXPECT_EQ(html::thinned(chart, 20000).x.size(), 10000U);
}

TEST(Chart, DataHaveGapsWhereNothingCanBeDrawn) {
  html::LineChart chart{.id = "x", .title = "x", .logarithmic = true};
  chart.x = {0, 1, 2, 3};
  chart.lines = {{"</script>", 0, {0, 1e-3, NAN, INFINITY}}};
  const std::string data = html::to_data(chart);
  EXPECT_FALSE(has(data, "<"));
  const auto j = nlohmann::json::parse(data);
  EXPECT_EQ(j["lines"][0]["y"], nlohmann::json::array({nullptr, 1e-3, nullptr, nullptr}));
  EXPECT_EQ(j["lines"][0]["name"], "</script>");
  EXPECT_TRUE(has(html::to_svg(chart), "<circle class=\"dot s0\""));  // a single point is visible
}

}  // namespace
}  // namespace twinrun
