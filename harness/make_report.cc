// Evidence and judgement -> Report: numbers are copied, nothing is decided here.
#include <fmt/format.h>

#include <algorithm>

#include "checkpoints/container/atomic_file.h"
#include "harness/environment.h"
#include "harness/stages.h"

namespace twinrun {
namespace {

const std::map<std::string, std::string>& meanings() {
  static const std::map<std::string, std::string> m = {
      {"R", "reference, whole batch"},       {"R2", "reference again (control)"},
      {"R1", "reference, one core's batch"}, {"E1", "subject, one core"},
      {"S", "reference, sharded"},           {"T", "subject, sharded"}};
  return m;
}

std::string settings_of(const Program& p) {
  if (p.sharding.cores == 1) return fmt::format("batch {}", p.batch);
  return fmt::format("{} cores x {}, {} all-reduce, batch norm {}{}", p.sharding.cores, p.batch,
                     p.sharding.reduction == Reduction::kMean ? "mean" : "sum",
                     p.sharding.batchnorm == BatchNormSync::kPerCore  ? "per core"
                     : p.sharding.batchnorm == BatchNormSync::kSynced ? "synced"
                                                                      : "of averaged variances",
                     p.optimizer.clip != OptimizerSpec::Clip::kNone &&
                             p.sharding.clipping == Clipping::kBeforeAllReduce
                         ? ", clipped before the all-reduce"
                         : "");
}

RunSummary summary(const std::string& name, const RunResult& run, const Program& program) {
  RunSummary s;
  s.name = name;
  s.engine = run.file.engine;
  s.settings = settings_of(program);
  s.meaning = meanings().contains(name) ? meanings().at(name) : "";
  s.root_digest = run.file.root_digest().hex();
  s.steps = static_cast<int64_t>(run.file.steps.size());
  for (const StepScalars& step : run.file.steps) s.losses.push_back(step.loss);
  if (!s.losses.empty()) s.train_loss = s.losses.back();
  if (!run.file.evaluations.empty()) {
    s.eval_loss = run.file.evaluations.back().loss;
    s.eval_accuracy = run.file.evaluations.back().accuracy;
  }
  s.seconds = run.seconds;
  s.kept = run.kept;
  s.ended = run.file.ended;
  return s;
}

// The op in question with the ops that feed it; else the ends of the step: loss and collectives.
std::string excerpt(const Program& program, const std::vector<Finding>& findings) {
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
  for (ValueId id = 0; count == 0 && id < program.graph.size(); ++id) {
    const Op& op = program.graph.op(id);
    wanted[static_cast<size_t>(id)] =
        op.phase == Phase::kCollective || op.name.starts_with("loss/");
  }
  // What the program is, then a line per op.
  size_t head = 0;
  while (head < lines.size() && !lines[head].starts_with("%")) ++head;
  std::string out;
  for (size_t i = 0; i < head; ++i) out += lines[i] + "\n";
  for (ValueId id = 0; id < program.graph.size(); ++id) {
    if (wanted[static_cast<size_t>(id)]) out += lines[head + static_cast<size_t>(id)] + "\n";
  }
  return out;
}

}  // namespace

Report make_report(Stage& stage, const Judgement& j) {
  const Scenario& s = stage.experiment.scenario;
  const Evidence& e = stage.evidence;
  Report r;
  r.scenario_name = s.name;
  r.scenario_description = s.description;
  r.scenario_digest = scenario_digest(s).hex();
  r.scenario_toml = resolved_toml(s);
  r.subject =
      fmt::format("{}, {} core{}, {}", stage.options.subject, stage.experiment.sharding.cores,
                  stage.experiment.sharding.cores == 1 ? "" : "s", e.subject.settings);
  r.command = stage.options.command;
  r.verdict = j.verdict;
  r.headline = j.headline;
  r.confidence = j.confidence;
  r.findings = j.findings;
  r.next_steps = j.next_steps;
  r.ruled_out = j.ruled_out;
  r.notes = j.notes;
  for (const char* name : {"R", "R2", "R1", "E1", "S", "T"}) {
    const auto run = stage.runs.find(name);
    if (run != stage.runs.end() && (stage.own_s() || run->first != "S")) {
      r.runs.push_back(summary(name, run->second, stage.programs[name]));
    }
  }
  r.controls = e.controls;
  if (stage.probe_t)
    r.probes.push_back(
        stage.probe_t->summary("T", static_cast<int64_t>(stage.runs["T"].file.steps.size())));
  if (stage.probe_e1)
    r.probes.push_back(
        stage.probe_e1->summary("E1", static_cast<int64_t>(stage.runs["E1"].file.steps.size())));
  r.switches = e.meaning.rows;
  r.trajectories = e.trajectories;
  r.ensembles = e.ensembles;
  if (stage.runs.contains("E1") && stage.runs.contains("T")) {
    const auto loss = [&](const char* name) {
      return stage.runs[name].file.evaluations.back().loss;
    };
    r.unexplained = (loss("T") - loss("S")) - (loss("E1") - loss("R1"));
  }
  if (!e.trajectories.empty()) {
    const TrajectoryRow& tr = e.trajectories.front();
    r.smallest_effect =
        tr.outcome == "identical" ? "any: the losses are equal to the bit"
        : tr.differences.size() > 1
            ? fmt::format("a mean change of held-out loss of {:.2g} (95 % confidence, 80 % power, {} seeds)",
                          tr.detectable, tr.differences.size())
            : "one seed: no statement about held-out loss; ops are held to their bounds";
  }
  r.environment = environment();
  r.environment["data"] = stage.experiment.data->digest.hex();
  r.environment["threads"] = std::to_string(stage.options.threads);
  r.directory = stage.options.directory;
  if (stage.programs.contains("S")) r.program_excerpt = excerpt(stage.programs["S"], j.findings);
  return r;
}

Status write_results(const Stage& stage, const Report& report) {
  const std::filesystem::path dir(stage.options.directory);
  TWINRUN_RETURN_IF_ERROR(write_file_atomically((dir / "report.json").string(), to_json(report)));
  return write_file_atomically((dir / "report.md").string(), to_markdown(report));
}

}  // namespace twinrun
