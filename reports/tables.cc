// Describes the tables of a report. What is said here is said in every format.
#include "reports/tables.h"

#include <fmt/format.h>

#include <algorithm>

#include "reports/drift.h"

namespace twinrun::tables {
namespace {

Cell words(std::string_view raw, size_t most = 120) { return {Look::kWords, raw, most}; }
Cell prose(std::string_view raw, size_t most) { return {Look::kProse, raw, most}; }
Cell code(std::string_view raw, size_t most = 160) { return {Look::kCode, raw, most}; }

Cell marked(Cell cell, bool condition, Mark mark = Mark::kBad) {
  if (condition) cell.mark = mark;
  return cell;
}

std::string count_of(size_t n) { return text::count(static_cast<int64_t>(n)); }

bool same_outcome(const RunSummary& a, const RunSummary& b) {
  return !a.root_digest.empty() && a.root_digest == b.root_digest && a.engine == b.engine &&
         a.steps == b.steps && a.ended == b.ended && a.eval_loss == b.eval_loss &&
         a.eval_accuracy == b.eval_accuracy;
}

Section section(std::string title, Table table, std::string after = "") {
  if (table.rows.empty()) return {};
  return {std::move(title), {std::move(table)}, "", std::move(after)};
}

// The frames of a place, the innermost first, in one line.
std::string lines_of(std::string place) {
  for (size_t at = 0; (at = place.find('\n')) != std::string::npos;)
    place.replace(at, 1, ", called by ");
  return place;
}

}  // namespace

Cell::Cell(Look l, std::string_view words, size_t longest)
    // Keep only as much as can be shown, since the text may be megabytes.
    : raw(words.substr(0, 4 * std::max<size_t>(longest, 120) + 16)), look(l), most(longest) {}

std::string_view sign_of(Mark mark) {
  return mark == Mark::kPassed ? "✓ " : mark == Mark::kFailed ? "✗ " : "";
}

Section runs(const Report& r) {
  // An imported step has no held-out data: a terminal shows its last loss then.
  const bool evaluated = !r.runs.empty() && r.runs.front().evaluated;
  Table t{.columns = {left("run"), wraps("engine", kWide | kPages), wraps("what it is"),
                      left("settings", kPages), right("steps", kWide | kPages),
                      left("loss", kTerminal, 1), right("last loss", evaluated ? kPages : kAll),
                      right("held-out loss"), right("accuracy"), left("digest", kAll, 2),
                      right("time", kAll, 3), wraps("ended")},
          .limits = {.terminal = 12}};
  const auto add = [&](const RunSummary& run, const std::string& name, int formats) {
    Cell curve = "";
    curve.curve = &run.losses;
    t.add({code(name, 24), words(text::engine_name(run.engine)), words(run.meaning),
           words(run.settings, 160), text::count(run.steps), curve, text::number(run.train_loss, 5),
           run.evaluated ? text::number(run.eval_loss, 5) : "",
           run.scored ? text::percent(run.eval_accuracy) : "",
           run.root_digest.empty() ? "" : code(text::digest8(run.root_digest), 32),
           run.kept ? "kept" : text::duration(run.seconds),
           words(run.ended.completed() ? "" : to_string(run.ended), 160)},
          formats);
  };
  for (const RunSummary& run : r.runs) add(run, run.name, kPages);
  // In the terminal, a control with the same bits shares the row of its run: "R = R2".
  for (size_t i = 0; i < r.runs.size(); ++i) {
    const RunSummary& run = r.runs[i];
    std::string name = run.name;
    while (i + 1 < r.runs.size() && same_outcome(run, r.runs[i + 1]))
      name += " = " + r.runs[++i].name;
    add(run, name, kTerminal);
  }
  return section("Runs", std::move(t));
}

Section drift(const Report& r) {
  Table t{.caption = "where the loss curves diverge",
          .columns = {left("pair"), wraps("isolates"), right("from step"), right("largest"),
                      right("last step", kAll, 1)}};
  for (const text::DriftRow& row : text::drift_of(r)) {
    t.add({code(row.pair, 40), row.isolates,
           row.first_step ? text::count(*row.first_step) : "never",
           row.first_step ? text::number(row.largest) : "same bits",
           row.first_step ? text::signed_number(row.last) : ""});
  }
  return section("Drift of the loss", std::move(t));
}

Section trajectories(const Report& r) {
  if (r.trajectories.empty()) return {};
  const size_t seeds = r.trajectories.front().differences.size();
  Table t{.caption = seeds == 1 ? "difference of one seed"
                                : fmt::format("mean difference over {} paired seeds", seeds),
          .columns = {left("pair"), left("what it is", kPages), wraps("metric"),
                      right("seeds", kPages), right("mean"), left("interval"),
                      right("would detect", kAll, 1), right("margin", kAll, 2), left("effect")}};
  for (const TrajectoryRow& row : r.trajectories) {
    const std::string outcome = text::outcome_of(row);
    t.add({code(row.pair, 40), words(row.meaning), words(row.metric, 80),
           count_of(row.differences.size()), text::change_of(row, row.mean), text::interval_of(row),
           row.detectable > 0 ? text::size_of(row, row.detectable) : "", text::margin_of(row),
           marked(words(outcome, 40), row.outcome == PairedOutcome::kHarmful)});
  }
  return section("Does it matter", std::move(t), text::trials_of(r));
}

Section ensembles(const Report& r) {
  Table t{
      .caption = "median distance from the others",
      .columns = {left("run"), wraps("metric"), right("steps", kAll, 2), right("members", kAll, 1),
                  right("distance"), left("members' range"), right("p"), left("outcome")}};
  for (const EnsembleRow& row : r.ensembles) {
    t.add({code(row.run, 40), words(row.metric, 80), text::count(row.steps),
           text::count(row.members), text::number(row.subject),
           fmt::format("{} to {}", text::number(row.low), text::number(row.high)),
           fmt::format("{:.3f}", row.p),
           marked(words(std::string(to_string(row.outcome)), 40),
                  row.outcome == EnsembleOutcome::kOutside)});
  }
  return section("Among conforming engines", std::move(t),
                 "The members are simulated engines that conform to the declaration; all start "
                 "from initial weights moved by one unit in the last place. Outside: farther away "
                 "than every member, and so far as a conforming engine lies with a probability "
                 "below 1e-4.");
}

Section ablations(const Report& r) {
  std::vector<const AblationRow*> sorted;
  for (const AblationRow& row : r.ablations) sorted.push_back(&row);
  std::ranges::stable_sort(sorted, std::greater<>(), &AblationRow::explains);
  const size_t explaining = std::ranges::count(r.ablations, true, &AblationRow::explains);
  Table t{.caption = "relative change of one step",
          .columns = {wraps("cause"), wraps("ablation"), right("before"), right("after"),
                      right("threshold", kAll, 1), left("explains it"), left("note", kPages)},
          .limits = {.terminal = std::clamp<size_t>(explaining + 2, 4, 10),
                     .markdown = 24,
                     .open_markdown = 10}};
  for (const AblationRow* row : sorted) {
    t.add({code(row->cause, 120), words(text::ablation_of(*row), 80),
           text::number(row->drift_before), text::number(row->drift_after),
           text::number(row->envelope),
           marked(words(text::effect_of(*row), 80), row->explains, Mark::kStrong),
           words(row->note, 200)});
  }
  return section("Each sharding cause, undone and added", std::move(t),
                 "The step is one of the reference in binary64, from the same state. Shares are "
                 "Shapley values of the squared change: they exceed 100% where causes partly "
                 "cancel.");
}

constexpr double kAlmost = 0.99;  // of a bound

Section probes(const Report& r, size_t most) {
  if (r.probes.empty()) return {};
  Section s{.title = "Each op against its bound",
            .before =
                "Recomputed in double precision on the engine's own inputs. A single "
                "rounding may reach 1.00 of its bound."};
  for (size_t i = 0; i < std::min(r.probes.size(), most); ++i) {
    const EngineProbe& p = r.probes[i];
    Table t{.before = text::probe_line(p) + ".",
            .columns = {wraps("op"), left("kind", kPages), left("phase", kAll, 1),
                        left("0.001 to 10,000 bounds, log scale", kHtml), right("error / bound"),
                        right("outside"), right("elements", kAll, 2),
                        right("without a bound", kPages), right("operand rounding", kPages)},
            .limits = {.terminal = 6, .html = 400, .open_markdown = 6, .open_html = 12}};
    // A single rounding reaches its bound and says nothing by that: sums and products come first.
    std::vector<const ProbeRow*> rows;
    for (const ProbeRow& row : p.rows) rows.push_back(&row);
    std::stable_partition(rows.begin(), rows.end(), [](const ProbeRow* row) {
      return row->outside > 0 || row->worst_ratio < kAlmost || row->worst_ratio > 1;
    });
    for (const ProbeRow* const each : rows) {
      const ProbeRow& row = *each;
      Cell bar = "";
      bar.bar = &row;
      t.add({code(row.op), words(row.kind, 80), words(row.phase, 40), bar,
             marked(text::worst_of(row), row.outside > 0), text::count(row.outside),
             text::count(row.elements), row.untestable == 0 ? "" : text::count(row.untestable),
             row.operand_residual < 0 ? "" : text::power_of_two(row.operand_residual)},
            row.outside > 0 ? kAll : kPages);
    }
    s.tables.push_back(std::move(t));
  }
  if (r.probes.size() > most)
    s.after = fmt::format("{} more in report.json", r.probes.size() - most);
  return s;
}

Section many_cores(const Report& r) {
  const ManyCores& m = r.many_cores;
  if (m.rows.empty()) return {};
  Table t{.columns = {right("cores"), right("samples of a core"), right("gradient factor"),
                      right("samples of batch norm"), right("noise of its mean"),
                      right("additions", kAll, 1), right("rounding, at most"),
                      right("typical", kAll, 2)}};
  const auto rounding = [](double bound) { return bound > 0 ? text::power_of_two(bound) : ""; };
  const auto factor = [](double f) {
    return f > 0 && f < 1 ? "1/" + text::number(1 / f, 4) : text::number(f, 4);
  };
  for (const ManyCoresRow& row : m.rows) {
    t.add({marked(text::count(row.cores), row.asked, Mark::kStrong), text::count(row.samples),
           row.gradient ? factor(*row.gradient) : "not reduced",
           row.normalised > 0 ? text::count(row.normalised) : "",
           row.normalised > 0 ? text::number(row.statistic_noise) : "", text::count(row.additions),
           rounding(row.rounding_bound), rounding(row.rounding_typical)});
  }
  Section s{.title = "Many cores",
            .tables = {std::move(t)},
            .before = "What the program gives for the same batch on other numbers of cores."};
  for (size_t i = 0; i < std::min<size_t>(m.sentences.size(), 8); ++i)
    s.tables.push_back({.before = std::string(m.sentences[i].substr(0, 1000))});
  return s;
}

Section controls(const Report& r) {
  const auto failed = [](const Control& c) { return c.run && !c.passed; };
  Table t{.columns = {left("control"), left("result"), left("detail")}};
  for (const bool first : {true, false}) {
    for (const Control& c : r.controls) {
      if (failed(c) != first) continue;
      Cell result = !c.run ? "not run" : c.passed ? "ok" : "FAILED";
      if (c.run) result.mark = c.passed ? Mark::kPassed : Mark::kFailed;
      t.add({words(c.name, 200), result, prose(c.detail, 400)});
    }
  }
  return section("Controls", std::move(t));
}

Section checklist(const Report& r) {
  Table t{.columns = {left("point"), left("done"), wraps("what was run"), wraps("what to run")},
          .limits = {.markdown = 16}};
  for (const ChecklistRow& row : r.checklist) {
    Cell done = row.done ? "yes" : "no";
    if (row.done) done.mark = Mark::kPassed;
    t.add({words(row.point, 120), done, words(row.what, 400), code(row.command, 1000)});
  }
  return section("Before filing", std::move(t));
}

Section environment(const Report& r) {
  Table t{.columns = {left("key"), left("value")},
          .limits = {.markdown = 40, .html = 60, .open_markdown = 12}};
  for (const auto& [key, value] : r.environment) t.add({words(key, 80), words(value, 300)});
  return section("Environment", std::move(t));
}

Section other_findings(const Report& r) {
  Table t{.caption = "also wrong, by the same fault or another",
          .columns = {right("finding"), wraps("also wrong"), right("step"),
                      right("core", kWide | kPages), wraps("error, and what is allowed"),
                      wraps("looks like", kAll, 1)}};
  const std::vector<text::Telling> tellings = text::tellings_of(r.findings);
  for (size_t i = 0; i < r.findings.size(); ++i) {
    const Finding& f = r.findings[i];
    if (tellings[i].in_full) continue;
    t.add({count_of(i + 1), code(f.op), f.step ? text::count(*f.step) : "",
           f.core ? fmt::format("{}", *f.core) : "", words(text::number_of(f), 200),
           tellings[i].as > 0 ? fmt::format("as finding {}", tellings[i].as)
                              : words(f.fingerprint, 200)});
  }
  return section("Findings", std::move(t));
}

Table bounds(const Report& r) {
  Table t{.columns = {left("#"), left("number, and what is allowed"),
                      left("where the bound comes from"), left("bits")},
          .limits = {.markdown = 24}};
  for (const Finding& f : r.findings) {
    t.add({fmt::format("{}", t.rows.size() + 1), words(text::number_of(f), 300),
           words(f.bound_source, 300), code(f.hex, 240)});
  }
  return t;
}

Table losses(const Report& r, size_t most_curves, size_t most_steps) {
  Table t{.columns = {right("step")}, .limits = {.markdown = 24, .open_markdown = 0}};
  std::vector<const std::vector<float>*> curves;
  size_t steps = 0;
  for (const text::Curve& curve : text::curves_of(r)) {
    if (curves.size() == most_curves) break;
    t.columns.push_back(right(curve.names));
    curves.push_back(curve.losses);
    steps = std::max(steps, curve.losses->size());
  }
  const size_t points = std::min(steps, most_steps);
  for (size_t i = 0; i < points; ++i) {
    const size_t step = points == 1 ? 0 : i * (steps - 1) / (points - 1);
    std::vector<Cell> row = {fmt::format("{}", step)};
    for (const auto* curve : curves)
      row.emplace_back(step < curve->size() ? text::number((*curve)[step], 9) : "");
    t.add(std::move(row));
  }
  t.caption =
      points == steps ? "loss of each step" : fmt::format("loss at some of {} steps", steps);
  return t;
}

Section answers(const Report& r) {
  Table t{.columns = {left("question"), left("answer"), wraps("what shows it")},
          .limits = {.terminal = 5}};
  t.caption = "five questions of one training step";
  for (const Question& q : questions()) {
    const Answer& a = r.answers.*q.answer;
    const Mark mark = a.outcome == Answer::Outcome::kYes                       ? Mark::kPassed
                      : a.outcome == Answer::Outcome::kNo && q.key != "effect" ? Mark::kBad
                                                                               : Mark::kNone;
    Cell outcome(std::string{to_string(a.outcome)});
    outcome.mark = mark;
    t.add({Cell(tables::capitalized(std::string(q.words))), outcome, words(a.what, 900)});
  }
  return {"What was asked, and what came out", {std::move(t)}};
}

Section open_questions(const Report& r) {
  Section s{"Not examined, but needed"};
  Table t{.columns = {wraps("what"), right("times"), left("where"), wraps("how to examine it")}};
  for (const OpenQuestion& q : r.open)
    t.add({words(q.what, 300), text::count(q.times), code(q.place, 200), words(q.how, 300)});
  if (!t.rows.empty()) s.tables.push_back(std::move(t));
  return s;
}

std::vector<Section> details(const Report& r) {
  std::vector<Section> out;
  for (const DetailTable& d : r.details) {
    Table t{.limits = {.terminal = 8, .markdown = 24, .html = 400}};
    for (size_t i = 0; i < d.columns.size(); ++i) {
      const bool numbers = !d.rows.empty() && d.rows.front()[i].index() != 0;
      t.columns.push_back(numbers ? right(d.columns[i].title) : wraps(d.columns[i].title));
    }
    for (const auto& row : d.rows) {
      std::vector<Cell> cells;
      for (const DetailValue& value : row) {
        if (const auto* number = std::get_if<double>(&value)) {
          cells.emplace_back(std::isnan(*number) ? "" : text::number(*number));
        } else if (const auto* whole = std::get_if<int64_t>(&value)) {
          cells.emplace_back(text::count(*whole));
        } else {
          cells.push_back(words(std::get<std::string>(value), 300));
        }
      }
      t.add(std::move(cells));
    }
    // A column that says nothing of any row is in report.json only.
    for (size_t i = 0; i < t.columns.size() && !t.rows.empty(); ++i) {
      if (std::ranges::all_of(t.rows, [&](const Table::Row& row) {
            return row.cells[i].raw.empty() || row.cells[i].raw == "-1";
          }))
        t.columns[i].in = 0;
    }
    out.push_back({d.title, {std::move(t)}, d.note});
  }
  return out;
}

std::vector<Fact> facts_of(const Finding& f) {
  const std::string op = f.op_kind.empty() ? f.op : fmt::format("{} ({})", f.op, f.op_kind);
  std::vector<Fact> out = {{"where", words(text::place_of(f))},
                           {"op", code(f.op.empty() ? "" : op, 300)},
                           {"line", code(lines_of(f.place), 2000)},
                           {"module", code(f.module, 300)},
                           {"elements", prose(f.elements, 300)},
                           {"looks like", words(f.fingerprint, 300)},
                           {"bits", code(f.hex, 400)},
                           {"number", prose(text::number_of(f), 300)},
                           {"bound", prose(f.bound_source, 400)}};
  std::erase_if(out, [](const Fact& fact) { return fact.cell.raw.empty(); });
  return out;
}

Grid grid_of(const Table& table, int formats, size_t most,
             const std::function<std::string(const Cell&)>& write) {
  Grid grid;
  for (const Column& c : table.columns)
    if ((c.in & formats) != 0) grid.columns.push_back(c.layout);
  for (const Table::Row& row : table.rows) {
    if ((row.in & formats) == 0) continue;
    if (grid.rows.size() >= most) {
      ++grid.left_out;
      continue;
    }
    std::vector<std::string>& out = grid.rows.emplace_back();
    for (size_t i = 0; i < row.cells.size(); ++i)
      if ((table.columns[i].in & formats) != 0) out.push_back(write(row.cells[i]));
  }
  return grid;
}

std::string capitalized(std::string words) {
  if (!words.empty() && words[0] >= 'a' && words[0] <= 'z') words[0] += 'A' - 'a';
  return words;
}

}  // namespace twinrun::tables
