// Writes report.md, to be pasted into a bug report. It follows the order of bug reports that get
// answered (verdict, smallest program, command, first divergence with bits, numbers against bounds,
// the experiment, environment). GitHub accepts 65,536 characters; this stays below 60,000 bytes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reports/drift.h"
#include "reports/markdown_text.h"
#include "reports/report.h"
#include "reports/tables.h"
#include "reports/text.h"

namespace twinrun {
namespace {

std::string inspect_command(const Report& r) {
  const auto program = r.asked.files.find("program.file");
  return fmt::format("twinrun inspect {} --ops", program == r.asked.files.end()
                                                     ? r.scenario_name
                                                     : "--program " + program->second);
}

using text::Pieces;

constexpr size_t kMaxBytes = 60000;
constexpr int kLevels = 12;

class Page {
 public:
  Page(const Report& report, int level) : r_(report), md_(level) {}

  std::string render() {
    verdict();
    section(tables::answers(r_));
    section(tables::open_questions(r_));
    what_happened();
    for (tables::Section& s : tables::details(r_)) {
      s.title = md_.prose(s.title, 80);
      s.before = md_.prose(s.before, 800);
      for (tables::Column& c : s.tables.front().columns)
        c.layout.title = md_.prose(c.layout.title, 80);
      section(s);
    }
    program();
    first_step();
    bounds();
    experiment();
    section(tables::controls(r_));
    section(tables::probes(r_, md_.rows(6)));
    section(tables::ablations(r_));
    section(tables::many_cores(r_));
    section(tables::trajectories(r_));
    cures();
    section(tables::ensembles(r_));
    accounts();
    environment();
    reproduce();
    words();
    return std::move(out_);
  }

 private:
  void section(std::string_view title, std::string_view body) {
    if (!body.empty()) out_ += fmt::format("\n## {}\n\n{}", title, body);
  }

  std::string cell(const tables::Cell& c) const {
    const std::string out = c.look == tables::Look::kPlain  ? c.raw
                            : c.look == tables::Look::kCode ? md_.cell_code(c.raw, c.most)
                                                            : md_.prose(c.raw, c.most);
    if (out.empty() || c.mark == tables::Mark::kNone) return out;
    const std::string marked = std::string(sign_of(c.mark)) + out;
    return c.mark == tables::Mark::kPassed ? marked : fmt::format("**{}**", marked);
  }

  // Short tables are shown; longer ones are folded.
  std::string table(const tables::Table& t) const {
    const tables::Grid grid = grid_of(t, tables::kMarkdown, md_.rows(t.limits.markdown),
                                      [&](const tables::Cell& c) { return cell(c); });
    std::string out = t.before.empty() ? "" : md_.prose(t.before, 800) + "\n\n";
    if (grid.rows.empty()) return out;
    const std::string caption = tables::capitalized(t.caption);
    const std::string body = Pieces::table(grid.columns, grid.rows, grid.left_out);
    if (grid.rows.size() > t.limits.open_markdown)
      return out + text::details(fmt::format("{}{} rows", caption.empty() ? "" : caption + ": ",
                                             grid.rows.size()),
                                 body);
    return out + (caption.empty() ? "" : caption + ":\n\n") + body;
  }

  void section(const tables::Section& s) {
    if (s.tables.empty()) return;
    std::string body = s.before.empty() ? "" : s.before + "\n";
    for (const tables::Table& t : s.tables) body += (body.empty() ? "" : "\n") + table(t);
    section(s.title, body + (s.after.empty() ? "" : fmt::format("\n{}\n", s.after)));
  }

  void verdict() {
    const std::string headline = md_.prose(r_.headline, 1200);
    out_ += fmt::format("**{}{}{}**\n\n", to_string(r_.verdict), headline.empty() ? "" : ": ",
                        headline);
    const bool scenario = r_.kind == "scenario";
    if (scenario)
      out_ += fmt::format("{} means: {}. Effect on what the model learns: {}.\n\n",
                          to_string(r_.verdict), text::meaning(r_.verdict), to_string(r_.effect));
    const auto remark = [&](const std::string& words) {
      if (!words.empty()) out_ += md_.prose(words, 600) + "\n\n";
    };
    remark(r_.injected);
    for (size_t i = 0; i < std::min(r_.controls.size(), md_.rows(16)); ++i)
      remark(text::failure_of(r_.controls[i]));
    if (scenario) out_ += "- effect: " + md_.prose(text::effect_of(r_), 800) + "\n";
    for (size_t i = 0; i < std::min<size_t>(r_.cures.size(), 4); ++i)
      out_ += "- cure: " + md_.prose(text::cured(r_.cures[i]), 400) + "\n";
    const auto fact = [&](std::string_view label, const std::string& value) {
      if (!value.empty()) out_ += fmt::format("- {}: {}\n", label, value);
    };
    fact(scenario ? "confidence" : "judged", md_.prose(r_.confidence, 800));
    fact(scenario ? "subject" : "with", md_.code(text::engine_name(r_.subject), 400));
    std::string what = md_.code(r_.scenario_name, 200);
    if (!r_.scenario_description.empty()) what += ": " + md_.prose(r_.scenario_description, 600);
    if (!r_.scenario_digest.empty()) what += " (digest " + md_.code(r_.scenario_digest, 64) + ")";
    fact(md_.prose(r_.kind, 40), what);
    if (!r_.smallest_effect.empty()) {
      out_ += "- smallest effect that this diagnosis could have detected: " +
              md_.prose(r_.smallest_effect, 600) + "\n";
    }
  }

  void what_happened() {
    tables::Table t{
        .columns = {tables::left("#"), tables::left("class"), tables::left("cause"),
                    tables::left("what"), tables::left("where"), tables::left("line"),
                    tables::left("op"), tables::right("share of drift"), tables::left("evidence")},
        .limits = {.markdown = 24}};
    for (const Finding& f : r_.findings) {
      std::string op = md_.cell_code(f.op);
      if (!f.op_kind.empty() && f.op_kind != f.op) op += " (" + md_.prose(f.op_kind, 80) + ")";
      t.add({fmt::format("{}", t.rows.size() + 1), std::string(to_string(f.verdict)),
             md_.cell_code(f.cause, 120), md_.prose(f.sentence, 600),
             md_.prose(text::place_of(f), 80),
             md_.cell_code(f.place.substr(0, f.place.find('\n')), 160), op,
             f.share ? md_.prose(text::share(*f.share)) : "", level(f)});
    }
    section("What happened", t.rows.empty() ? "There are no findings.\n" : table(t));
  }

  void program() {
    if (!r_.program_excerpt.empty()) {
      section(
          "Ops around the finding",
          fmt::format("The ops that the findings name and those that feed them, or the first of a "
                      "layer in which a cause acts; {} "
                      "prints the whole program.\n\n",
                      md_.code(inspect_command(r_), 200)) +
              md_.block("", r_.program_excerpt, 10000));
    }
    if (!r_.command.empty()) section("Command", md_.block("sh", r_.command, 3000));
  }

  void first_step() {
    const Finding* f = text::first_divergence(r_);
    std::string body;
    const auto line = [&](std::string_view key, const std::string& value) {
      if (!value.empty()) body += fmt::format("- {}: {}\n", key, value);
    };
    if (f != nullptr) {
      for (const auto& [label, fact] : tables::facts_of(*f))
        line(label, fact.look == tables::Look::kCode ? md_.code(fact.raw, fact.most) : cell(fact));
    } else {
      for (const text::DriftRow& row : text::drift_of(r_)) {
        if (row.first_step) {
          line(fmt::format("loss ({})", row.isolates),
               fmt::format("bits differ from step {} on", *row.first_step));
        }
      }
      if (!body.empty())
        body = "No single op explains the divergence. Where the loss curves diverge:\n\n" + body;
    }
    section("First diverging step and op", body);
  }

  void bounds() {
    if (r_.findings.empty()) return;
    const tables::Table t = tables::bounds(r_);
    std::string evidence;
    for (size_t i = 0; i < r_.findings.size(); ++i) {
      const Finding& f = r_.findings[i];
      if (f.evidence.empty() || i >= md_.rows(t.limits.markdown)) continue;
      evidence += fmt::format("\n**{}. {}**\n\n", i + 1, md_.prose(f.cause, 120));
      evidence += md_.bullets(f.evidence, 8);
    }
    const bool any = std::ranges::any_of(r_.findings, [](const Finding& f) {
      return f.number != 0 || f.bound != 0 || !f.number_text.empty() || !f.bound_source.empty();
    });
    std::string body = any ? table(t) : "";
    if (!evidence.empty()) body += "\n" + text::details("Evidence for each finding", evidence);
    if (!body.empty()) section(any ? "Number against bound" : "Evidence", body);
  }

  void experiment() {
    std::string body;
    for (const tables::Section& s : {tables::runs(r_), tables::drift(r_)})
      for (const tables::Table& t : s.tables) body += (body.empty() ? "" : "\n") + table(t);
    if (!body.empty()) section("The four-corner experiment", body + losses());
  }

  std::string losses() {
    tables::Table t = tables::losses(r_, md_.rows(8), md_.rows(24));
    for (tables::Column& c : t.columns) c.layout.title = md_.prose(c.layout.title, 48);
    return t.rows.empty() ? "" : "\n" + table(t);
  }

  void cures() {
    std::string body;
    for (const CureRow& cure : r_.cures) {
      body +=
          fmt::format("- {}: {}\n", md_.code(cure.run, 24), md_.prose(text::cure_of(cure), 800));
      if (!cure.command.empty()) body += "\n" + md_.block("sh", cure.command, 3000);
    }
    section("The cure, applied", body);
  }

  void accounts() {
    const std::string words = text::interaction_of(r_);
    section("Interaction (one seed, not tested)", words.empty() ? "" : words + "\n");
    section("Ruled out", md_.bullets(r_.ruled_out, 32));
    section("What to run next", md_.bullets(r_.next_steps, 16));
    checklist();
    section("Notes", md_.bullets(r_.notes, 24));
  }

  void checklist() {
    std::string body;
    const size_t shown = std::min(r_.checklist.size(), md_.rows(16));
    for (size_t i = 0; i < shown; ++i) {
      const ChecklistRow& row = r_.checklist[i];
      body += fmt::format("- [{}] {}: {}{}\n", row.done ? "x" : " ", md_.prose(row.point, 120),
                          md_.prose(row.what, 400),
                          row.command.empty() ? "" : "; run " + md_.code(row.command, 1000));
    }
    section("Before filing", body);
  }

  void environment() {
    section(tables::environment(r_));
    std::string files;
    if (!r_.directory.empty()) files = "Results folder: " + md_.code(r_.directory, 300) + "\n\n";
    files += "- `report.json`: everything above, and every number that did not fit\n";
    std::string runs;
    for (size_t i = 0; i < std::min(r_.runs.size(), md_.rows(12)); ++i) {
      runs += (runs.empty() ? "" : " ") + md_.code(r_.runs[i].name + ".h5", 40);
    }
    if (!runs.empty()) files += "- `runs/`: " + runs + "\n";
    // Print the folder in the shell command only if its name needs no quoting.
    const bool plain = !r_.directory.empty() && r_.directory.size() <= 120 &&
                       r_.directory.find_first_not_of(
                           "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                           "0123456789._-/") == std::string::npos;
    if (r_.kind == "scenario")
      files += fmt::format(
          "\nGitHub does not accept `.h5` files: `zip -r case.zip {}` packs the folder into one "
          "file "
          "to attach.\n",
          plain ? r_.directory : "DIR");
    section("Attachments", files);
  }

  void reproduce() {
    std::string body;
    if (!r_.scenario_toml.empty()) {
      body +=
          text::details("The scenario, as resolved", md_.block("toml", r_.scenario_toml, 6000)) +
          "\n";
    }
    std::string commands;
    for (const auto& [what, command] : text::commands_of(r_, md_.rows(8)))
      commands += fmt::format("# {}\n{}\n", what, text::clean(command.substr(0, 4000)));
    if (!commands.empty()) body += md_.block("sh", commands, 5000);
    section("How to reproduce", body);
  }

  void words() {
    if (r_.kind != "scenario") return;
    std::string body;
    for (const std::string& line : text::glossary()) body += fmt::format("- {}\n", line);
    section("Words", body);
  }

  static std::string level(const Finding& f) {
    return f.level == 'C' ? "tensors" : f.level == 'A' || f.level == 'B' ? "ops" : "";
  }

  const Report& r_;
  Pieces md_;
  std::string out_;
};

}  // namespace

std::string to_markdown(const Report& report) {
  std::string out;
  for (int level = 0; level < kLevels; ++level) {
    out = Page(report, level).render();
    if (out.size() < kMaxBytes) break;
  }
  return out;
}

}  // namespace twinrun
