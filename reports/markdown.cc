// Writes report.md, to be pasted into a bug report. It follows the order of bug reports that get
// answered (verdict, smallest program, command, first divergence with bits, numbers against bounds,
// the experiment, environment). GitHub accepts 65,536 characters; this stays below 60,000 bytes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reports/drift.h"
#include "reports/markdown_text.h"
#include "reports/report.h"
#include "reports/text.h"

namespace twinrun {
namespace {

using text::Pieces;
using Rows = std::vector<std::vector<std::string>>;

constexpr size_t kMaxBytes = 60000;
constexpr int kLevels = 12;

class Page {
 public:
  Page(const Report& report, int level) : r_(report), md_(level) {}

  std::string render() {
    verdict();
    what_happened();
    program();
    first_step();
    bounds();
    experiment();
    controls();
    probes();
    ablations();
    trajectories();
    cures();
    ensembles();
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

  // Short tables are shown; longer ones are folded.
  static std::string fold(size_t rows, size_t open, std::string_view summary,
                          const std::string& body) {
    return rows <= open ? body : text::details(summary, body);
  }

  // True when the row limit is reached. Adds an empty row then, so that the table counts the rest.
  bool beyond(Rows& rows, size_t usual) const {
    if (rows.size() < md_.rows(usual)) return false;
    rows.emplace_back();
    return true;
  }

  void verdict() {
    const std::string headline = md_.prose(r_.headline, 1200);
    out_ += fmt::format("**{}{}{}**\n\n", to_string(r_.verdict), headline.empty() ? "" : ": ",
                        headline);
    out_ += fmt::format("{} means: {}. Effect on what is learnt: {}.\n\n", to_string(r_.verdict),
                        text::meaning(r_.verdict), to_string(r_.effect));
    const auto remark = [&](const std::string& words) {
      if (!words.empty()) out_ += md_.prose(words, 600) + "\n\n";
    };
    remark(r_.injected);
    for (size_t i = 0; i < std::min(r_.controls.size(), md_.rows(16)); ++i)
      remark(text::failure_of(r_.controls[i]));
    out_ += "- effect: " + md_.prose(text::effect_of(r_), 800) + "\n";
    for (size_t i = 0; i < std::min<size_t>(r_.cures.size(), 4); ++i)
      out_ += "- cure: " + md_.prose(text::cured(r_.cures[i]), 400) + "\n";
    if (!r_.confidence.empty()) out_ += "- confidence: " + md_.prose(r_.confidence, 800) + "\n";
    if (!r_.subject.empty())
      out_ += "- subject: " + md_.code(text::engine_name(r_.subject), 400) + "\n";
    std::string scenario = md_.code(r_.scenario_name, 200);
    if (!r_.scenario_description.empty())
      scenario += ": " + md_.prose(r_.scenario_description, 600);
    if (!r_.scenario_digest.empty())
      scenario += " (digest " + md_.code(r_.scenario_digest, 64) + ")";
    if (!scenario.empty()) out_ += "- scenario: " + scenario + "\n";
    if (!r_.smallest_effect.empty()) {
      out_ += "- smallest effect that this diagnosis could have seen: " +
              md_.prose(r_.smallest_effect, 600) + "\n";
    }
  }

  void what_happened() {
    Rows rows;
    for (const Finding& f : r_.findings) {
      if (beyond(rows, 24)) continue;
      std::string op = md_.cell_code(f.op);
      if (!f.op_kind.empty() && f.op_kind != f.op) op += " (" + md_.prose(f.op_kind, 80) + ")";
      rows.push_back({fmt::format("{}", rows.size() + 1), std::string(to_string(f.verdict)),
                      md_.cell_code(f.cause, 120), md_.prose(f.sentence, 600),
                      md_.prose(text::place_of(f), 80), op, f.share ? md_share(*f.share) : "",
                      level(f)});
    }
    std::string body = "No finding stands behind this verdict.\n";
    if (!rows.empty()) {
      body = md_.table(
          {"#", "class", "cause", "what", "where", "op", "share of drift:", "evidence"}, rows, 24);
    }
    section("What happened", body);
  }

  void program() {
    if (!r_.program_excerpt.empty()) {
      section("Ops around the finding",
              fmt::format(
                  "The ops that the findings name and those that feed them, or the first of a "
                  "layer in which a cause acts; {} "
                  "prints the whole program.\n\n",
                  md_.code(fmt::format("twinrun inspect {} --program", r_.scenario_name), 200)) +
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
      line("where", md_.prose(text::place_of(*f), 80));
      line("op", md_.code(f->op) + (f->op_kind.empty() ? "" : " " + md_.prose(f->op_kind, 80)));
      line("elements", md_.prose(f->elements, 300));
      line("looks like", md_.prose(f->fingerprint, 300));
      line("bits", md_.code(f->hex, 400));
    } else {
      for (const text::DriftRow& row : text::drift_of(r_)) {
        if (row.first_step) {
          line(fmt::format("loss of {}", row.pair),
               fmt::format("bits differ from step {} on", *row.first_step));
        }
      }
      if (!body.empty()) body = "No single op is to blame. Where the loss curves part:\n\n" + body;
    }
    section("First diverging step and op", body);
  }

  void bounds() {
    Rows rows;
    std::string evidence;
    for (size_t i = 0; i < r_.findings.size(); ++i) {
      if (beyond(rows, 24)) continue;
      const Finding& f = r_.findings[i];
      rows.push_back({fmt::format("{}", i + 1), md_.prose(text::number_of(f), 300),
                      md_.prose(f.bound_source, 300), md_.cell_code(f.hex, 240)});
      if (f.evidence.empty()) continue;
      evidence += fmt::format("\n**{}. {}**\n\n", i + 1, md_.prose(f.cause, 120));
      evidence += md_.bullets(f.evidence, 8);
    }
    if (rows.empty()) return;
    std::string body = md_.table(
        {"#", "number, and what is allowed", "where the bound comes from", "bits"}, rows, 24);
    if (!evidence.empty()) body += "\n" + text::details("Evidence for each finding", evidence);
    section("Number against bound", body);
  }

  void experiment() {
    Rows rows;
    for (const RunSummary& run : r_.runs) {
      if (beyond(rows, 16)) continue;
      rows.push_back(
          {md_.cell_code(run.name, 24), md_.cell_code(text::engine_name(run.engine), 120),
           md_.prose(run.settings, 160), md_.prose(run.meaning, 160), fmt::format("{}", run.steps),
           text::number(run.train_loss, 6), run.evaluated ? text::number(run.eval_loss, 6) : "",
           run.evaluated ? text::percent(run.eval_accuracy) : "",
           run.root_digest.empty() ? "" : md_.cell_code(text::digest8(run.root_digest), 32),
           run.ended.completed() ? "" : md_.prose(to_string(run.ended), 160)});
    }
    if (rows.empty()) return;
    std::string body =
        md_.table({"run", "engine", "settings", "what it is",
                   "steps:", "last loss:", "held-out loss:", "accuracy:", "digest", "ended"},
                  rows, 16);
    Rows drift;
    for (const text::DriftRow& row : text::drift_of(r_)) {
      drift.push_back({row.pair, row.isolates,
                       row.first_step ? fmt::format("{}", *row.first_step) : "never",
                       row.first_step ? text::number(row.largest) : "same bits",
                       row.first_step ? text::signed_number(row.last) : ""});
    }
    if (!drift.empty()) {
      body +=
          "\nWhere the loss curves part:\n\n" +
          md_.table({"pair", "isolates", "from step:", "largest difference:", "at the last step:"},
                    drift, 8);
    }
    body += losses();
    section("The four-corner experiment", body);
  }

  // Losses with nine digits, which identify a binary32: every step of a short run, a sample of a
  // longer one.
  std::string losses() {
    std::vector<std::string> titles = {"step:"};
    std::vector<const std::vector<float>*> columns;
    size_t steps = 0;
    for (const text::Curve& curve : text::curves_of(r_)) {
      if (columns.size() == md_.rows(8)) break;
      titles.push_back(md_.prose(curve.names, 48) + ":");
      columns.push_back(curve.losses);
      steps = std::max(steps, curve.losses->size());
    }
    if (steps == 0) return "";
    Rows rows;
    const size_t points = std::min(steps, md_.rows(24));
    for (size_t i = 0; i < points; ++i) {
      const size_t step = points == 1 ? 0 : i * (steps - 1) / (points - 1);
      std::vector<std::string> row = {fmt::format("{}", step)};
      for (const auto* column : columns) {
        row.push_back(step < column->size() ? text::number((*column)[step], 9) : "");
      }
      rows.push_back(std::move(row));
    }
    const std::string summary = points == steps
                                    ? fmt::format("Loss of each of the {} steps", steps)
                                    : fmt::format("Loss at {} of {} steps", points, steps);
    return "\n" + text::details(summary, md_.table(titles, rows, 24));
  }

  void controls() {
    Rows rows;
    for (const Control& c : r_.controls) {
      if (beyond(rows, 16)) continue;
      rows.push_back({md_.prose(c.name, 200),
                      !c.run     ? "not run"
                      : c.passed ? "ok"
                                 : "**FAILED**",
                      md_.prose(c.detail, 300)});
    }
    if (!rows.empty()) section("Controls", md_.table({"control", "result", "detail"}, rows, 16));
  }

  void probes() {
    std::string body;
    const size_t shown = std::min(r_.probes.size(), md_.rows(6));
    for (size_t i = 0; i < shown; ++i) {
      const EngineProbe& p = r_.probes[i];
      body += fmt::format("{}{} on {}: {} of {} probed ({}), {}, {} checked{}.", i > 0 ? "\n" : "",
                          md_.code(p.pair, 24), md_.code(text::engine_name(p.engine), 120),
                          text::count(p.steps_probed), text::plural(p.steps, "step"),
                          md_.prose(p.policy, 160), text::plural(p.ops, "op"),
                          text::plural(p.elements, "element"), text::unbounded(p.untestable));
      if (!p.dot_residual_text.empty()) {
        body += fmt::format(" The {}: {}.", text::kOperandRounding,
                            md_.prose(p.dot_residual_text, 200));
      }
      body += "\n";
      Rows rows;
      for (const ProbeRow& row : p.rows) {
        if (beyond(rows, 16)) continue;
        rows.push_back({md_.cell_code(row.op), md_.prose(row.kind, 80), md_.prose(row.phase, 40),
                        text::worst_of(row), text::count(row.outside), text::count(row.elements),
                        row.untestable == 0 ? "" : text::count(row.untestable),
                        row.operand_residual < 0 ? "" : text::power_of_two(row.operand_residual)});
      }
      if (rows.empty()) continue;
      const std::string table =
          md_.table({"op", "kind", "phase", "worst error / bound:", "outside:", "elements:",
                     "without a bound:", "operand rounding:"},
                    rows, 16);
      const auto ops = static_cast<int64_t>(std::min(rows.size(), md_.rows(16)));
      body +=
          "\n" + fold(rows.size(), 6, fmt::format("The worst {}", text::plural(ops, "op")), table);
    }
    if (shown < r_.probes.size()) {
      body += fmt::format("\n*{} more in report.json.*\n", r_.probes.size() - shown);
    }
    if (!body.empty()) body = fmt::format("{}\n\n{}", text::kRecomputed, body);
    section("Each op against its bound", body);
  }

  void ablations() {
    std::vector<const AblationRow*> sorted;
    for (const AblationRow& row : r_.ablations) sorted.push_back(&row);
    std::ranges::stable_sort(sorted, std::greater<>(), &AblationRow::explains);
    Rows rows;
    for (const AblationRow* s : sorted) {
      if (beyond(rows, 24)) continue;
      const std::string explains = md_.prose(text::effect_of(*s));
      rows.push_back(
          {md_.cell_code(s->cause, 120), md_.prose(text::switched(*s), 80),
           text::number(s->drift_before), text::number(s->drift_after), text::number(s->envelope),
           s->explains ? fmt::format("**{}**", explains) : explains, md_.prose(s->note, 200)});
    }
    if (rows.empty()) return;
    const std::string table = md_.table(
        {"cause", "switched", "before:", "after:", "threshold:", "explains it", "note"}, rows, 24);
    section(
        "Each sharding cause, undone and added",
        fmt::format(
            "Relative change of one step of the reference in binary64, from the same state. {}\n\n",
            text::kShares) +
            fold(rows.size(), 10, fmt::format("All {} switches", rows.size()), table));
  }

  void trajectories() {
    Rows rows;
    for (const TrajectoryRow& t : r_.trajectories) {
      if (beyond(rows, 16)) continue;
      rows.push_back({md_.prose(t.pair, 40), md_.prose(t.meaning, 120), md_.prose(t.metric, 80),
                      fmt::format("{}", t.differences.size()), text::change_of(t, t.mean),
                      text::interval_of(t), t.detectable > 0 ? text::size_of(t, t.detectable) : "",
                      text::margin_of(t), md_.prose(text::outcome_of(t), 40)});
    }
    if (rows.empty()) return;
    const std::string words = text::trials_of(r_);
    section("Does it matter",
            md_.table({"pair", "what it is", "metric", "seeds:", "mean difference:", "interval:",
                       "would show:", "declared margin:", "effect"},
                      rows, 16) +
                (words.empty() ? "" : fmt::format("\n{}\n", words)));
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

  void ensembles() {
    Rows rows;
    for (const EnsembleRow& f : r_.ensembles) {
      if (beyond(rows, 16)) continue;
      rows.push_back({md_.prose(f.run, 40), md_.prose(f.metric, 80), fmt::format("{}", f.steps),
                      fmt::format("{}", f.members), text::number(f.subject),
                      fmt::format("{} to {}", text::number(f.low), text::number(f.high)),
                      fmt::format("{:.3f}", f.p), std::string(to_string(f.outcome))});
    }
    if (rows.empty()) return;
    section(
        "Among honest engines",
        "Median distance from the others, all from initial weights moved by one unit in the last "
        "place. Flagged is who is "
        "farther than all, and so far as a correct engine is with a probability below 1e-4.\n\n" +
            md_.table(
                {"run", "metric", "steps:", "members:", "distance:", "theirs:", "p:", "outcome"},
                rows, 16));
  }

  void accounts() {
    const std::string words = text::interaction_of(r_);
    section("Interaction (one seed, not tested)", words.empty() ? "" : words + "\n");
    section("Ruled out", md_.bullets(r_.ruled_out, 32));
    section("What to run next", md_.bullets(r_.next_steps, 16));
    section("Notes", md_.bullets(r_.notes, 24));
  }

  void environment() {
    Rows rows;
    for (const auto& [key, value] : r_.environment) {
      if (beyond(rows, 40)) continue;
      rows.push_back({md_.prose(key, 80), md_.prose(value, 300)});
    }
    if (!rows.empty()) {
      section("Environment",
              fold(rows.size(), 12, "Environment", md_.table({"key", "value"}, rows, 40)));
    }
    std::string files;
    if (!r_.directory.empty()) files = "Results folder: " + md_.code(r_.directory, 300) + "\n\n";
    files += "- `report.json`: everything above and every number that did not fit\n";
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
    files += fmt::format(
        "\nGitHub takes no `.h5`: `zip -r case.zip {}` packs all of it into one file to attach.\n",
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
    std::string body;
    for (const std::string& line : text::glossary()) body += fmt::format("- {}\n", line);
    section("Words", body);
  }

  std::string md_share(double fraction) const { return md_.prose(text::share(fraction)); }

  static std::string level(const Finding& f) {
    return f.level >= 'A' && f.level <= 'Z' ? std::string(1, f.level) : "";
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
