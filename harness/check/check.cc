// Runs the rules on a scenario or a program text, and sorts the findings.
#include "harness/check/check.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "device/machine.h"
#include "harness/check/rules.h"

namespace twinrun {
namespace check {
namespace {

// The scenario with batch and steps changed so that its program can be built. What was wrong with
// them is a finding of check_keys already.
Scenario buildable(const ReadScenario& read) {
  Scenario s = read.scenario;
  const int64_t cores = s.tpu.cores;
  if (s.train.steps == 0) s.train.steps = std::max<int64_t>(1, s.train.accumulate);
  s.train.batch = std::max<int64_t>(1, s.train.batch / cores) * cores;
  return s;
}

std::string first_line(const Error& e) {
  const std::string text = e.where.empty() ? e.what : e.where + ": " + e.what;
  return text.substr(0, text.find('\n'));
}

// Rules that propose a batch know nothing of each other. Gives all of them the smallest batch that
// satisfies each: none below what a rule asks for, in multiples of the cores, or of 8 a core if
// one asks for whole tiles.
void agree_on_batch(std::vector<RuleFinding>& findings, int64_t cores) {
  constexpr std::string_view kSet = "--set train.batch=";
  const auto end_of_number = [&](const std::string& fix) {
    return std::min(fix.find_first_not_of("0123456789", kSet.size()), fix.size());
  };
  int64_t batch = 0, multiple = cores;
  std::vector<RuleFinding*> proposing;
  for (RuleFinding& f : findings) {
    if (!f.fix.starts_with(kSet) || f.id == "data-runs-out") continue;
    proposing.push_back(&f);
    batch = std::max<int64_t>(batch, std::stoll(f.fix.substr(kSet.size())));
    if (f.id == "padding") multiple = tpu::kSublanes * cores;
  }
  if (proposing.size() < 2) return;
  batch = (batch + multiple - 1) / multiple * multiple;
  for (RuleFinding* f : proposing) {
    const std::string alone = f->fix.substr(kSet.size(), end_of_number(f->fix) - kSet.size());
    if (alone == std::to_string(batch)) continue;
    f->fix.replace(0, end_of_number(f->fix),
                   fmt::format("{}{} ({} would do for this rule alone)", kSet, batch, alone));
  }
}

void in_order(std::vector<RuleFinding>& findings) {
  const auto place = [](const RuleFinding& f) { return &rule(f.id) - rules().data(); };
  std::ranges::stable_sort(findings, [&](const RuleFinding& a, const RuleFinding& b) {
    return a.severity != b.severity ? a.severity < b.severity : place(a) < place(b);
  });
}

}  // namespace
}  // namespace check

size_t Checked::count(Severity severity) const {
  return static_cast<size_t>(std::ranges::count(findings, severity, &RuleFinding::severity));
}

OpCount count_ops(const Checked& checked) {
  std::set<std::string> wrong;
  for (const RuleFinding& f : checked.findings) {
    if (f.severity == Severity::kError) wrong.insert(f.ops.begin(), f.ops.end());
  }
  OpCount count;
  const auto add = [&](const std::string& id) {
    ++count.all;
    if (!wrong.contains(id)) ++count.on_tpu;
  };
  if (checked.text) {
    for (const HloComputation& c : checked.text->computations) {
      for (const HloInstruction& in : c.instructions) add(check::op_id(in));
    }
  } else if (checked.graph) {
    for (const TfBody& body : checked.tf_step.bodies) {
      for (size_t i = 0; i < body.nodes.size(); ++i) {
        if (body.on_tpu[i]) add(check::tf_node_id(body, body.nodes[i]));
      }
    }
  } else if (checked.step) {
    count.all = count.on_tpu = static_cast<size_t>(checked.step->graph.size());
  }
  return count;
}

Result<Checked> check_scenario(std::string_view name_or_path, const Overrides& overrides) {
  TWINRUN_ASSIGN(const ReadScenario read, read_scenario(name_or_path, overrides));
  Checked c;
  c.name = read.scenario.name;
  c.experiment.scenario = read.scenario;
  for (const LayerSpec& layer : read.scenario.model.layers)
    c.layer_places.emplace_back(layer.name,
                                read.source.where_layer(c.layer_places.size(), layer, "name"));
  check::check_keys(read, c.findings);
  if (read.scenario.train.batch == 0) {
    c.no_step = "without a batch there are no shapes";
  } else {
    const Scenario scenario = check::buildable(read);
    const auto sample = sample_on_paper(scenario);
    if (sample) {
      TWINRUN_ASSIGN(c.experiment, experiment_on_paper(scenario));
      const Experiment& made = c.experiment;
      TWINRUN_RETURN_IF_ERROR(check_shares(made, made.sharding, /*alone=*/false));
      c.step = made.sharding.cores > 1 ? made.sharded(made.sharding)
                                       : made.whole(Experiment::Stack::kTpu);
      check::check_couplings(read, made.forward, c.findings);
      check::check_collectives(
          *c.step,
          read.source.where("tpu", read.scenario.tpu.reduction == "none" ? "reduction" : "cores"),
          c.findings);
    } else {
      c.no_step = check::first_line(sample.error());  // a rule covers it, so it is no error
    }
  }
  check::agree_on_batch(c.findings, read.scenario.tpu.cores);
  check::in_order(c.findings);
  return c;
}

Result<Checked> check_program(const ProgramFiles& files) {
  Checked c;
  c.name = std::filesystem::path(files.program).stem().string();
  TWINRUN_ASSIGN(ProgramText text, read_program_text(files));
  check::check_text(text.module, text.state, c.findings);
  std::vector<ImportProblem> problems;
  Result<ImportedStep> step = import_program(files, &problems);
  if (step) {
    c.step = std::move(step->program);
  } else {
    c.no_step = check::first_line(step.error());
    if (problems.empty()) problems.push_back({c.no_step, {}});
    check::check_import(problems, files.program, c.findings);
  }
  c.text = std::move(text.module);
  check::in_order(c.findings);
  return c;
}

Result<Checked> check_graph(const std::string& path) {
  namespace fs = std::filesystem;
  TWINRUN_ASSIGN(TfGraph graph, read_tf_graph(path));
  Checked c;
  // A SavedModel is known by its folder.
  const fs::path file = fs::path(graph.file).lexically_normal();
  c.name = file.filename() == "saved_model.pb" && file.has_parent_path()
               ? file.parent_path().filename().string()
               : file.stem().string();
  c.graph = std::make_shared<const TfGraph>(std::move(graph));
  c.tf_step = tf_step(*c.graph);
  c.no_step = "a TensorFlow graph is checked op by op, and not run";
  check::check_tf_graph(*c.graph, c.tf_step, c.findings);
  check::in_order(c.findings);
  return c;
}

}  // namespace twinrun
