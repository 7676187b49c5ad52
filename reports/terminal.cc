// Writes the summary that `twinrun diagnose` prints: the verdict first, then the reasons, then what
// to do. No frame, no line wider than the terminal, colour only on request; tables are cut, with
// the rest in report.json.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "reports/axis.h"
#include "reports/drift.h"
#include "reports/report.h"
#include "reports/tables.h"
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
      : r_(report),
        o_(options),
        width_(std::max(options.width, kMinWidth)),
        axis_(text::axis_of_losses(report)) {
    for (const RunSummary& run : r_.runs) longest_ = std::max(longest_, run.losses.size());
  }

  std::string render() {
    if (!o_.whole) return answer();
    verdict();
    asked();
    findings();
    for (tables::Section& s : tables::details(r_)) {
      s.title = clean(s.title, 40);
      for (tables::Column& c : s.tables.front().columns) c.layout.title = clean(c.layout.title, 40);
      section(s);
    }
    runs();
    section(tables::drift(r_));
    section(tables::trajectories(r_));
    cures();
    section(tables::ensembles(r_));
    section(tables::ablations(r_));
    section(tables::many_cores(r_));
    section(tables::probes(r_, 4));
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

  // The words of a cell with their colour.
  std::string cell(const tables::Cell& cell) const {
    if (cell.curve != nullptr) return curve_of(*cell.curve);
    const std::string words = std::string(o_.unicode ? sign_of(cell.mark) : "") +
                              clean(cell.raw, static_cast<int>(cell.most));
    if (words.empty() || cell.mark == tables::Mark::kNone) return words;
    return paint(cell.mark == tables::Mark::kPassed   ? kGreen
                 : cell.mark == tables::Mark::kStrong ? kBold
                                                      : kRed,
                 words);
  }

  tables::Grid grid_of(const tables::Table& t) const {
    // A wide terminal has room for columns that repeat what stands elsewhere.
    const int formats = tables::kTerminal | (width_ >= 100 ? tables::kWide : 0);
    return tables::grid_of(t, formats, t.limits.terminal,
                           [&](const tables::Cell& c) { return cell(c); });
  }

  void table(const tables::Table& described) {
    const tables::Grid grid = grid_of(described);
    if (grid.rows.empty()) return;
    text::Table t(grid.columns);
    for (const auto& row : grid.rows) t.add(row);
    bool head = true;
    for (const std::string& row : t.lines(width_, kIndent)) {
      line(head ? paint(kDim, row) : row);
      head = false;
    }
    if (grid.left_out > 0) more(grid.left_out);
  }

  void section(const tables::Section& s, std::string_view aside = "") {
    if (s.tables.empty()) return;
    title(s.title, aside.empty() && s.tables.size() == 1 ? s.tables.front().caption : aside);
    if (!s.before.empty()) paragraph(clean(s.before), kIndent);
    for (const tables::Table& t : s.tables) {
      if (!t.before.empty()) paragraph(clean(t.before), kIndent);
      table(t);
    }
    if (!s.after.empty()) paragraph(clean(s.after), kIndent);
  }

  std::string verdict_name() const {
    const std::string_view name = to_string(r_.verdict);
    return o_.color ? paint(badge_of(r_.verdict), fmt::format(" {} ", name)) : std::string(name);
  }

  // Headline, where, why, what to do, effect, what was asked, files.
  std::string answer() {
    constexpr int kColumn = 16;
    headline();
    const size_t before = out_.size();
    line();
    const Finding* lead = text::first_divergence(r_);
    if (lead == nullptr && !r_.findings.empty()) lead = &r_.findings.front();
    if (lead != nullptr) {
      std::string where = text::place_of(*lead);
      for (const std::string& part :
           {lead->op, lead->place.substr(0, lead->place.find('\n')), lead->module})
        if (!part.empty()) where += (where.empty() ? "" : ", ") + part;
      if (const std::string apart = text::first_apart(r_); lead->op.empty() && !apart.empty())
        where += (where.empty() ? "" : "; ") + apart;
      labelled("where", clean(where, 200), kIndent, kColumn);
      const std::string_view said = r_.headline;
      std::string_view why = lead->sentence;
      if (!said.empty() && why.starts_with(said)) why.remove_prefix(said.size());
      if (said.find(why) == std::string::npos)
        labelled("why", clean(std::string(why), 300), kIndent, kColumn);
      labelled("number", clean(text::number_of(*lead), 160), kIndent, kColumn);
      labelled("looks like", clean(lead->fingerprint, 160), kIndent, kColumn);
    }
    for (size_t i = 0; i < std::min<size_t>(r_.cures.size(), 2); ++i)
      labelled("cure", clean(text::cured(r_.cures[i]), 300), kIndent, kColumn);
    std::string_view label = "what to do";
    for (size_t i = 0; i < std::min<size_t>(r_.next_steps.size(), 3); ++i) {
      labelled(label, clean(r_.next_steps[i], 300), kIndent, kColumn);
      label = "";
    }
    constexpr size_t kRemarks = 4;
    label = "look at this";
    for (size_t i = 0; i < std::min(r_.remarks.size(), kRemarks); ++i) {
      labelled(label, clean(r_.remarks[i], 300), kIndent, kColumn);
      label = "";
    }
    if (r_.remarks.size() > kRemarks) more(r_.remarks.size() - kRemarks);
    constexpr size_t kOpen = 3;
    label = "not examined";
    for (size_t i = 0; i < std::min(r_.open.size(), kOpen); ++i) {
      const OpenQuestion& q = r_.open[i];
      labelled(label,
               clean(fmt::format("{}{}. To examine it: {}", q.what,
                                 q.place.empty() ? "" : " at " + q.place, q.how),
                     400),
               kIndent, kColumn);
      label = "";
    }
    if (r_.open.size() > kOpen) more(r_.open.size() - kOpen);
    if (out_.size() > before + 1) line();
    for (const Question& q : questions()) {
      const Answer& a = r_.answers.*q.answer;
      // The headline, or nothing, need not be repeated.
      const bool alone = a.what.empty() || a.what == r_.headline;
      const std::string outcome =
          a.outcome == Answer::Outcome::kNotApplicable
              ? ""
              : fmt::format("{}{}", to_string(a.outcome), alone ? "" : ": ");
      labelled(
          q.key,
          outcome + (alone ? "" : clean(a.what, a.outcome == Answer::Outcome::kPartly ? 900 : 240)),
          kIndent, kColumn);
    }
    line();
    if (!r_.directory.empty())
      labelled("files",
               clean(fmt::format("{}: report.html to read, report.md to paste, report.json for "
                                 "programs",
                                 r_.directory)),
               kIndent, kColumn);
    labelled("more", "-v prints all findings, tables and notes", kIndent, kColumn);
    last_line();
    return std::move(out_);
  }

  void asked() {
    line();
    tables::Section s = tables::answers(r_);
    paragraph(s.title + ":", kIndent);
    table(s.tables.front());
  }

  void verdict() {
    headline();
    line();
    facts();
  }

  void headline() {
    const bool scenario = r_.kind == "scenario";
    const std::string meaning =
        scenario ? std::string(text::meaning(r_.verdict)) : clean(r_.headline, 400);
    const std::string badge = verdict_name() + (o_.color ? "" : ":");
    // Wrapped with what is as wide as the badge, which may hold blanks and colours.
    const std::string as_wide(static_cast<size_t>(text::display_width(badge)), '.');
    const auto parts = text::wrap(as_wide + " " + meaning, width_ - kIndent);
    for (size_t i = 0; i < parts.size(); ++i)
      line((i == 0 ? badge : std::string(kIndent, ' ')) +
           paint(kBold, i == 0 ? parts[i].substr(as_wide.size()) : parts[i]));
    if (scenario && !r_.headline.empty()) {
      line();
      paragraph(clean(r_.headline), 0);
    }
    const auto remark = [&](const std::string& words) {
      if (!words.empty()) paragraph(clean(words), 0);
    };
    remark(r_.injected);
    for (size_t i = 0; i < std::min<size_t>(r_.controls.size(), 8); ++i)
      remark(text::failure_of(r_.controls[i]));
  }

  void facts() {
    constexpr int kColumn = 15;
    if (r_.kind != "scenario") {
      labelled("judged", clean(r_.confidence), kIndent, kColumn);
      labelled("with", clean(r_.subject), kIndent, kColumn);
      labelled("what", clean(r_.scenario_name), kIndent, kColumn);
      return;
    }
    labelled("effect", clean(text::effect_of(r_)), kIndent, kColumn);
    for (size_t i = 0; i < std::min<size_t>(r_.cures.size(), 4); ++i)
      labelled("cure", clean(text::cured(r_.cures[i])), kIndent, kColumn);
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
    const std::vector<text::Telling> tellings = text::tellings_of(r_.findings);
    size_t shown = 0;
    for (size_t i = 0; i < r_.findings.size(); ++i) {
      if (!tellings[i].in_full || ++shown > kMax) continue;
      if (shown > 1) line();
      finding(r_.findings[i], i + 1);
    }
    if (shown > kMax) more(shown - kMax);
    if (const tables::Section others = tables::other_findings(r_); !others.tables.empty()) {
      line();
      table(others.tables.front());
    }
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
    for (const tables::Fact& fact : tables::facts_of(f)) row(fact.label, cell(fact.cell));
    std::string label = "evidence";
    if (const std::string_view rests_on = text::meaning(f.level); !rests_on.empty()) {
      row(label, std::string(rests_on));
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
      labelled(label, "too long to show; see report.json", indent, column);
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
  std::string curve_of(const std::vector<float>& losses) const {
    if (losses.empty()) return "";
    const size_t columns = std::min<size_t>(std::clamp(width_ - 68, 8, 32), longest_);
    const auto mine = static_cast<int>(std::max<size_t>(1, columns * losses.size() / longest_));
    if (axis_.plain()) return text::sparkline(losses, mine, axis_.low, axis_.high, o_.unicode);
    std::vector<float> parts;
    for (const float loss : losses)
      parts.push_back(!std::isfinite(loss) ? loss
                      : axis_.shows(loss)  ? static_cast<float>(axis_.part(loss))
                                           : 0.0f);
    return text::sparkline(parts, mine, 0, 1, o_.unicode);
  }

  void runs() {
    const std::string steps = text::plural(static_cast<int64_t>(longest_), "step");
    section(tables::runs(r_),
            longest_ == 0 ? ""
            : axis_.low <= axis_.high
                ? fmt::format("loss of {}, {} to {} on one {}scale", steps, text::number(axis_.low),
                              text::number(axis_.high), axis_.plain() ? "" : "logarithmic ")
                : fmt::format("loss of {}, none of them finite", steps));
  }

  void cures() {
    if (r_.cures.empty()) return;
    title("The cure, applied");
    for (const CureRow& cure : r_.cures) {
      labelled(clean(cure.run, 24), clean(text::cure_of(cure)), kIndent, kIndent + 3);
      command("", cure.command, kIndent, kIndent + 3);
    }
  }

  // A list, because details are sentences.
  void controls() {
    const tables::Section s = tables::controls(r_);
    if (s.tables.empty()) return;
    title(s.title);
    const tables::Grid grid = grid_of(s.tables.front());
    int widest = 0;
    for (const auto& row : grid.rows) widest = std::max(widest, text::display_width(row[1]));
    for (const auto& row : grid.rows) {
      const std::string pad(widest - text::display_width(row[1]) + 2, ' ');
      labelled(row[1] + pad,
               row[2].empty() ? row[0] : fmt::format("{} {} {}", row[0], dash(), row[2]), kIndent,
               kIndent + widest + 2);
    }
    if (grid.left_out > 0) more(grid.left_out);
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
    section(tables::open_questions(r_));
    list("Ruled out", r_.ruled_out, 6);
    list("Look at this", r_.remarks, 12);
    list("Notes", r_.notes, 6);
    list("What next", r_.next_steps, 8);
  }

  void files() {
    if (!r_.directory.empty()) {
      title("Files");
      constexpr int kColumn = 15;
      paragraph(clean(r_.directory), kIndent);
      labelled("report.html", "to read: verdict, charts and every table, in one file", kIndent,
               kColumn);
      labelled("report.md", "to paste into a bug report", kIndent, kColumn);
      labelled("report.json", "every number, for programs", kIndent, kColumn);
      if (!r_.runs.empty()) labelled("runs/*.h5", "losses, checkpoints, digests", kIndent, kColumn);
    }
    line();
    last_line();
  }

  void last_line() {
    // The last line repeats the result, because the rest may have scrolled away.
    const std::string code =
        o_.exit.empty() ? fmt::format("exit code {}", exit_code(r_.verdict, r_.effect)) : o_.exit;
    const std::string both =
        r_.kind == "scenario" ? fmt::format("effect {}, {}", to_string(r_.effect), code) : code;
    const bool fits = text::display_width(verdict_name()) + 2 + text::display_width(both) <= width_;
    line(fmt::format("{}  {}", verdict_name(), paint(kDim, fits ? both : code)));
  }

  const Report& r_;
  const TerminalOptions& o_;
  int width_;
  // One axis for all curves, with at most as many columns as the longest run has steps.
  text::Axis axis_;
  size_t longest_ = 0;
  std::string out_;
};

}  // namespace

std::string to_terminal(const Report& report, const TerminalOptions& options) {
  return Screen(report, options).render();
}

}  // namespace twinrun
