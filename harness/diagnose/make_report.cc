// Fills the Report from evidence and judgement. It copies numbers and decides nothing.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "harness/diagnose/checklist.h"
#include "harness/diagnose/findings.h"
#include "harness/diagnose/many_cores.h"
#include "harness/diagnose/ruled_out.h"
#include "harness/diagnose/runs.h"
#include "harness/diagnose/stages.h"
#include "harness/experiment/imported.h"
#include "harness/host/environment.h"
#include "program/base/digest.h"
#include "reports/run_names.h"
#include "reports/text.h"
#include "scenarios/conventions.h"

namespace twinrun {
namespace {

std::string settings_of(const Program& p) {
  if (p.sharding.cores == 1) return fmt::format("batch {}", p.batch);
  if (p.recipe == nullptr) return fmt::format("{} cores, sharded by its user", p.sharding.cores);
  return fmt::format("{} cores x {}, {} all-reduce, batch norm {}{}", p.sharding.cores, p.batch,
                     !p.sharding.reduce_gradients               ? "no"
                     : p.sharding.reduction == Reduction::kMean ? "mean"
                                                                : "sum",
                     p.sharding.batchnorm == BatchNormSync::kPerCore  ? "per core"
                     : p.sharding.batchnorm == BatchNormSync::kSynced ? "synced"
                                                                      : "of averaged variances",
                     p.optimizer.clip != OptimizerSpec::Clip::kNone &&
                             p.sharding.clipping == Clipping::kBeforeAllReduce
                         ? ", clipped before the all-reduce"
                         : "");
}

// The digest of each core's state. What cores share is digested once.
std::vector<std::string> digests_of(const States& states, const Program& program) {
  std::vector<std::string> out;
  std::vector<std::pair<const std::byte*, Digest>> known(program.state.size());
  for (const ReplicaState& core : states) {
    DigestBuilder builder;
    for (size_t i = 0; i < std::min(core.vars.size(), program.state.size()); ++i) {
      if (known[i].first != core.vars[i].raw())
        known[i] = {core.vars[i].raw(), digest(core.vars[i])};
      builder.add(program.state[i].name);
      builder.add(known[i].second);
    }
    out.push_back(builder.finish().hex());
  }
  return out;
}

RunSummary summary(const std::string& name, const RunResult& run, const Program& program) {
  RunSummary s;
  s.name = name;
  s.engine = run.file.engine;
  s.settings = settings_of(program);
  s.meaning = text::brief_of_run(name);
  if (name == "T" && program.sharding.cores == 1) s.meaning = "subject";
  if (name == "R" && program.sharding.cores > 1) s.meaning = "reference";
  s.root_digest = run.file.root_digest().hex();
  s.steps = static_cast<int64_t>(run.file.steps.size());
  for (const StepScalars& step : run.file.steps) s.losses.push_back(step.loss);
  if (!s.losses.empty()) s.train_loss = s.losses.back();
  s.evaluated = !run.file.evaluations.empty();
  s.scored = s.evaluated && !std::isnan(run.file.evaluations.back().accuracy);
  if (s.evaluated) {
    s.eval_loss = run.file.evaluations.back().loss;
    if (s.scored) s.eval_accuracy = run.file.evaluations.back().accuracy;
  }
  s.seconds = run.seconds;
  s.kept = run.kept;
  s.ended = run.file.ended;
  s.core_digests = digests_of(run.states, program);
  return s;
}

// For each pair of runs: the step from which on their states differ.
std::vector<StateDivergence> state_divergences(DiagnosisState& diagnosis) {
  std::vector<StateDivergence> out;
  for (const auto& [left, right] : std::initializer_list<std::pair<const char*, const char*>>{
           {"R2", "R"}, {"E1", "R1"}, {"S", "R"}, {"T", "S"}, {"T", "R"}}) {
    const bool shown =
        diagnosis.own_s() || (left != std::string_view("S") && right != std::string_view("S"));
    if (!shown || !diagnosis.runs.contains(left) || !diagnosis.runs.contains(right)) continue;
    const RunFile &a = diagnosis.runs[left].file, &b = diagnosis.runs[right].file;
    const auto steps =
        static_cast<int64_t>(std::min(a.state_digests.size(), b.state_digests.size()));
    if (steps > 0)
      out.push_back({fmt::format("{} - {}", left, right), steps, first_difference(a, b)});
  }
  return out;
}

// Program text of the ops that findings name, of their operands, and of the layers in which a
// sharding cause acts; "" if there are none.
std::string excerpt(const Program& program, const std::vector<Coupling>& couplings,
                    const std::vector<Finding>& findings) {
  const std::string text = to_text(program);
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  std::vector<bool> wanted(static_cast<size_t>(program.graph.size()), false);
  size_t count = 0;
  const auto want = [&](ValueId id) {
    count += wanted[static_cast<size_t>(id)] ? 0 : 1;
    wanted[static_cast<size_t>(id)] = true;
  };
  for (const Finding& f : findings) {
    const ValueId id = f.op.empty() ? kNoValue : program.graph.find(f.op);
    if (id == kNoValue || count > 24) continue;
    for (ValueId operand : program.graph.op(id).operands) want(operand);
    want(id);
  }
  for (const Coupling& c : couplings) {
    if (std::ranges::find(findings, c.cause, &Finding::cause) == findings.end()) continue;
    for (ValueId id = 0; count <= 24 && id < program.graph.size(); ++id) {
      if (program.graph.op(id).name.starts_with(c.layer + "/")) want(id);
    }
  }
  if (count == 0) return "";
  // First the lines that describe the program, then one line per op.
  size_t head = 0;
  while (head < lines.size() && !lines[head].starts_with("%")) ++head;
  std::string out;
  for (size_t i = 0; i < head; ++i) out += lines[i] + "\n";
  for (ValueId id = 0; id < program.graph.size(); ++id) {
    if (wanted[static_cast<size_t>(id)]) out += lines[head + static_cast<size_t>(id)] + "\n";
  }
  return out;
}

// For a run in which nothing is outside: how many elements were checked, and how near the sums come
// to their bounds. (Ops with a single rounding may always reach theirs.)
std::string inside(const Lockstep& probe, const Program& asked, const EngineProbe& summary) {
  const Program& ran = probe.executed_program() != nullptr ? *probe.executed_program() : asked;
  for (const ProbeRow& row : summary.rows) {
    const ValueId id = ran.graph.find(row.op);
    if (id != kNoValue && BiasWatch::scored(ran.graph.op(id)))
      return inside_text(summary, row.op, row.worst_ratio);
  }
  return inside_text(summary, "", 0);
}

// Faults that were injected on purpose, and whether they changed bits. The log is read only here,
// after the verdict, so that it cannot influence it.
std::string injected(DiagnosisState& diagnosis) {
  std::string faults;
  for (const FaultSpec& fault : diagnosis.faults)
    faults += (faults.empty() ? "" : "; ") + fault.text;
  if (faults.empty()) return "";
  const std::scoped_lock lock(diagnosis.fault_log->mutex);
  auto first = diagnosis.fault_log->first_step();
  if (diagnosis.options.ranks != nullptr) {  // each knows what changed on its own cores
    constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
    const int64_t mine = first.value_or(kNever);
    int64_t least = kNever;
    for (const auto& theirs :
         from_all_ranks(*diagnosis.options.ranks, std::as_bytes(std::span(&mine, 1)))) {
      int64_t step = 0;
      std::memcpy(&step, theirs.data(), sizeof(step));
      least = std::min(least, step);
    }
    first = least == kNever ? std::nullopt : std::optional(least);
  }
  return fmt::format("Injected on purpose: {}; {}.", faults,
                     diagnosis.fault_log->runs.empty() ? "the subject was not run"
                     : first ? fmt::format("it changed bits from step {} on", *first)
                             : "it changed no bit of any run");
}

// How to start the same diagnosis again. Empty for a subject without an engine name (a drill's),
// which another process cannot start.
AskedOf asked_of(const DiagnosisState& diagnosis) {
  if (diagnosis.options.make_subject) return {};
  AskedOf asked{diagnosis.options.baseline, diagnosis.options.subject, {}, diagnosis.options.quick};
  for (const FaultSpec& fault : diagnosis.options.faults) asked.faults.push_back(fault.text);
  keep_files(diagnosis.experiment.scenario.program_files, asked.files);
  return asked;
}

}  // namespace

Report make_report(DiagnosisState& diagnosis, const Judgement& j) {
  const Scenario& s = diagnosis.experiment.scenario;
  const Evidence& e = diagnosis.evidence;
  Report r;
  r.scenario_name = s.name;
  r.scenario_description = s.description;
  r.scenario_digest = scenario_digest(s).hex();
  r.scenario_toml = resolved_toml(s);
  const ImportedRun* imported = diagnosis.experiment.imported.get();
  r.subject = fmt::format(
      "{}, {}{}{}{}", diagnosis.options.subject,
      text::plural(imported ? imported->step.sharding.cores : diagnosis.experiment.sharding.cores,
                   "core"),
      e.subject.settings.empty() && e.subject.ours ? "" : ", ",
      e.subject.ours               ? ""
      : e.subject.settings.empty() ? e.subject.name
                                   : e.subject.name + " ",
      e.subject.settings);
  r.command = diagnosis.options.command;
  r.asked = asked_of(diagnosis);
  r.injected = injected(diagnosis);
  r.verdict = j.verdict;
  r.effect = j.effect;
  r.effect_metric = j.effect_metric;
  r.effect_text = j.effect_text;
  r.headline = j.headline;
  r.verdict_row = j.row;
  r.confidence = j.confidence;
  r.findings = j.findings;
  r.next_steps = j.next_steps;
  if (j.to_file)
    r.next_steps.insert(r.next_steps.begin(),
                        r.injected.empty() ? "file it: report.md is made to be pasted"
                                           : "nothing to file: the fault was put there on purpose");
  r.remarks = j.remarks;
  r.notes = diagnosis.options.notes;
  r.notes.insert(r.notes.end(), j.notes.begin(), j.notes.end());
  if (const std::string coverage = coverage_text(e.step_coverage); !coverage.empty())
    r.notes.push_back(coverage);
  for (const char* name : {"R", "R2", "R1", "E1", "S", "T", "U", "RL", "L"}) {
    const auto run = diagnosis.runs.find(name);
    if (run != diagnosis.runs.end() && (diagnosis.own_s() || run->first != "S")) {
      r.runs.push_back(summary(name, run->second, diagnosis.programs[name]));
    }
  }
  r.loss_band = diagnosis.loss_band;
  r.state_divergences = state_divergences(diagnosis);
  r.weight_drift = diagnosis.weight_drift;
  r.step_coverage = e.step_coverage;
  r.controls = e.controls;
  const auto add_probe = [&](const auto& probe, const char* run) {
    const auto done = diagnosis.runs.find(run);
    if (!probe || done == diagnosis.runs.end()) return;  // the engine may have failed in it
    EngineProbe summary = probe->summary(run, static_cast<int64_t>(done->second.file.steps.size()));
    if (!summary.rows.empty()) r.probes.push_back(std::move(summary));  // else no op was shown
  };
  add_probe(diagnosis.probe_t, "T");
  add_probe(diagnosis.probe_e1, "E1");
  const bool acquitted =
      j.verdict == VerdictClass::kNoise || j.verdict == VerdictClass::kInconclusive;
  if (acquitted && diagnosis.probe_t && diagnosis.runs.contains("T") && e.level != 'C' &&
      !r.probes.empty() && !r.findings.empty()) {
    r.findings.front().evidence.insert(
        r.findings.front().evidence.begin(),
        inside(*diagnosis.probe_t, diagnosis.programs["T"], r.probes.front()));
  }
  // Without a screen, the steps between the probed ones were not looked at.
  const std::string& probe = s.diagnose.probe;
  if (acquitted && !r.probes.empty() && probe != "auto" &&
      r.probes.front().steps_probed < r.probes.front().steps)
    r.notes.push_back(fmt::format(
        "Of the {} steps of the subject the ops of {} were judged (diagnose.probe = \"{}\"); "
        "nothing is said of the others.",
        r.probes.front().steps, r.probes.front().steps_probed, probe));
  for (Finding& f : r.findings) {
    if (f.cause == "reference_diverges")
      tell_losses(f,
                  std::ranges::find(r.runs, e.reference_non_finite_run, &RunSummary::name)->losses);
  }
  if (diagnosis.conventions_declared)
    r.notes.push_back(
        fmt::format("Formulas are those of {}, as the engine declares: conventions = "
                    "\"{}\" (docs/reference/formulas.md#formulas-of-other-frameworks).",
                    framework_of(s.conventions), s.conventions));
  if (diagnosis.experiment.imported) {
    for (const std::string& note : diagnosis.experiment.imported->notes)
      r.notes.push_back("Imported: " + note + ".");
  }
  r.ablations = e.meaning.rows;
  r.proofs = e.proofs;
  r.ruled_out = ruled_out(e, r);
  r.trajectories = e.trajectories;
  r.cures = diagnosis.cures;
  if (diagnosis.options.cure && r.cures.empty())
    r.notes.push_back(e.meaning.differs()
                          ? "No cure was run: no key of the scenario undoes what was found, or the "
                            "effect was not "
                            "tested."
                          : "No cure was run: sharding does not change what the program means.");
  r.ensembles = e.ensembles;
  if (diagnosis.runs.contains("E1") && diagnosis.runs.contains("T")) {
    const auto loss = [&](const char* name) {
      return diagnosis.runs[name].file.evaluations.back().loss;
    };
    r.unexplained = (loss("T") - loss("S")) - (loss("E1") - loss("R1"));
  }
  if (!e.trajectories.empty()) {
    const TrajectoryRow& tr = e.trajectories.front();
    r.smallest_effect =
        tr.outcome == PairedOutcome::kIdentical ? "any: the losses are equal to the bit"
        : tr.differences.size() > 1
            ? fmt::format("a mean change of {} by {} (95% confidence, 80% power, {} seeds)",
                          tr.metric, text::size_of(tr, tr.detectable), tr.differences.size())
            : "one seed: no statement about held-out loss; ops are held to their bounds";
  }
  r.environment = environment();
  r.environment["data"] = diagnosis.experiment.data->digest.hex();
  r.environment["threads"] = std::to_string(diagnosis.options.threads);
  r.directory = diagnosis.options.directory;
  if (diagnosis.programs.contains("S"))
    r.program_excerpt =
        excerpt(diagnosis.programs["S"], diagnosis.experiment.forward.couplings, j.findings);
  r.checklist = checklist(diagnosis, r);
  r.many_cores = many_cores(diagnosis, r);
  r.answers = answers_of(diagnosis, r);
  return r;
}

}  // namespace twinrun
