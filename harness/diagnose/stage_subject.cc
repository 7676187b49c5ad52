// The stages of the subject: its runs E1 and T under instrument 1 (lockstep), where they first go
// wrong, whether a rerun repeats that, and which program the subject ran.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "backends/exec/exec_backend.h"
#include "backends/variants/variant.h"
#include "harness/diagnose/corners.h"
#include "harness/host/heap.h"
#include "harness/identify/judge_steps.h"
#include "harness/sharding/feeding.h"
#include "program/graph/liveness.h"

namespace twinrun {
namespace {

ProbePolicy policy_of(const Stage& stage, const Program& program) {
  const std::string& probe = stage.experiment.scenario.diagnose.probe;
  ProbePolicy policy;
  if (probe == "every") return policy;
  if (probe != "auto") {
    policy.every = std::max<int64_t>(1, std::stoll(probe));
    return policy;
  }
  policy.screen = true;
  // Measured cost of replaying a step on one core: two f64 products per dot, an interval per
  // element.
  double elements = 0;
  for (const Op& op : program.graph.ops()) elements += static_cast<double>(op.type.elements());
  const double cores = program.sharding.cores;
  const double seconds = cores * (step_flops(program) * 1.5e-10 + elements * 2.5e-9);
  constexpr double kBudgetSeconds = 5;  // of one core: the choice may not depend on the machine
  const auto steps = static_cast<double>(stage.experiment.scenario.train.steps);
  policy.every =
      std::max<int64_t>(1, static_cast<int64_t>(std::ceil(steps * seconds / kBudgetSeconds)));
  return policy;
}

// Keeps the states before and after the first, the middle and the last step. They serve to identify
// the program of an engine that shows its ops but ran another program than the requested one.
class StateKeeper : public StepObserver {
 public:
  StateKeeper(StepObserver& inner, int64_t steps)
      : inner_(inner), wanted_(spread_steps(steps, 3)) {}
  TraceSink* begin_step(int64_t step, const States& before, const StepInputs& inputs) override {
    if (std::ranges::find(wanted_, step) != wanted_.end()) states.push_back({step, before});
    return inner_.begin_step(step, before, inputs);
  }
  void end_step(int64_t step, const States& after, const StepOutputs& outputs) override {
    if (!states.empty() && states.back().step == step) {
      states.back().after = after;
      states.back().outputs = outputs;
    }
    inner_.end_step(step, after, outputs);
  }
  std::vector<MatchState> states;

 private:
  StepObserver& inner_;
  std::vector<int64_t> wanted_;
};

// Control T = T': runs the subject's first steps again and compares the bits.
Status repeat_subject(Stage& stage, const Program& program, Backend& engine) {
  RunOptions again;
  again.name = "T'";
  again.steps = std::min<int64_t>(3, stage.experiment.scenario.train.steps);
  again.evaluate = false;
  again.threads = stage.options.threads;
  TWINRUN_ASSIGN(const RunResult repeated, train(stage.experiment, program, engine, again));
  const auto parts = first_difference(repeated.file, stage.runs["T"].file);
  stage.evidence.subject_parts = parts;
  const bool kept = !parts || !engine.capabilities().deterministic;
  stage.evidence.controls.push_back(
      {"T = T' (the subject again, first steps)", kept, true,
       !parts ? fmt::format("{} state digests equal", repeated.file.state_digests.size())
       : kept ? fmt::format("not required: the engine declares itself nondeterministic (bits "
                            "differ after step {})",
                            *parts)
              : fmt::format("states part after step {}", *parts),
       kept ? ""
            : fmt::format("The engine gave different bits when run twice (T = T' failed at step "
                          "{}). The verdict does not depend on "
                          "this: {}.",
                          *parts,
                          engine.capabilities().op_trace
                              ? "each op was judged on the inputs that it read"
                              : "each step was judged from the state that it began with")});
  return Ok{};
}

// Unprobed steps precede the first violation: runs them again from the last state known to be good
// and probes every step.
Status close_gap(Stage& stage, const std::pair<int64_t, States>& clean, int64_t bad) {
  TWINRUN_ASSIGN(const auto engine, subject(stage));
  stage.probe_gap.emplace(stage.programs["T"], engine->capabilities(), ProbePolicy{}, &stage.pool);
  RunOptions o;
  o.observer = &*stage.probe_gap;
  o.start = clean.second;
  o.first_step = clean.first;
  o.steps = bad + 1;
  o.evaluate = false;
  TWINRUN_RETURN_IF_ERROR(
      corner(stage, "T*", stage.experiment, stage.programs["T"], *engine, o, false));
  stage.runs.erase("T*");
  if (stage.probe_gap->violations().empty()) return Ok{};
  stage.evidence.violations = stage.probe_gap->violations();
  stage.evidence.localised = true;
  return Ok{};
}

// Reruns the first flagged step. If nothing is flagged but bits differ from run to run, reruns the
// last step to measure by how much.
Status rerun(Stage& stage, const Program& program, const Lockstep& probe) {
  Evidence& e = stage.evidence;
  std::vector<KeptStep> steps = probe.flagged();
  // Only the first one, which is run twice: each step that is rerun costs the start of a run.
  if (steps.size() > 1) steps.resize(1);
  if (e.violations.empty()) {
    if (!e.subject_parts) return Ok{};
    steps = {probe.last_step()};
  }
  TWINRUN_ASSIGN(const auto engine, subject(stage));
  TWINRUN_ASSIGN(Reruns again,
                 rerun_flagged(*engine, program, steps, std::move(e.violations), &stage.pool));
  e.violations = std::move(again.violations);
  e.spread = std::move(again.spread);
  return Ok{};
}

// What tensors alone show of the kept steps, beside the comparison with conforming engines: another
// start state, hidden state, replicas that diverge, and the layer that is wrong.
Status judge_more(Stage& stage, StepsJudge& judge) {
  Evidence& e = stage.evidence;
  TWINRUN_ASSIGN(e.other_start, judge.other_start(*e.match, stage.subject_states));
  TWINRUN_ASSIGN(e.inside_again, judge.inside_again(*e.match, stage.subject_states));
  const bool repeats = e.subject.deterministic && !e.subject_parts;
  TWINRUN_ASSIGN(e.hidden_state,
                 judge.reload(*e.match, stage.subject_states, stage.screened.sampled, repeats));
  // If the engine promises equal bits, the replicas of every step are compared already
  // (harness/lockstep/links.h). If a cause explains the tensors, it may explain replicas that
  // diverge as well.
  if (!e.subject.deterministic && e.match->outcome != MatchResult::Outcome::kExplained) {
    TWINRUN_ASSIGN(e.replica_split, judge.split_replicas(stage.subject_states));
  }
  // A step that is inside when it is run again shows no wrong layer, and one that another start
  // state explains has none. This check comes last: if the engine fails here, its other results
  // stand and nothing more is requested from it.
  if (!e.other_start && !e.inside_again.value_or(false)) {
    auto fault = judge.layer_fault(*e.match, stage.subject_states);
    if (!fault && !fault.error().where.starts_with(kExecPlace)) return fault.error();
    if (fault) e.layer_fault = *fault;
    if (e.layer_fault) take_as_declared(*e.match);
    if (!fault)
      e.layers_error =
          fault.error().what + (fault.error().fix.empty() ? "" : " (" + fault.error().fix + ")");
  }
  StepCoverage& told = e.step_coverage;
  told.steps = static_cast<int64_t>(stage.runs["T"].file.steps.size());
  told.screened = stage.screened.screened;
  told.judged = static_cast<int64_t>(stage.subject_states.size()) + judge.set_aside();
  told.set_aside = judge.set_aside();
  told.outside = judge.outside();
  told.left_out = stage.screened.left_out;
  e.judged_since_outside =
      std::ranges::count_if(stage.subject_states, [&](const MatchState& state) {
        return !told.outside.empty() && state.step >= told.outside.front();
      });
  told.not_exercised = stage.screened.not_exercised;
  return Ok{};
}

}  // namespace

Status run_subject(Stage& stage) {
  if (stage.evidence.reference_parts || stage.evidence.reference_birth) return Ok{};
  const Experiment& e = stage.experiment;
  TWINRUN_ASSIGN(const auto engine, subject(stage));
  const Capabilities declared = engine->capabilities();
  stage.evidence.subject = declared;
  stage.evidence.cores = e.sharding.cores;
  stage.evidence.quick = stage.options.quick;

  if (stage.sharded()) {
    const Program one = as_computed_by(declared, e.per_core(Experiment::Stack::kTpu));
    stage.programs["E1"] = one;
    stage.probe_e1.emplace(stage.programs["E1"], declared, ProbePolicy{3, 0}, &stage.pool);
    RunOptions o;
    o.observer = &*stage.probe_e1;
    TWINRUN_RETURN_IF_ERROR(corner(stage, "E1", e, one, *engine, o));
    if (stage.stopped()) return Ok{};
  }

  const Program program = as_computed_by(declared, stage.programs["S"]);
  stage.programs["T"] = program;
  stage.probe_t.emplace(stage.programs["T"], declared, policy_of(stage, program), &stage.pool);
  StateKeeper keeper(*stage.probe_t, e.scenario.train.steps);
  std::unique_ptr<StepScreen> screen;
  if (!declared.op_trace) {
    TWINRUN_ASSIGN(screen, StepScreen::make(*stage.probe_t, e, program, declared,
                                            e.scenario.train.steps, stage.options.threads));
  }
  WeightWatch watch(screen ? static_cast<StepObserver&>(*screen) : keeper, *stage.kept_weights,
                    program, "T - R");
  RunOptions o;
  o.observer = &watch;
  TWINRUN_RETURN_IF_ERROR(corner(stage, "T", e, program, *engine, o));
  stage.weight_drift = watch.drift();
  stage.kept_weights.reset();
  stage.subject_states = std::move(keeper.states);
  if (screen) {
    TWINRUN_RETURN_IF_ERROR(screen->status());
    stage.screened = screen->summary();
    stage.subject_states = screen->take_states();
  }
  if (stage.stopped()) return Ok{};
  const RunResult& t = stage.runs["T"];
  if (t.birth) stage.evidence.subject_birth = t.birth;
  stage.evidence.engine_drift = relative_distance(program, t.states, stage.runs["S"].states);
  stage.evidence.t_equals_s = t.file.state_digests == stage.runs["S"].file.state_digests;
  const bool one_core_equal = !stage.sharded() || stage.runs["E1"].file.state_digests ==
                                                      stage.runs["R1"].file.state_digests;
  stage.evidence.identical =
      t.file.state_digests == stage.runs["R"].file.state_digests && one_core_equal;

  return repeat_subject(stage, program, *engine);
}

Status localise(Stage& stage) {
  Evidence& e = stage.evidence;
  e.command = stage.options.command;
  if (!stage.probe_t) return Ok{};
  e.level = stage.probe_t->level();
  e.partings = stage.probe_t->partings();
  const bool found = !stage.probe_t->violations().empty();
  if (found || e.subject_birth) {
    e.violations = stage.probe_t->violations();
    e.violations_run = "T";
    const int64_t bad = found ? e.violations.front().step : e.subject_birth->step;
    const auto clean = stage.probe_t->last_clean();
    e.localised = bad == 0 || (clean && clean->first == bad);
    if (!e.localised && clean) TWINRUN_RETURN_IF_ERROR(close_gap(stage, *clean, bad));
    const bool closer = stage.probe_gap && !stage.probe_gap->violations().empty();
    return rerun(stage, stage.programs["T"], closer ? *stage.probe_gap : *stage.probe_t);
  }
  if (stage.probe_e1 && !stage.probe_e1->violations().empty()) {
    e.violations = stage.probe_e1->violations();
    e.violations_run = "E1";
    return rerun(stage, stage.programs["E1"], *stage.probe_e1);
  }
  return rerun(stage, stage.programs["T"], *stage.probe_t);
}

Status match_program(Stage& stage) {
  Evidence& e = stage.evidence;
  if (!stage.probe_t) return Ok{};
  const auto misfed = [](const Violation& v) { return v.what == Violation::What::kFeed; };
  e.other_program =
      stage.probe_t->executed_program() != nullptr || std::ranges::any_of(e.violations, misfed);
  if (e.level != 'C' && !e.other_program) return Ok{};
  if (stage.progress != nullptr)
    stage.progress->begin("matching: which program did the subject run", 1);
  TWINRUN_ASSIGN(const auto engine, subject(stage));
  MatchOptions o;
  o.threads = stage.options.threads;
  o.formulas = e.level == 'C';
  const Program& asked = stage.programs["T"];
  // What the ops read is stronger evidence than the tensors computed from it, so it is used first.
  TWINRUN_ASSIGN(const std::vector<std::string> fed,
                 stage.probe_t->executed_program() == nullptr && e.level != 'C'
                     ? feeding_causes(stage.experiment, asked, e.violations)
                     : std::vector<std::string>());
  std::optional<ShardingChange> dealt;
  if (fed.empty() && stage.probe_t->executed_program() == nullptr && e.level != 'C') {
    TWINRUN_ASSIGN(dealt, deal_that_was_read(stage.experiment, asked, e.violations));
  }
  if (!fed.empty() || dealt) {
    e.match.emplace();
    e.match->outcome = MatchResult::Outcome::kExplained;
    e.match->read = true;
    if (dealt) {
      const Explanation only{{{dealt->cause.name, true, {}, dealt}}, 0};
      if (dealt->harmless) {
        e.match->outcome = MatchResult::Outcome::kInside;
        e.match->harmless = only;
      } else {
        e.match->explanations.push_back(only);
      }
    }
    for (const std::string& cause : fed) e.match->explanations.push_back({{{cause, true, {}}}, 0});
  } else {
    const LargeBlocksApart apart;
    StepsJudge judge(stage.experiment, asked, *engine, o);
    TWINRUN_ASSIGN(e.match, judge.match(stage.subject_states, stage.screened.screened,
                                        stage.screened.of_left_out));
    if (e.level == 'C') TWINRUN_RETURN_IF_ERROR(judge_more(stage, judge));
  }
  for (const Explanation& explanation : e.match->explanations) {
    for (const Explanation::Part& part : explanation.parts) {
      if (!part.formula && !part.sharding)
        e.known_causes.push_back(describe(stage.experiment, part.cause));
    }
  }
  // Inputs that differ are explained by the cause, so they are no violations of the engine.
  if (e.match->outcome == MatchResult::Outcome::kExplained || e.match->harmless) {
    std::erase_if(e.violations, [&](const Violation& v) {
      // Without ops, links can only report that replicas diverge, and the cause explains that.
      return misfed(v) || (e.level == 'C' && v.what == Violation::What::kLink);
    });
  }
  if (stage.progress != nullptr) {
    stage.progress->end(
        e.match->outcome == MatchResult::Outcome::kInside      ? "the one it was asked to run"
        : e.match->outcome == MatchResult::Outcome::kExplained ? "another one, of a known cause"
                                                               : "not decided");
  }
  return Ok{};
}

}  // namespace twinrun
