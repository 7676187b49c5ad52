// The stages of the subject: its runs E1 and T under instrument 1 (lockstep), where they first go
// wrong, whether a rerun repeats that, and which program the subject ran.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "backends/variants/variant.h"
#include "harness/diagnose/runs.h"
#include "harness/host/heap.h"
#include "harness/identify/judge_steps.h"
#include "harness/sharding/feeding.h"
#include "program/graph/liveness.h"

namespace twinrun {
namespace {

// A decision that a rounding turns may set one step or another aside.
constexpr int64_t kOneCoreSteps = 8;

ProbePolicy policy_of(const DiagnosisState& diagnosis, const Program& program) {
  const std::string& probe = diagnosis.experiment.scenario.diagnose.probe;
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
  const auto steps = static_cast<double>(diagnosis.experiment.scenario.train.steps);
  policy.every =
      std::max<int64_t>(1, static_cast<int64_t>(std::ceil(steps * seconds / kBudgetSeconds)));
  return policy;
}

// Keeps the states before and after a few steps of a run, the first and the last among them: T's
// serve to identify the program of an engine that shows its ops but ran another one than the
// requested one, E1's to see whether what explains T is a matter of sharding.
class StateKeeper : public StepObserver {
 public:
  StateKeeper(StepObserver& inner, int64_t steps, int64_t count)
      : inner_(inner), wanted_(spread_steps(steps, count)) {}
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
  std::vector<ProbedState> states;

 private:
  StepObserver& inner_;
  std::vector<int64_t> wanted_;
};

// Control T = T': runs the subject's first steps again and compares the bits.
Status repeat_subject(DiagnosisState& diagnosis, const Program& program, Backend& engine) {
  RunOptions again;
  again.name = "T'";
  again.steps = std::min<int64_t>(3, diagnosis.experiment.scenario.train.steps);
  again.evaluate = false;
  again.threads = diagnosis.options.threads;
  TWINRUN_ASSIGN(const RunResult repeated, train(diagnosis.experiment, program, engine, again));
  const auto parts = first_difference(repeated.file, diagnosis.runs["T"].file);
  diagnosis.evidence.subject_diverges_at = parts;
  const bool kept = !parts || !engine.capabilities().deterministic;
  diagnosis.evidence.controls.push_back(
      {"the subject again, first steps", kept, true,
       !parts ? fmt::format("{} state digests equal", repeated.file.state_digests.size())
       : kept ? fmt::format("not required: the engine declares itself nondeterministic (bits "
                            "differ after step {})",
                            *parts)
              : fmt::format("states diverge after step {}", *parts),
       kept ? ""
            : fmt::format("The engine gave different bits when run twice (they part at step "
                          "{}). The verdict does not depend on "
                          "this: {}.",
                          *parts,
                          engine.capabilities().op_trace
                              ? "each op was judged on the inputs that it read"
                              : "each step was judged from the state that it began with"),
       ControlKind::kSubjectRepeats});
  return Ok{};
}

// Unprobed steps precede the first violation: runs them again from the last state known to be good
// and probes every step.
Status close_gap(DiagnosisState& diagnosis, const std::pair<int64_t, States>& clean, int64_t bad) {
  TWINRUN_ASSIGN(const auto engine, subject(diagnosis));
  diagnosis.probe_gap.emplace(diagnosis.programs["T"], engine->capabilities(), ProbePolicy{},
                              &diagnosis.pool);
  RunOptions o;
  o.observer = &*diagnosis.probe_gap;
  o.start = clean.second;
  o.first_step = clean.first;
  o.steps = bad + 1;
  o.evaluate = false;
  TWINRUN_RETURN_IF_ERROR(
      train_run(diagnosis, "T*", diagnosis.experiment, diagnosis.programs["T"], *engine, o, false));
  diagnosis.runs.erase("T*");
  if (diagnosis.probe_gap->violations().empty()) return Ok{};
  diagnosis.evidence.violations = diagnosis.probe_gap->violations();
  diagnosis.evidence.localised = true;
  return Ok{};
}

// Reruns the first flagged step. If nothing is flagged but bits differ from run to run, reruns the
// last step to measure by how much.
Status rerun(DiagnosisState& diagnosis, const Program& program, const Lockstep& probe) {
  Evidence& e = diagnosis.evidence;
  std::vector<KeptStep> steps = probe.flagged();
  // Only the first one, which is run twice: each step that is rerun costs the start of a run.
  if (steps.size() > 1) steps.resize(1);
  if (e.violations.empty()) {
    if (!e.subject_diverges_at) return Ok{};
    steps = {probe.last_step()};
  }
  TWINRUN_ASSIGN(const auto engine, subject(diagnosis));
  TWINRUN_ASSIGN(Reruns again,
                 rerun_flagged(*engine, program, steps, std::move(e.violations), &diagnosis.pool));
  e.violations = std::move(again.violations);
  e.spread = std::move(again.spread);
  return Ok{};
}

// What tensors alone show of the kept steps, beside the comparison with conforming engines: another
// start state, hidden state, replicas that diverge, and the layer that is wrong.
Status judge_more(DiagnosisState& diagnosis, StepsJudge& judge) {
  Evidence& e = diagnosis.evidence;
  TWINRUN_ASSIGN(e.other_start, judge.other_start(*e.match, diagnosis.subject_states));
  TWINRUN_ASSIGN(e.inside_again, judge.inside_again(*e.match, diagnosis.subject_states));
  const bool repeats = e.subject.deterministic && !e.subject_diverges_at;
  TWINRUN_ASSIGN(e.hidden_state, judge.reload(*e.match, diagnosis.subject_states,
                                              diagnosis.screened.sampled, repeats));
  // If the engine promises equal bits, the replicas of every step are compared already
  // (harness/lockstep/links.h). If a cause explains the tensors, it may explain replicas that
  // diverge as well.
  if (!e.subject.deterministic && e.match->outcome != Identification::Outcome::kExplained) {
    TWINRUN_ASSIGN(e.replica_split, judge.split_replicas(diagnosis.subject_states));
  }
  // A step that is inside when it is run again shows no wrong layer, and one that another start
  // state explains has none. This check comes last: if the engine fails here, its other results
  // stand and nothing more is requested from it.
  if (!e.other_start && !e.inside_again.value_or(false)) {
    auto fault = judge.layer_fault(*e.match, diagnosis.subject_states);
    if (!fault && !fault.error().of_foreign_engine()) return fault.error();
    if (fault) e.layer_fault = *fault;
    if (e.layer_fault) take_as_declared(*e.match);
    if (!fault)
      e.layers_error =
          fault.error().what + (fault.error().fix.empty() ? "" : " (" + fault.error().fix + ")");
  }
  StepCoverage& reported = e.step_coverage;
  reported.steps = static_cast<int64_t>(diagnosis.runs["T"].file.steps.size());
  reported.screened = diagnosis.screened.screened;
  reported.judged = static_cast<int64_t>(diagnosis.subject_states.size()) + judge.set_aside();
  reported.set_aside = judge.set_aside();
  reported.outside = judge.outside();
  reported.left_out = diagnosis.screened.left_out;
  e.judged_since_outside =
      std::ranges::count_if(diagnosis.subject_states, [&](const ProbedState& state) {
        return !reported.outside.empty() && state.step >= reported.outside.front();
      });
  reported.not_exercised = diagnosis.screened.not_exercised;
  return Ok{};
}

// Judges run E1 where causes of sharding explain T: on one core these change nothing, so what shows
// there as well is another formula of the script. `engine` and `options`: of the match of T.
Status judge_one_core(DiagnosisState& diagnosis, Backend& engine, IdentifyOptions options) {
  Evidence& e = diagnosis.evidence;
  if (e.match->outcome != Identification::Outcome::kExplained ||
      e.match->explanations.front().has_formula() || !diagnosis.probe_e1 ||
      (e.level != 'C' && diagnosis.probe_e1->executed_program() == nullptr))
    return Ok{};
  Scenario one = diagnosis.experiment.scenario;
  one.train.batch /= one.tpu.cores;
  one.tpu.cores = 1;
  TWINRUN_ASSIGN(const Experiment alone, with_scenario(diagnosis.experiment, one));
  const Program& asked = diagnosis.programs["E1"];
  const Program whole = as_computed_by(e.subject, alone.whole(Experiment::Stack::kTpu));
  if (to_text(whole) != to_text(asked)) return Ok{};  // not the program of run E1
  std::vector<ProbedState>& states = diagnosis.one_core_states;
  std::erase_if(states, [&](const ProbedState& s) {  // a loss scaler skipped the step
    return update_left_out(asked, s.states, s.after, s.outputs);
  });
  if (states.empty()) return Ok{};
  options.formulas = true;
  StepsJudge judge(alone, asked, engine, options);
  const auto steps = static_cast<int64_t>(states.size());
  TWINRUN_ASSIGN(Identification found, judge.match(states, steps));
  if (found.outcome == Identification::Outcome::kExplained) {
    e.all_cores = std::exchange(e.match, std::move(found));
  } else if (found.outcome == Identification::Outcome::kUnexplained) {
    e.one_core = std::move(found);
  }
  return Ok{};
}

}  // namespace

Status run_subject(DiagnosisState& diagnosis) {
  if (diagnosis.evidence.reference_diverges_at || diagnosis.evidence.reference_non_finite)
    return Ok{};
  const Experiment& e = diagnosis.experiment;
  TWINRUN_ASSIGN(const auto engine, subject(diagnosis));
  const Capabilities declared = engine->capabilities();
  diagnosis.evidence.subject = declared;
  diagnosis.evidence.cores = diagnosis.programs["S"].sharding.cores;
  diagnosis.evidence.quick = diagnosis.options.quick;

  if (diagnosis.sharded()) {
    const Program one = as_computed_by(declared, e.per_core(Experiment::Stack::kTpu));
    diagnosis.programs["E1"] = one;
    diagnosis.probe_e1.emplace(diagnosis.programs["E1"], declared, ProbePolicy{3, 0},
                               &diagnosis.pool);
    StateKeeper keeper(*diagnosis.probe_e1, e.scenario.train.steps, kOneCoreSteps);
    RunOptions o;
    o.observer = &keeper;
    TWINRUN_RETURN_IF_ERROR(train_run(diagnosis, "E1", e, one, *engine, o));
    diagnosis.one_core_states = std::move(keeper.states);
    if (diagnosis.stopped()) return Ok{};
  }

  const Program program = as_computed_by(declared, diagnosis.programs["S"]);
  diagnosis.programs["T"] = program;
  diagnosis.probe_t.emplace(diagnosis.programs["T"], declared, policy_of(diagnosis, program),
                            &diagnosis.pool);
  StateKeeper keeper(*diagnosis.probe_t, e.scenario.train.steps, 3);
  std::unique_ptr<StepScreen> screen;
  if (!declared.op_trace) {
    TWINRUN_ASSIGN(screen, StepScreen::make(*diagnosis.probe_t, e, program, declared,
                                            e.scenario.train.steps, diagnosis.options.threads));
  }
  WeightWatch watch(screen ? static_cast<StepObserver&>(*screen) : keeper, *diagnosis.kept_weights,
                    program, "T - R");
  RunOptions o;
  o.observer = &watch;
  TWINRUN_RETURN_IF_ERROR(train_run(diagnosis, "T", e, program, *engine, o));
  diagnosis.weight_drift = watch.drift();
  diagnosis.kept_weights.reset();
  diagnosis.subject_states = std::move(keeper.states);
  if (screen) {
    TWINRUN_RETURN_IF_ERROR(screen->status());
    diagnosis.screened = screen->summary();
    diagnosis.subject_states = screen->take_states();
  }
  if (diagnosis.stopped()) return Ok{};
  const RunResult& t = diagnosis.runs["T"];
  if (t.first_non_finite) diagnosis.evidence.subject_non_finite = t.first_non_finite;
  diagnosis.evidence.engine_drift =
      relative_distance(program, t.states, diagnosis.runs["S"].states);
  diagnosis.evidence.t_equals_s = t.file.state_digests == diagnosis.runs["S"].file.state_digests;
  const bool one_core_equal = !diagnosis.sharded() || diagnosis.runs["E1"].file.state_digests ==
                                                          diagnosis.runs["R1"].file.state_digests;
  diagnosis.evidence.identical =
      t.file.state_digests == diagnosis.runs["R"].file.state_digests && one_core_equal;

  return repeat_subject(diagnosis, program, *engine);
}

Status localise(DiagnosisState& diagnosis) {
  Evidence& e = diagnosis.evidence;
  e.command = diagnosis.options.command;
  if (!diagnosis.probe_t) return Ok{};
  e.level = diagnosis.probe_t->level();
  e.divergences = diagnosis.probe_t->divergences();
  for (const ProbeRow& row : diagnosis.probe_t->summary("T", 0).rows) {
    if (row.untestable == row.elements) e.unbounded.push_back(row.op);
  }
  const bool found = !diagnosis.probe_t->violations().empty(),
             found_e1 = diagnosis.probe_e1 && !diagnosis.probe_e1->violations().empty();
  if (found || (e.subject_non_finite && !found_e1)) {
    e.violations = diagnosis.probe_t->violations();
    e.violations_run = "T";
    const int64_t bad = found ? e.violations.front().step : e.subject_non_finite->step;
    const auto clean = diagnosis.probe_t->last_clean();
    e.localised = bad == 0 || (clean && clean->first == bad);
    if (!e.localised && clean) TWINRUN_RETURN_IF_ERROR(close_gap(diagnosis, *clean, bad));
    const bool closer = diagnosis.probe_gap && !diagnosis.probe_gap->violations().empty();
    return rerun(diagnosis, diagnosis.programs["T"],
                 closer ? *diagnosis.probe_gap : *diagnosis.probe_t);
  }
  if (found_e1) {
    e.violations = diagnosis.probe_e1->violations();
    e.violations_run = "E1";
    return rerun(diagnosis, diagnosis.programs["E1"], *diagnosis.probe_e1);
  }
  return rerun(diagnosis, diagnosis.programs["T"], *diagnosis.probe_t);
}

Status identify_subject(DiagnosisState& diagnosis) {
  Evidence& e = diagnosis.evidence;
  if (!diagnosis.probe_t) return Ok{};
  const auto misfed = [](const Violation& v) { return v.what == Violation::What::kFeed; };
  e.other_program =
      diagnosis.probe_t->executed_program() != nullptr || std::ranges::any_of(e.violations, misfed);
  if (e.level != 'C' && !e.other_program) return Ok{};
  if (diagnosis.progress != nullptr)
    diagnosis.progress->begin("identification: which program did the subject run", 1);
  TWINRUN_ASSIGN(const auto engine, subject(diagnosis));
  IdentifyOptions o;
  o.threads = diagnosis.options.threads;
  o.formulas = e.level == 'C';
  const Program& asked = diagnosis.programs["T"];
  // What the ops read is stronger evidence than the tensors computed from it, so it is used first.
  TWINRUN_ASSIGN(const std::vector<std::string> fed,
                 diagnosis.probe_t->executed_program() == nullptr && e.level != 'C'
                     ? feeding_causes(diagnosis.experiment, asked, e.violations)
                     : std::vector<std::string>());
  std::optional<ShardingChange> dealt;
  if (fed.empty() && diagnosis.probe_t->executed_program() == nullptr && e.level != 'C') {
    TWINRUN_ASSIGN(dealt, deal_that_was_read(diagnosis.experiment, asked, e.violations));
  }
  if (!fed.empty() || dealt) {
    e.match.emplace();
    e.match->outcome = Identification::Outcome::kExplained;
    e.match->read = true;
    if (dealt) {
      const Explanation only{{{dealt->cause.name, true, {}, dealt}}, 0};
      if (dealt->harmless) {
        e.match->outcome = Identification::Outcome::kInside;
        e.match->harmless = only;
      } else {
        e.match->explanations.push_back(only);
      }
    }
    for (const std::string& cause : fed) e.match->explanations.push_back({{{cause, true, {}}}, 0});
  } else {
    const LargeBlocksApart apart;
    StepsJudge judge(diagnosis.experiment, asked, *engine, o);
    TWINRUN_ASSIGN(e.match, judge.match(diagnosis.subject_states, diagnosis.screened.screened,
                                        diagnosis.screened.of_left_out));
    if (e.level == 'C') TWINRUN_RETURN_IF_ERROR(judge_more(diagnosis, judge));
    TWINRUN_RETURN_IF_ERROR(judge_one_core(diagnosis, *engine, o));
  }
  for (const Explanation& explanation : e.match->explanations) {
    for (const Explanation::Part& part : explanation.parts) {
      if (!part.formula && !part.sharding)
        e.known_causes.push_back(describe(diagnosis.experiment, part.cause));
    }
  }
  // Inputs that differ are explained by the cause, so they are no violations of the engine.
  if (e.match->outcome == Identification::Outcome::kExplained || e.match->harmless) {
    std::erase_if(e.violations, [&](const Violation& v) {
      // Without ops, links can only report that replicas diverge, and the cause explains that.
      return misfed(v) || (e.level == 'C' && v.what == Violation::What::kLink);
    });
  }
  if (diagnosis.progress != nullptr) {
    diagnosis.progress->end(
        e.match->outcome == Identification::Outcome::kInside      ? "the one it was asked to run"
        : e.match->outcome == Identification::Outcome::kExplained ? "another one, of a known cause"
                                                                  : "not decided");
  }
  return Ok{};
}

}  // namespace twinrun
