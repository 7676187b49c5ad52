// The judgements about the experiment itself, the engine, and which program the engine ran.
#include "harness/diagnose/verdicts.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/diagnose/findings.h"
#include "reports/run_names.h"
#include "reports/text.h"

namespace twinrun {
namespace {

// Why an engine failed, in one line: " at step 3: RuntimeError: ...". For an engine that ended
// without an answer, the last line of its standard error is added.
std::string reason_of(const std::string& what) {
  constexpr size_t kMax = 200;
  constexpr std::string_view kSays = "the engine says: ", kStep = "step ",
                             kLastWords = "; the last it said on its standard error:";
  std::string first = what.substr(0, what.find('\n')), step;
  if (const size_t colon = first.find(": ");
      first.starts_with(kStep) && colon != std::string::npos) {
    step = fmt::format(" at {}", first.substr(0, colon));
    first.erase(0, colon + 2);
  }
  if (first.starts_with(kSays)) first.erase(0, kSays.size());
  if (const size_t words = first.find(kLastWords); words != std::string::npos) {
    const std::string last = what.substr(what.find_last_of('\n') + 1);
    first = fmt::format("{} ({})", first.substr(0, words), last);
  }
  if (first.size() > kMax) first = first.substr(0, kMax) + "..";
  return step + ": " + first + (first.ends_with('.') ? "" : ".");
}

// "conv1 first produces Inf"; for an engine that does not show its ops, "Inf first appears".
std::string first_produces(const FirstNonFinite& first) {
  return first.op.empty() ? first.what + " first appears"
                          : fmt::format("{} first produces {}", first.op, first.what);
}

void add_sharding(const Evidence& e, Judgement& j) {
  if (e.meaning.differs()) sharding_findings(e, j, VerdictClass::kSharding);
}

}  // namespace

namespace verdicts {

void reference_diverges(const Evidence& e, Judgement& j) {
  j.headline = fmt::format("The reference is not deterministic: R and R' diverge at step {}{}.",
                           *e.reference_diverges_at,
                           e.reference_diverges_op.empty() ? "" : " in " + e.reference_diverges_op);
  j.confidence = "certain: digests of the same program on the same engine differ";
  control_finding(e, j, ControlKind::kReferenceRepeats, "reference_parts",
                  "The same training, run twice on the reference, gives different bits.");
  j.next_steps.push_back(
      "nothing else can be concluded on this machine until the cause is found: run a memory test, "
      "then --threads 1");
}

void reference_not_finite(const Evidence& e, Judgement& j) {
  const FirstNonFinite& first = *e.reference_non_finite;
  Finding f;
  f.verdict = VerdictClass::kInconclusive;
  f.cause = "reference_diverges";
  f.step = first.step;
  f.op = first.op;
  f.phase = first.phase;
  f.sentence = fmt::format("{} ({} phase) at step {} of {}, on the cpu reference itself.",
                           first_produces(first), first.phase, first.step,
                           text::called(e.reference_non_finite_run));
  for (const Control& control : e.controls) {
    if (control.run && control.passed)
      f.evidence.push_back(fmt::format("{}: {}", control.name, control.detail));
  }
  f.reproduce = e.command;
  j.findings.push_back(std::move(f));
  j.headline = fmt::format("The reference diverges: {} at step {} ({}).", first_produces(first),
                           first.step, text::called(e.reference_non_finite_run));
  j.confidence = "a subject cannot be judged against a reference that fails";
  j.next_steps.push_back("lower optimizer.lr, or clip the gradient, until cpu trains");
}

// The lines of the engine's error are the evidence.
void engine_failed(const Evidence& e, Judgement& j) {
  Finding f;
  f.verdict = VerdictClass::kInconclusive;
  f.cause = "engine_failed";
  const std::string& what = e.engine_failure->what;
  const size_t first = std::min(what.find('\n'), what.size());
  f.sentence = fmt::format("In the run \"{}\", {}: {}", text::called(e.engine_failure_run),
                           e.engine_failure->where, what.substr(0, first));
  for (size_t at = first + 1; at < what.size();) {
    const size_t end = std::min(what.find('\n', at), what.size());
    f.evidence.push_back(what.substr(at, end - at));
    at = end + 1;
  }
  f.reproduce = e.command;
  f.level = 'C';
  j.findings.push_back(std::move(f));
  j.headline = fmt::format("The engine failed in the run \"{}\"{}",
                           text::called(e.engine_failure_run), reason_of(what));
  j.confidence = "an engine that does not answer cannot be judged";
  j.next_steps.push_back(
      "to see whether the engine answers at all: twinrun doctor --engine ENGINE");
  if (!e.engine_failure->fix.empty()) j.next_steps.push_back(e.engine_failure->fix);
}

void emulator_fails(const Evidence& e, Judgement& j) {
  j.headline =
      "The emulator fails its own control: at precision f32 it is not the reference, bit for bit.";
  j.confidence = "no engine can be accused until this control passes";
  j.next_steps.push_back("report this with the scenario: it is a bug of twinrun");
  control_finding(e, j, ControlKind::kEmulator, "emulator",
                  "The emulated engine, set to full float32, gives other bits than the reference.");
}

void violation(const Evidence& e, Judgement& j) {
  const bool explained = e.match && e.match->outcome == Identification::Outcome::kExplained;
  add_sharding(e, j);
  if (explained) program_findings(e, j, VerdictClass::kSharding);
  engine_bug(e, j);
  if (explained)
    j.headline += fmt::format(" Its script also runs another program ({}).", explained_by(e));
  if (e.meaning.differs()) {
    j.headline +=
        fmt::format(" Sharding also changes the program's meaning ({}).", named_causes(e));
    j.notes.push_back(
        "Whether the change of meaning matters is not judged beside an engine bug: the runs cannot "
        "be compared until the bug is fixed.");
  }
}

void unrepeatable(const Evidence& e, Judgement& j) {
  unrepeatable_finding(e, j);
  j.headline = fmt::format(
      "{} (framework or script) does not repeat itself: the same step, run twice, differs by {}, "
      "which is more than rounding.",
      e.subject.name, text::relative(e.match->apart));
  j.confidence =
      "an engine that differs from run to run cannot be compared with what is expected, so it is "
      "not accused";
  j.next_steps.push_back(
      e.match->draws
          ? "let its random ops use the numbers of `random` (docs/reference/engine-protocol.md), "
            "or set their rate to 0 in the scenario and in the script"
          : "make the step repeatable: look for numbers without a seed, and memory that is read "
            "before it is written");
}

void tensor_outside(const Evidence& e, Judgement& j) {
  add_sharding(e, j);
  tensor_findings(e, j);
  if (e.layer_fault) layer_finding(e, j);
  step_findings(e, j);
  if (e.replica_split) split_finding(e, j);
}

void replicas_diverge(const Evidence& e, Judgement& j) {
  add_sharding(e, j);
  split_finding(e, j);
}

// An op or step that is judged from what it began with is right whether or not a rerun repeats it;
// whoever relies on the promise (a cache, a bisection, a resumed run) is wrong.
void promise_broken(const Evidence& e, Judgement& j) {
  add_sharding(e, j);
  control_finding(e, j, ControlKind::kSubjectRepeats, "subject_parts",
                  "The same training, run twice on the engine, gives different bits.");
  j.headline = fmt::format(
      "{} promises the same bits on a rerun and does not give them: the same run twice parts at "
      "step {}. Nothing else that was judged is wrong.",
      e.subject.name, *e.subject_diverges_at);
  j.confidence = "certain: digests of the same program on the same engine differ";
  j.next_steps.push_back(
      "make the engine repeat itself, or let it declare `deterministic` = false "
      "(docs/reference/engine-protocol.md)");
}

// The effect is reported as well; it is no engine fault whatever the effect is.
void other_formula(const Evidence& e, Judgement& j) {
  add_sharding(e, j);
  program_findings(e, j, VerdictClass::kProgram);
  std::stable_partition(j.findings.begin(), j.findings.end(),
                        [](const Finding& f) { return f.verdict == VerdictClass::kProgram; });
  const Explanation& first = e.match->explanations.front();
  j.headline =
      fmt::format("{} and the scenario do not compute the same function: {} {}{}.", e.subject.name,
                  e.subject.name, first.has_formula() ? "" : "has ", explained_by(e));
  j.confidence = fmt::format(
      "statistical (tensors are compared): with this change to the scenario, every tensor of {} "
      "steps is where conforming engines put it; without it, {} is not",
      e.match->states, e.match->outside.empty() ? "one" : e.match->outside.front().tensor);
  if (!e.all_cores) return;
  j.headline += " One core alone shows it, so it is no matter of sharding.";
  j.notes.push_back(
      fmt::format("On {} cores the same tensors follow from {}, which changes nothing on one core.",
                  e.cores, explained_by(*e.all_cores)));
}

void other_program(const Evidence& e, Judgement& j) {
  undecided_finding(
      e, j, find_row(e, "T - R"),
      e.one_core ? fmt::format("On {} cores its tensors follow from {}; on one core "
                               "alone, where that changes nothing, {} is outside.",
                               e.cores, explained_by(*e.match),
                               e.one_core->outside.empty() ? "a tensor"
                                                           : e.one_core->outside.front().tensor)
                 : "The ops that the engine ran are not those it was asked to run.");
  j.headline =
      "The subject runs another program than it was asked to, and no known cause explains it.";
  j.confidence = e.one_core ? "what shows on one core is not sharding"
                            : "every op of the program it ran is inside its bound";
  j.next_steps.push_back(
      e.one_core ? "judge the script on one core, where less can differ: --set tpu.cores=1"
                 : "compare the list of its ops with `twinrun inspect SCENARIO --ops`");
}

void hidden_state(const Evidence& e, Judgement& j) {
  add_sharding(e, j);
  if (e.match && e.match->outcome == Identification::Outcome::kExplained)
    program_findings(e, j, VerdictClass::kSharding);
  const HiddenState& h = *e.hidden_state;
  j.headline = fmt::format(
      "{} keeps something that its state does not hold: step {}, resumed from the state that it "
      "gave, makes {} otherwise, by {}.",
      e.subject.name, h.step, h.tensor, text::relative(h.relative));
  j.confidence = fmt::format(
      "statistical (tensors are compared): the resumed step is farther from the step of the run "
      "than conforming engines are from each other; {} resumed",
      h.probed == 1 ? "one step was" : fmt::format("{} steps were", h.probed));
  j.next_steps.push_back(
      "put what the script keeps (the counter of a schedule, a momentum, a random generator) into "
      "the state that it returns, or let it follow from the number of the step");
}

void subject_not_finite(const Evidence& e, Judgement& j) {
  const FirstNonFinite& first = *e.subject_non_finite;
  undecided_finding(
      e, j, find_row(e, "T - R"),
      fmt::format("{} at step {} of T; R and S stay finite.", first_produces(first), first.step));
  Finding& f = j.findings.back();
  f.step = first.step;
  f.op = first.op;
  f.phase = first.phase;
  j.headline = fmt::format(
      "The subject ends in {}, which the reference does not: {} at step {}. Nothing that was "
      "judged is wrong.",
      first.what, first_produces(first), first.step);
  j.confidence = "no bound holds for results that are not finite";
  if (e.level == 'C')
    advise_layers(e, j);
  else
    j.next_steps.push_back("replay every op of every step: --set diagnose.probe=every");
}

void not_judged(const Evidence& e, Judgement& j) {
  const std::string what =
      !e.unbounded.empty() ? fmt::format("no element of {} has a finite bound", e.unbounded.front())
      : e.match && !e.match->why.empty() ? e.match->why
      : e.step_coverage.set_aside > 0
          ? "a decision that depends on a rounding explains what differs at every step that was "
            "compared"
          : "no step was compared with conforming engines";
  undecided_finding(e, j, find_row(e, "T - R"), capitalized(what) + ".");
  j.headline = fmt::format("The subject could not be judged: {}.", what);
  j.confidence = "what was not compared is neither right nor wrong";
  j.next_steps.push_back(e.level == 'C'
                             ? "compare more steps: --set train.steps=N"
                             : "look at the op's operands: `twinrun inspect SCENARIO --ops`");
}

}  // namespace verdicts
}  // namespace twinrun
