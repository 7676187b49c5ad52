// Ticks the points of the list before filing from what the report holds.
#include "harness/diagnose/checklist.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/host/command.h"
#include "reports/text.h"

namespace twinrun {
namespace {

using Row = ChecklistRow;

class Points {
 public:
  Points(const DiagnosisState& d, const Report& r) : d_(d), r_(r), e_(d.evidence) {}

  std::vector<Row> all() const {
    std::vector<Row> rows = {one_core(), repeats(), same_start(), seeds(), sharding()};
    for (auto more : {precision(), known_good()}) {
      if (!more.point.empty()) rows.push_back(std::move(more));
    }
    rows.push_back(versions());
    rows.push_back(smallest());
    return rows;
  }

 private:
  bool imported() const { return d_.experiment.imported != nullptr; }
  const RunSummary* run(std::string_view name) const {
    const auto found = std::ranges::find(r_.runs, name, &RunSummary::name);
    return found == r_.runs.end() ? nullptr : &*found;
  }

  // The command of this diagnosis with more settings, and with seeds.
  std::string again(const std::string& settings = "") const {
    std::string command = r_.command;
    constexpr std::string_view kQuick = " --quick";
    if (const size_t at = command.find(kQuick); at != std::string::npos)
      command.erase(at, kQuick.size());
    return command.empty() ? "" : command + settings;
  }

  Row one_core() const {
    Row row{"one core", false, "", ""};
    const RunSummary* e1 = run("E1");
    if (!d_.sharded() && (!imported() || d_.experiment.imported->step.sharding.cores == 1)) {
      row.done = run("T") != nullptr;
      row.what = row.done ? "the subject ran on one core" : "the subject was not run";
    } else if (e1 != nullptr) {
      row.done = true;
      const auto apart = std::ranges::find(r_.state_divergences, "E1 - R1", &StateDivergence::pair);
      row.what = fmt::format("the engine on one core, {}: {}", text::plural(e1->steps, "step"),
                             apart == r_.state_divergences.end() ? "not compared with the reference"
                             : apart->first_step
                                 ? fmt::format("its bits differ from the reference's after step {}",
                                               *apart->first_step)
                                 : "the reference's bits");
      return row;
    } else if (imported()) {
      row.what =
          "a step given as text has the cores that it was written for: give the same step on "
          "one device as --whole";
      return row;
    } else {
      row.what = "the engine did not run on one core";
    }
    if (!row.done) row.command = again(" --set tpu.cores=1");
    return row;
  }

  Row repeats() const {
    Row row{"seeded and deterministic", false, "", ""};
    std::string said;
    int passed = 0;
    for (const Control& c : r_.controls) {
      if (c.kind != ControlKind::kReferenceRepeats && c.kind != ControlKind::kSubjectRepeats)
        continue;
      passed += c.run && c.passed ? 1 : 0;
      said += fmt::format("{}{}: {}", said.empty() ? "" : "; ", c.name,
                          !c.run     ? "not run"
                          : c.passed ? "the same bits"
                                     : "other bits");
    }
    row.done = passed >= 2;
    row.what = fmt::format("seed {}; {}", d_.experiment.scenario.seed,
                           said.empty() ? "no run was repeated" : said);
    if (!row.done) row.command = again();
    return row;
  }

  Row same_start() const {
    const bool both = run("R") != nullptr && run("T") != nullptr;
    return {"the same initial checkpoint and data", both,
            both
                ? "both sides begin with init.h5 of the results folder and are fed the same batches"
                : "the subject was not run",
            both ? "" : again()};
  }

  Row seeds() const {
    Row row{"beyond chance: several seeds", false, "", ""};
    const size_t n = r_.trajectories.empty() ? 0 : r_.trajectories.front().differences.size();
    row.done = n > 1;
    row.what = row.done     ? fmt::format("{} were trained on both sides", text::plural(n, "seed"))
               : imported() ? "a step without held-out batches is not tested"
                            : "one seed only";
    if (!row.done && !imported()) row.command = again(" --set diagnose.seeds=3");
    return row;
  }

  Row sharding() const {
    Row row{"loss reduction, batch per core, learning rate over the cores", false, "", ""};
    const MeaningResult& m = e_.meaning;
    const int64_t cores = d_.experiment.sharding.cores;
    if (!d_.sharded()) {
      row.done =
          !imported() || !r_.proofs.empty() || d_.experiment.imported->step.sharding.cores == 1;
      row.what =
          row.done ? "one core: nothing is split" : "not compared with the step on one device";
      return row;
    }
    row.done = !m.steps.empty();
    row.what = fmt::format("{} on {} cores: {}",
                           text::plural(d_.experiment.scenario.train.batch, "sample"), cores,
                           row.done ? fmt::format("gradient, update and statistics were compared "
                                                  "with the whole batch's in binary64, {} undone",
                                                  text::plural(m.causes.size(), "cause"))
                                    : "not compared with the whole batch");
    if (!row.done) row.command = again();
    return row;
  }

  Row precision() const {
    const std::string& asked = d_.experiment.scenario.tpu.precision;
    if (d_.options.subject != "tpu" || imported()) return {};
    const bool finest = asked == "f32" || asked == "highest";
    return {"the finest precision of products", finest,
            fmt::format("tpu.precision = \"{}\"", asked),
            finest ? "" : again(" --set tpu.precision=highest")};
  }

  Row known_good() const {
    Row row{"a job that is known to be good, on the same machine", false, "", ""};
    const auto emulator = std::ranges::find_if(
        r_.controls, [](const Control& c) { return c.kind == ControlKind::kEmulator && c.run; });
    if (d_.options.make_subject) return {};
    row.done = emulator != r_.controls.end() && emulator->passed;
    row.what = row.done ? emulator->name : "not part of a diagnosis";
    if (!row.done)
      row.command = fmt::format("twinrun doctor --engine {}", shell_word(d_.options.subject));
    return row;
  }

  Row versions() const {
    const Capabilities& s = e_.subject;
    const auto ours = r_.environment.find("version");
    return {"versions", !s.name.empty(),
            fmt::format("{}{}{}; twinrun {}; the rest under Environment",
                        s.name.empty() ? "the engine did not start" : s.name,
                        s.settings.empty() ? "" : " ", s.settings,
                        ours == r_.environment.end() ? "?" : ours->second),
            ""};
  }

  Row smallest() const {
    Row row{"the smallest case, packed", false, "not part of a diagnosis", ""};
    if (!d_.options.make_subject && !r_.directory.empty())
      row.command = fmt::format("twinrun bundle {} -o case.zip", shell_word(r_.directory));
    return row;
  }

  const DiagnosisState& d_;
  const Report& r_;
  const Evidence& e_;
};

}  // namespace

std::vector<ChecklistRow> checklist(const DiagnosisState& diagnosis, const Report& report) {
  return Points(diagnosis, report).all();
}

}  // namespace twinrun
