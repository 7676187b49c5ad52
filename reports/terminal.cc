// Writes the summary that `twinrun diagnose` prints: the verdict first, then the reasons, then what
// to do. No frame, no line wider than the terminal, colour only on request; tables are cut, with
// the rest in report.json.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ranges>
#include <utility>

#include "reports/axis.h"
#include "reports/drift.h"
#include "reports/report.h"
#include "reports/text.h"

namespace twinrun {
namespace {

constexpr int kIndent = 2;
constexpr int kMinWidth = 40;

constexpr std::string_view kBold = "\x1b[1m", kDim = "\x1b[2m", kRed = "\x1b[31m",
                           kGreen = "\x1b[32m";

std::string_view badge_of(VerdictClass verdict) {
  switch (verdict) {
    case VerdictClass::kIdentical:
    case VerdictClass::kNoise:
      return "\x1b[1;30;42m";
    case VerdictClass::kSharding:
    case VerdictClass::kProgram:
    case VerdictClass::kInconclusive:
      return "\x1b[1;30;43m";
    case VerdictClass::kEngineBug:
    case VerdictClass::kNondeterministic:
      return "\x1b[1;37;41m";
  }
  return kBold;
}

class Screen {
 public:
  Screen(const Report& report, const TerminalOptions& options)
      : r_(report), o_(options), width_(std::max(options.width, kMinWidth)) {}

  std::string render() {
    verdict();
    findings();
    runs();
    drift();
    trajectories();
    cures();
    ensembles();
    ablations();
    probes();
    controls();
    accounts();
    files();
    return std::move(out_);
  }

 private:
  // Sentences are cut at a thousand characters; report.json has them in full.
  std::string clean(std::string_view raw, int most = 1000) const {
    const std::string whole = text::clean(raw.substr(0, 4 * static_cast<size_t>(most)), o_.unicode);
    return text::clip(whole, most, o_.unicode ? "…" : "...");
  }
  std::string cell(std::string_view raw) const { return clean(raw, 120); }
  std::string_view dash() const { return o_.unicode ? "–" : "-"; }

  std::string paint(std::string_view color, std::string_view words) const {
    return o_.color ? fmt::format("{}{}\x1b[0m", color, words) : std::string(words);
  }

  void line(std::string_view words = "") { out_ += fmt::format("{}\n", words); }

  void title(std::string_view words, std::string_view rest = "") {
    line();
    const int used = text::display_width(words);
    const bool fits = !rest.empty() && used + 2 + text::display_width(rest) <= width_;
    line(paint(kBold, words) + (fits ? "  " + paint(kDim, rest) : ""));
    if (!rest.empty() && !fits) paragraph(rest, kIndent);
  }

  void paragraph(std::string_view words, int indent) {
    for (const std::string& part : text::wrap(words, width_ - indent)) {
      line(std::string(indent, ' ') + part);
    }
  }

  // "label     words, wrapped with a hanging indent"
  void labelled(std::string_view label, std::string_view words, int indent, int column) {
    if (words.empty()) return;
    std::string head = fmt::format("{}{:<{}}", std::string(indent, ' '), label, column - indent);
    for (const std::string& part : text::wrap(words, width_ - column)) {
      line(head + part);
      head = std::string(column, ' ');
    }
  }

  void bullets(const std::vector<std::string>& items, size_t most) {
    const std::string mark = o_.unicode ? "· " : "- ";
    const size_t shown = items.size() <= most ? items.size() : most;
    for (size_t i = 0; i < shown; ++i) labelled(mark, clean(items[i]), kIndent, kIndent + 2);
    if (shown < items.size()) more(items.size() - shown);
  }

  void more(size_t rows) { line(paint(kDim, fmt::format("  {} more in report.json", rows))); }

  void table(const text::Table& table) {
    bool head = true;
    for (const std::string& row : table.lines(width_, kIndent)) {
      line(head ? paint(kDim, row) : row);
      head = false;
    }
  }

  std::string pass(bool run, bool passed) const {
    if (!run) return "not run";
    if (passed) return paint(kGreen, o_.unicode ? "✓ ok" : "ok");
    return paint(kRed, o_.unicode ? "✗ FAILED" : "FAILED");
  }

  std::string verdict_name() const {
    const std::string_view name = to_string(r_.verdict);
    return o_.color ? paint(badge_of(r_.verdict), fmt::format(" {} ", name)) : std::string(name);
  }

  void verdict() {
    const std::string_view meaning = text::meaning(r_.verdict);
    const std::string badge = verdict_name() + (o_.color ? "" : ":");
    if (text::display_width(badge) + 1 + text::display_width(meaning) <= width_) {
      line(badge + " " + paint(kBold, meaning));
    } else {
      line(badge);
      paragraph(meaning, kIndent);
    }
    if (!r_.headline.empty()) {
      line();
      paragraph(clean(r_.headline), 0);
    }
    const auto remark = [&](const std::string& words) {
      if (!words.empty()) paragraph(clean(words), 0);
    };
    remark(r_.injected);
    for (const Control& c : r_.controls | std::views::take(8)) remark(text::failure_of(c));
    line();
    constexpr int kColumn = 15;
    labelled("effect", clean(text::effect_of(r_)), kIndent, kColumn);
    for (const CureRow& cure : r_.cures | std::views::take(4))
      labelled("cure", clean(text::cured(cure)), kIndent, kColumn);
    labelled("confidence", clean(r_.confidence), kIndent, kColumn);
    labelled("subject", clean(text::engine_name(r_.subject)), kIndent, kColumn);
    std::string scenario = clean(r_.scenario_name);
    if (!r_.scenario_description.empty()) {
      scenario += fmt::format(" {} {}", dash(), clean(r_.scenario_description));
    }
    if (!r_.scenario_digest.empty()) {
      scenario += fmt::format(" (digest {})", text::clip(clean(r_.scenario_digest), 8, ""));
    }
    labelled("scenario", scenario, kIndent, kColumn);
    labelled("sensitivity", clean(r_.smallest_effect), kIndent, kColumn);
  }

  void findings() {
    if (r_.findings.empty()) return;
    title("Findings");
    constexpr size_t kMax = 10;
    const auto rows = [] {
      return text::Table({{.title = ""},
                          {.title = "also wrong", .flexible = true},
                          {.title = "step", .right = true},
                          {.title = "error, and what is allowed", .flexible = true},
                          {.title = "looks like", .flexible = true, .drop = 1}});
    };
    const std::vector<text::Telling> tellings = text::tellings_of(r_.findings);
    text::Table others = rows();
    const auto end_bugs = [&] {
      if (others.empty()) return;
      line();
      table(std::exchange(others, rows()));
    };
    const size_t shown = std::min(r_.findings.size(), kMax);
    for (size_t i = 0; i < shown; ++i) {
      const Finding& f = r_.findings[i];
      if (!tellings[i].in_full) {
        others.add(
            {fmt::format("{}.", i + 1), cell(f.op), f.step ? text::count(*f.step) : "",
             cell(text::number_of(f)),
             tellings[i].as > 0 ? fmt::format("as {}.", tellings[i].as) : cell(f.fingerprint)});
        continue;
      }
      if (f.verdict != VerdictClass::kEngineBug) end_bugs();
      if (i > 0) line();
      finding(f, i + 1);
    }
    end_bugs();
    if (r_.findings.size() > shown) more(r_.findings.size() - shown);
  }

  void finding(const Finding& f, size_t place) {
    constexpr int kColumn = 16;
    constexpr size_t kEvidence = 6;
    const std::string first = fmt::format("{}. {}", place, to_string(f.verdict));
    std::string rest = clean(f.cause);
    if (f.share) rest += fmt::format(", {} of the drift", text::share(*f.share));
    const int used = kIndent + text::display_width(first) + 2;
    std::string head = std::string(kIndent, ' ') + paint(kBold, first) + "  ";
    for (const std::string& part : text::wrap(rest, width_ - used)) {
      line(head + part);
      head = std::string(used, ' ');
    }
    paragraph(clean(f.sentence), kIndent + 3);
    const auto row = [&](std::string_view label, const std::string& words) {
      labelled(label, words, kIndent + 3, kColumn);
    };
    row("where", clean(text::place_of(f)));
    row("op", clean(f.op) + (f.op_kind.empty() ? "" : fmt::format(" ({})", clean(f.op_kind))));
    row("elements", clean(f.elements));
    row("looks like", clean(f.fingerprint));
    row("bits", clean(f.hex));
    row("number", clean(text::number_of(f)));
    row("bound", clean(f.bound_source));
    std::string label = "evidence";
    if (const std::string_view rests_on = text::meaning(f.level); !rests_on.empty()) {
      row(label, fmt::format("level {}: {}", f.level, rests_on));
      label.clear();
    }
    for (size_t k = 0; k < std::min(f.evidence.size(), kEvidence); ++k) {
      row(label, clean(f.evidence[k]));
      label.clear();
    }
    if (f.evidence.size() > kEvidence)
      row("", fmt::format("{} more in report.md", f.evidence.size() - kEvidence));
    command("reproduce", f.reproduce, kIndent + 3, kColumn);
  }

  // A command is meant to be copied: it stays on one line if it fits, else it is broken with
  // backslashes.
  void command(std::string_view label, std::string_view raw, int indent, int column) {
    if (raw.empty()) return;
    constexpr size_t kMax = 4000;
    if (raw.size() > kMax) {  // part of a command is worse than none
      labelled(label, "too long to show: it is in report.json", indent, column);
      return;
    }
    const std::string typed = clean(raw, kMax);
    std::string head = fmt::format("{}{:<{}}", std::string(indent, ' '), label, column - indent);
    if (column + text::display_width(typed) <= width_) {
      line(head + typed);
      return;
    }
    if (!label.empty()) line(std::string(indent, ' ') + std::string(label));
    for (const std::string& part : text::command_lines(typed, width_, indent + 2)) line(part);
  }

  // The width is proportional to the number of steps, so that equal steps of all runs align.
  std::string curve_of(const RunSummary& run, const text::Axis& axis, size_t steps,
                       int room) const {
    if (run.losses.empty()) return "";
    const size_t columns = std::min<size_t>(room, steps);
    const auto mine = static_cast<int>(std::max<size_t>(1, columns * run.losses.size() / steps));
    if (axis.plain()) return text::sparkline(run.losses, mine, axis.low, axis.high, o_.unicode);
    std::vector<float> parts;
    for (const float loss : run.losses)
      parts.push_back(!std::isfinite(loss) ? loss
                      : axis.shows(loss)   ? static_cast<float>(axis.part(loss))
                                           : 0.0f);
    return text::sparkline(parts, mine, 0, 1, o_.unicode);
  }

  void runs() {
    if (r_.runs.empty()) return;
    // One axis for all curves, with at most as many columns as the longest run has steps.
    const text::Axis axis = text::axis_of_losses(r_);
    size_t longest = 0;
    for (const RunSummary& run : r_.runs) longest = std::max(longest, run.losses.size());
    const std::string steps = text::plural(static_cast<int64_t>(longest), "step");
    title("Runs",
          longest == 0 ? ""
          : axis.low <= axis.high
              ? fmt::format("loss of {}, {} to {} on one {}scale", steps, text::number(axis.low),
                            text::number(axis.high), axis.plain() ? "" : "logarithmic ")
              : fmt::format("loss of {}, none of them finite", steps));
    const bool evaluated = r_.runs.front().evaluated;  // an imported step has no held-out data
    const bool wide = width_ >= 100;  // room for columns that repeat what is said above
    const int room = std::clamp(width_ - 68, 8, 32);
    text::Table t({{.title = "run"},
                   {.title = wide ? "engine" : "", .flexible = true},
                   {.title = "what it is", .flexible = true},
                   {.title = wide ? "steps" : "", .right = true},
                   {.title = "loss", .drop = 1},
                   {.title = evaluated ? "held-out loss" : "last loss", .right = true},
                   {.title = evaluated ? "accuracy" : "", .right = true},
                   {.title = "digest", .drop = 2},
                   {.title = "time", .right = true, .drop = 3},
                   {.title = "ended", .flexible = true}});
    constexpr size_t kMax = 12;
    size_t rows = 0;
    for (size_t i = 0; i < r_.runs.size(); ++i) {
      const RunSummary& run = r_.runs[i];
      // A control with the same bits shares the row of its run: "R = R2".
      std::string name = cell(run.name);
      while (i + 1 < r_.runs.size() && same_outcome(run, r_.runs[i + 1])) {
        name += " = " + cell(r_.runs[++i].name);
      }
      if (++rows > kMax) continue;
      name = text::clip(name, 24, o_.unicode ? "…" : "~");
      t.add({name, wide ? cell(text::engine_name(run.engine)) : "", cell(run.meaning),
             wide ? text::count(run.steps) : "", curve_of(run, axis, longest, room),
             !evaluated      ? text::number(run.train_loss, 5)
             : run.evaluated ? text::number(run.eval_loss, 5)
                             : "",
             evaluated && run.evaluated ? text::percent(run.eval_accuracy) : "",
             cell(text::digest8(run.root_digest)), run.kept ? "kept" : text::duration(run.seconds),
             run.ended.completed() ? "" : cell(to_string(run.ended))});
    }
    table(t);
    if (rows > kMax) more(rows - kMax);
  }

  static bool same_outcome(const RunSummary& a, const RunSummary& b) {
    return !a.root_digest.empty() && a.root_digest == b.root_digest && a.engine == b.engine &&
           a.steps == b.steps && a.ended == b.ended && a.eval_loss == b.eval_loss &&
           a.eval_accuracy == b.eval_accuracy;
  }

  void drift() {
    const std::vector<text::DriftRow> rows = text::drift_of(r_);
    if (rows.empty()) return;
    title("Drift of the loss", "where the curves part");
    text::Table t({{.title = "pair"},
                   {.title = "isolates", .flexible = true},
                   {.title = "from step", .right = true},
                   {.title = "largest", .right = true},
                   {.title = "last step", .right = true, .drop = 1}});
    for (const text::DriftRow& row : rows) {
      t.add({row.pair, row.isolates, row.first_step ? text::count(*row.first_step) : "never",
             row.first_step ? text::number(row.largest) : "same bits",
             row.first_step ? text::signed_number(row.last) : ""});
    }
    table(t);
  }

  void trajectories() {
    if (r_.trajectories.empty()) return;
    const size_t seeds = r_.trajectories.front().differences.size();
    title("Does it matter", seeds == 1
                                ? "difference of one seed"
                                : fmt::format("mean difference over {} paired seeds", seeds));
    text::Table t({{.title = "pair"},
                   {.title = "metric", .flexible = true},
                   {.title = "mean", .right = true},
                   {.title = "interval"},
                   {.title = "would show", .right = true, .drop = 1},
                   {.title = "margin", .right = true, .drop = 2},
                   {.title = "effect"}});
    constexpr size_t kMax = 8;
    for (size_t i = 0; i < std::min(r_.trajectories.size(), kMax); ++i) {
      const TrajectoryRow& row = r_.trajectories[i];
      const std::string outcome = cell(text::outcome_of(row));
      t.add({cell(row.pair), cell(row.metric), text::change_of(row, row.mean),
             text::interval_of(row), row.detectable > 0 ? text::size_of(row, row.detectable) : "",
             text::margin_of(row),
             row.outcome == PairedOutcome::kHarmful ? paint(kRed, outcome) : outcome});
    }
    table(t);
    if (r_.trajectories.size() > kMax) more(r_.trajectories.size() - kMax);
    if (const std::string words = text::trials_of(r_); !words.empty()) paragraph(words, kIndent);
  }

  void cures() {
    if (r_.cures.empty()) return;
    title("The cure, applied");
    for (const CureRow& cure : r_.cures) {
      labelled(cell(cure.run), clean(text::cure_of(cure)), kIndent, kIndent + 3);
      command("", cure.command, kIndent, kIndent + 3);
    }
  }

  void ensembles() {
    if (r_.ensembles.empty()) return;
    title("Among honest engines", "median distance from simulated correct ones");
    text::Table t({{.title = "run"},
                   {.title = "metric", .flexible = true},
                   {.title = "steps", .right = true, .drop = 2},
                   {.title = "members", .right = true, .drop = 1},
                   {.title = "distance", .right = true},
                   {.title = "theirs"},
                   {.title = "p", .right = true},
                   {.title = "outcome"}});
    constexpr size_t kMax = 8;
    for (size_t i = 0; i < std::min(r_.ensembles.size(), kMax); ++i) {
      const EnsembleRow& f = r_.ensembles[i];
      const std::string outcome(to_string(f.outcome));
      t.add({cell(f.run), cell(f.metric), text::count(f.steps), text::count(f.members),
             text::number(f.subject),
             fmt::format("{} to {}", text::number(f.low), text::number(f.high)),
             fmt::format("{:.3f}", f.p),
             f.outcome == EnsembleOutcome::kOutside ? paint(kRed, outcome) : outcome});
    }
    table(t);
    if (r_.ensembles.size() > kMax) more(r_.ensembles.size() - kMax);
  }

  void ablations() {
    if (r_.ablations.empty()) return;
    title("Each sharding cause, undone and added", "relative change of one step");
    std::vector<const AblationRow*> sorted;
    for (const AblationRow& row : r_.ablations) sorted.push_back(&row);
    std::ranges::stable_sort(sorted, std::greater<>(), &AblationRow::explains);
    text::Table t({{.title = "cause", .flexible = true},
                   {.title = "switched", .flexible = true},
                   {.title = "before", .right = true},
                   {.title = "after", .right = true},
                   {.title = "threshold", .right = true, .drop = 1},
                   {.title = "explains it"}});
    const size_t explaining = std::ranges::count(r_.ablations, true, &AblationRow::explains);
    const size_t most = std::clamp<size_t>(explaining + 2, 4, 10);
    for (size_t i = 0; i < std::min(sorted.size(), most); ++i) {
      const AblationRow& s = *sorted[i];
      const std::string explains = text::effect_of(s);
      t.add({cell(s.cause), cell(text::switched(s)), text::number(s.drift_before),
             text::number(s.drift_after), text::number(s.envelope),
             s.explains ? paint(kBold, explains) : explains});
    }
    table(t);
    if (sorted.size() > most) more(sorted.size() - most);
    paragraph(text::kShares, kIndent);
  }

  void probes() {
    if (r_.probes.empty()) return;
    title("Each op against its bound");
    constexpr size_t kMax = 4;
    for (size_t i = 0; i < std::min(r_.probes.size(), kMax); ++i) {
      labelled("", clean(text::probe_line(r_.probes[i])), 0, kIndent);
    }
    if (r_.probes.size() > kMax) more(r_.probes.size() - kMax);
    text::Table t({{.title = "in"},
                   {.title = "worst over all steps", .flexible = true},
                   {.title = "phase", .drop = 1},
                   {.title = "error / bound", .right = true},
                   {.title = "outside", .right = true},
                   {.title = "of", .right = true, .drop = 2}});
    size_t rows = 0;
    constexpr size_t kRows = 6;
    for (const EngineProbe& p : r_.probes) {
      for (const ProbeRow& row : p.rows) {
        if (row.outside == 0 || ++rows > kRows) continue;
        t.add({cell(p.pair), cell(row.op), cell(row.phase), paint(kRed, text::worst_of(row)),
               text::count(row.outside), text::count(row.elements)});
      }
    }
    if (!t.empty()) table(t);
    if (rows > kRows) more(rows - kRows);
  }

  void controls() {
    if (r_.controls.empty()) return;
    title("Controls");
    constexpr size_t kMax = 8;
    std::vector<const Control*> sorted;  // failed ones first
    for (const Control& c : r_.controls) sorted.push_back(&c);
    std::ranges::stable_sort(sorted, {},
                             [](const Control* c) { return c->run && !c->passed ? 0 : 1; });
    int column = 0;
    for (const Control& c : r_.controls) {
      column = std::max(column, kIndent + text::display_width(pass(c.run, c.passed)) + 2);
    }
    for (size_t i = 0; i < std::min(sorted.size(), kMax); ++i) {
      const Control& c = *sorted[i];
      std::string words = clean(c.name);
      if (!c.detail.empty()) words += fmt::format(" {} {}", dash(), clean(c.detail));
      const std::string mark = pass(c.run, c.passed);
      std::string head = std::string(kIndent, ' ') + mark +
                         std::string(column - kIndent - text::display_width(mark), ' ');
      for (const std::string& part : text::wrap(words, width_ - column)) {
        line(head + part);
        head = std::string(column, ' ');
      }
    }
    if (sorted.size() > kMax) more(sorted.size() - kMax);
  }

  void accounts() {
    if (const std::string words = text::interaction_of(r_); !words.empty()) {
      title("Interaction", "one seed, not tested");
      paragraph(words, kIndent);
    }
    const auto list = [&](std::string_view name, const std::vector<std::string>& items,
                          size_t most) {
      if (items.empty()) return;
      title(name);
      bullets(items, most);
    };
    list("Ruled out", r_.ruled_out, 6);
    list("Notes", r_.notes, 6);
    list("What next", r_.next_steps, 8);
  }

  void files() {
    if (!r_.directory.empty()) {
      title("Files");
      constexpr int kColumn = 15;
      paragraph(clean(r_.directory), kIndent);
      labelled("report.html", "to read: verdict, charts, every table; one file", kIndent, kColumn);
      labelled("report.md", "to paste into a bug filing; explains the words used here", kIndent,
               kColumn);
      labelled("report.json", "all of it, for programs", kIndent, kColumn);
      if (!r_.runs.empty()) labelled("runs/*.h5", "losses, checkpoints, digests", kIndent, kColumn);
    }
    line();
    // The last line repeats the result, because the rest may have scrolled away.
    const std::string code = fmt::format("exit code {}", exit_code(r_.verdict, r_.effect));
    const std::string both = fmt::format("effect {}, {}", to_string(r_.effect), code);
    const bool fits = text::display_width(verdict_name()) + 2 + text::display_width(both) <= width_;
    line(fmt::format("{}  {}", verdict_name(), paint(kDim, fits ? both : code)));
  }

  const Report& r_;
  const TerminalOptions& o_;
  int width_;
  std::string out_;
};

}  // namespace

std::string to_terminal(const Report& report, const TerminalOptions& options) {
  return Screen(report, options).render();
}

}  // namespace twinrun
