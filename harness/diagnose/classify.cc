// Decides the verdict from the evidence, in the order of the table in docs/method/diagnosis.md.
#include "harness/diagnose/classify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/diagnose/findings.h"
#include "reports/text.h"

namespace twinrun {
namespace {

bool no_effect(const TrajectoryRow* row) {
  return row != nullptr && effect_of(*row) == Effect::kNoneDetected;
}

bool has_learnt(const Evidence& e) { return !e.learning || e.learning->learnt; }

// Beside a SHARDING verdict, notes the smallest effect of the engine itself (T - S) that the seeds
// would show, if they do not resolve it.
void tell_resolution(const Evidence& e, Judgement& j) {
  const TrajectoryRow* engine = find_row(e, "T - S");
  if (j.verdict == VerdictClass::kSharding && engine != nullptr && engine->detectable > 0 &&
      effect_of(*engine) == Effect::kUndecided)
    j.notes.push_back(unresolved_text(*engine));
}

const char* nothing_outside(const Evidence& e) {
  return e.level == 'C' ? "No tensor is outside what honest engines do"
                        : "No op is outside its bound";
}

constexpr const char* kUndecided =
    "the seeds do not decide: the interval of the effect contains 0, and an effect that matters "
    "would not have been seen for sure";
constexpr const char* kNothingLearnt =
    "a run that learns nothing shows no effect on what is learnt";
constexpr std::string_view kProbeEvery =
    "replay every op of every step: --set diagnose.probe=every";

void inconclusive(Judgement& j, std::string headline, std::string why,
                  std::vector<std::string> next) {
  j.verdict = VerdictClass::kInconclusive;
  j.headline = std::move(headline);
  j.confidence = std::move(why);
  for (auto& n : next) j.next_steps.push_back(std::move(n));
}

// The subject's script runs another program, of a known cause. Whether that matters follows from
// the effect of that program on the reference (S - R, if S was trained) and from T - R.
void judge_script(const Evidence& e, Judgement& j, const TrajectoryRow* tr,
                  const TrajectoryRow* sr) {
  const TrajectoryRow* own = sr != nullptr ? sr : tr;
  const VerdictClass as = is_significant(own) ? VerdictClass::kSharding
                          : no_effect(own) && no_effect(tr) && has_learnt(e)
                              ? VerdictClass::kNoise
                              : VerdictClass::kInconclusive;
  if (e.meaning.differs()) sharding_findings(e, j, as);
  program_findings(e, j, as);
  if (as == VerdictClass::kInconclusive && no_effect(own) && no_effect(tr)) {
    inconclusive(j,
                 fmt::format("The subject's script runs another program than it was asked to ({}), "
                             "but the reference has not learnt: what it does to learning cannot be "
                             "seen.",
                             explained_by(e)),
                 kNothingLearnt, {});
    return;
  }
  if (as == VerdictClass::kInconclusive) {
    inconclusive(
        j,
        fmt::format("The subject's script runs another program than it was asked to ({}), but the "
                    "seeds do not decide whether that matters.",
                    explained_by(e)),
        kUndecided, {what_decides({tr, sr})});
    return;
  }
  j.verdict = as;
  j.headline = fmt::format(
      "{}The subject's script runs another program than it was asked to ({}). {}.",
      as == VerdictClass::kSharding ? "" : "Noise: ", explained_by(e), effect_words(*own));
  j.confidence =
      fmt::format("{}; {}", trials_text(*own),
                  e.match->read ? "the cause was told from what the ops read, bit by bit"
                                : "the cause was matched tensor by tensor, one step from "
                                  "the subject's own states");
}

// The subject's script computes another function, and the formula is known. The effect is reported
// as well; it is no engine fault in either case.
void judge_program(const Evidence& e, Judgement& j) {
  if (e.meaning.differs()) sharding_findings(e, j, VerdictClass::kSharding);
  program_findings(e, j, VerdictClass::kProgram);
  std::ranges::stable_partition(
      j.findings, [](const Finding& f) { return f.verdict == VerdictClass::kProgram; });
  j.verdict = VerdictClass::kProgram;
  j.headline = fmt::format("{} and the scenario do not compute the same function: {} {}.",
                           e.subject.name, e.subject.name, explained_by(e));
  j.confidence = fmt::format(
      "statistical (level C, tensors only): with the scenario changed so, every tensor of {} steps "
      "is where honest engines put it; without, {} is not",
      e.match->states, e.match->outside.empty() ? "one" : e.match->outside.front().tensor);
}

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

// The engine failed: INCONCLUSIVE, with the lines of its error as evidence.
void failed_engine(const Evidence& e, Judgement& j) {
  Finding f;
  f.verdict = VerdictClass::kInconclusive;
  f.cause = "engine_failed";
  const std::string& what = e.engine_failure->what;
  const size_t first = std::min(what.find('\n'), what.size());
  f.sentence = fmt::format("In run {}, {}: {}", e.engine_failure_run, e.engine_failure->where,
                           what.substr(0, first));
  for (size_t at = first + 1; at < what.size();) {
    const size_t end = std::min(what.find('\n', at), what.size());
    f.evidence.push_back(what.substr(at, end - at));
    at = end + 1;
  }
  f.reproduce = e.command;
  f.level = 'C';
  inconclusive(j,
               fmt::format("The engine failed in run {}{}", e.engine_failure_run, reason_of(what)),
               "an engine that does not answer cannot be judged",
               {"is it the engine, or what it is asked? twinrun doctor --engine ENGINE"});
  if (!e.engine_failure->fix.empty()) j.next_steps.push_back(e.engine_failure->fix);
  j.findings.push_back(std::move(f));
}

// The sharded program means something else. The class is SHARDING if the known causes explain that
// and held-out metrics show a significant effect, however small.
void judge_sharding(const Evidence& e, Judgement& j, const TrajectoryRow* tr,
                    const TrajectoryRow* sr) {
  const std::string causes = named_causes(e);
  if (is_significant(sr) && e.meaning.explained()) {
    sharding_findings(e, j, VerdictClass::kSharding);
    j.verdict = VerdictClass::kSharding;
    j.headline = fmt::format(
        "Sharding changes what the program means (cause: {}). On cpu alone, without the engine, "
        "{}.",
        causes, lower_first(effect_words(*sr)));
    j.confidence = trials_text(*sr) + "; no op of the engine is outside its bound";
    return;
  }
  if (no_effect(sr) && no_effect(tr) && has_learnt(e)) {
    noise(e, j);
    sharding_findings(e, j, VerdictClass::kNoise);
    std::ranges::stable_sort(j.findings, std::less<>(),
                             [](const Finding& f) { return f.share.has_value(); });
    j.headline = fmt::format("Noise: sharding changes the program's meaning ({}), but {}.", causes,
                             lower_first(effect_words(*sr)));
    j.next_steps.clear();
    j.notes.push_back(
        "The sharded program does not mean the same; the seeds would have shown an effect as large "
        "as what another seed does.");
    return;
  }
  sharding_findings(e, j, VerdictClass::kInconclusive);
  if (j.findings.empty())
    undecided_finding(e, j, sr,
                      "Sharding changes what the program means, and no known cause explains it.");
  if (is_significant(sr)) {
    inconclusive(
        j,
        fmt::format("Sharding changes what the program means, but the known causes ({}) do "
                    "not explain all of it. {}.",
                    causes, effect_words(*sr)),
        fmt::format("with every known cause undone, one step still differs by {}",
                    text::relative(e.meaning.residual)),
        {"compare the two programs: `twinrun inspect SCENARIO --program`"});
    return;
  }
  if (!has_learnt(e) && !(sr != nullptr && sr->differences.size() < 2)) {
    inconclusive(
        j,
        fmt::format("Sharding changes the program's meaning ({}), but the reference has not "
                    "learnt: what it does to learning cannot be seen.",
                    causes),
        kNothingLearnt, {});
    return;
  }
  inconclusive(
      j,
      fmt::format(
          "Sharding changes the program's meaning ({}), but {} do not decide whether "
          "that matters.",
          causes,
          text::plural(sr == nullptr ? 0 : static_cast<int64_t>(sr->differences.size()), "seed")),
      is_significant(tr) ? "the user's drift is significant, sharding alone does not show it"
                         : kUndecided,
      {what_decides({tr, sr})});
}

Judgement judge(const Evidence& e) {
  Judgement j;
  if (e.reference_diverges_at) {
    j.verdict = VerdictClass::kNondeterministic;
    j.headline = fmt::format(
        "The reference is not deterministic: R and R' part at step {}{}.", *e.reference_diverges_at,
        e.reference_diverges_op.empty() ? "" : " in " + e.reference_diverges_op);
    j.confidence = "certain: digests of the same program on the same engine differ";
    control_finding(e, j, "R =", "reference_parts",
                    "The same training run twice on the reference gives other bits.");
    j.next_steps.push_back(
        "nothing else is concluded from this machine until this is found: memory test, then "
        "--threads 1");
    return j;
  }
  if (e.reference_non_finite) {
    Finding f;
    f.verdict = VerdictClass::kInconclusive;
    f.cause = "reference_diverges";
    f.step = e.reference_non_finite->step;
    f.op = e.reference_non_finite->op;
    f.phase = e.reference_non_finite->phase;
    f.sentence = fmt::format(
        "{} is born in {} ({} phase) at step {} of {}, the cpu reference itself.",
        e.reference_non_finite->what, e.reference_non_finite->op, e.reference_non_finite->phase,
        e.reference_non_finite->step, e.reference_non_finite_run);
    for (const Control& control : e.controls) {
      if (control.run && control.passed)
        f.evidence.push_back(fmt::format("{}: {}", control.name, control.detail));
    }
    f.reproduce = e.command;
    inconclusive(j,
                 fmt::format("The reference diverges: {} is born in {} at step {} ({}).",
                             e.reference_non_finite->what, e.reference_non_finite->op,
                             e.reference_non_finite->step, e.reference_non_finite_run),
                 "a subject cannot be judged against a reference that fails",
                 {"lower optimizer.lr, or clip the gradient, until cpu trains"});
    j.findings.push_back(std::move(f));
    return j;
  }
  if (e.engine_failure) {
    failed_engine(e, j);
    return j;
  }
  if (e.emulator_fails) {
    inconclusive(j,
                 "The emulator fails its own control: at precision f32 it is not the reference, "
                 "bit for bit.",
                 "it may accuse nobody before that holds",
                 {"report this with the scenario: it is a bug of twinrun"});
    control_finding(
        e, j, "emulator", "emulator",
        "The emulated engine, set to full float32, gives other bits than the reference.");
    return j;
  }
  if (e.subject_diverges_at) {
    j.notes.push_back(
        fmt::format("The subject is not deterministic{}: T and T' part at step {}.{}{}",
                    e.subject.deterministic ? "" : ", as it declares", *e.subject_diverges_at,
                    !e.violations.empty() ? ""
                    : e.level == 'C' ? " Each step is judged from the state that it began with."
                                     : " Every op is inside its bound in both.",
                    e.spread ? " " + e.spread->text() : ""));
  }
  if (e.subject_non_finite) {
    j.notes.push_back(fmt::format(
        "The subject ends in {} at step {}{}; the references do not.", e.subject_non_finite->what,
        e.subject_non_finite->step,
        e.subject_non_finite->op.empty() ? "" : ", born in " + e.subject_non_finite->op));
  }
  const bool explained = e.match && e.match->outcome == Identification::Outcome::kExplained;
  const bool unexplained = e.match && e.match->outcome == Identification::Outcome::kUnexplained;
  if (!e.violations.empty()) {
    if (e.meaning.differs()) sharding_findings(e, j, VerdictClass::kSharding);
    if (explained) program_findings(e, j, VerdictClass::kSharding);
    engine_bug(e, j);
    if (explained)
      j.headline += fmt::format(" Its script runs another program besides ({}).", explained_by(e));
    if (e.meaning.differs()) {
      j.headline +=
          fmt::format(" Sharding changes the program's meaning besides ({}).", named_causes(e));
      j.notes.push_back(
          "Whether the change of meaning matters is not judged beside an engine bug: its runs "
          "cannot be compared before that is mended.");
    }
    return j;
  }
  if (e.match && e.match->outcome == Identification::Outcome::kUnrepeatable) {
    unrepeatable_finding(e, j);
    inconclusive(
        j,
        fmt::format("{} (framework or script) does not repeat itself: the same step, run "
                    "twice, is {} apart, which is more than rounding.",
                    e.subject.name, text::relative(e.match->apart)),
        "what differs from run to run cannot be held against what is due: it is not accused",
        {e.match->draws
             ? "let its random ops use the numbers of `random` "
               "(docs/reference/engine-protocol.md), or set "
               "their rate to 0 in the scenario and in the script"
             : "make the step repeatable: look for numbers without a seed, and memory that is "
               "read before it is written"});
    return j;
  }
  if (unexplained && e.level == 'C') {
    if (e.meaning.differs()) sharding_findings(e, j, VerdictClass::kSharding);
    tensor_findings(e, j);
    if (e.layer_fault) layer_finding(e, j);
    step_findings(e, j);
    if (e.replica_split) split_finding(e, j);
    return j;
  }
  if (e.replica_split) {
    if (e.meaning.differs()) sharding_findings(e, j, VerdictClass::kSharding);
    split_finding(e, j);
    return j;
  }
  if (e.identical) {
    identical(e, j);
    return j;
  }
  if (explained && e.match->explanations.front().has_formula()) {
    judge_program(e, j);
    return j;
  }
  if (unexplained) {
    undecided_finding(e, j, find_row(e, "T - R"),
                      "The ops that the engine ran are not those it was asked to run.");
    inconclusive(
        j, "The subject runs another program than it was asked to, and no known cause explains it.",
        "every op of the program it ran is inside its bound",
        {"compare the list of its ops with `twinrun inspect SCENARIO --program`"});
    return j;
  }
  if (e.quick && e.held_out && !explained) {
    undecided_finding(
        e, j, find_row(e, "T - R"),
        fmt::format("{}; whether the remaining difference matters takes several seeds.",
                    nothing_outside(e)));
    inconclusive(
        j, "Nothing wrong was found in the quick look, and the runs are not bit-equal.",
        "--quick runs no seeds: it can show a fault, another program or exact agreement, not what "
        "noise may do",
        {"run again without --quick: it trains the seeds that decide"});
    return j;
  }
  const TrajectoryRow* tr = find_row(e, "T - R");
  const TrajectoryRow* sr = find_row(e, "S - R");
  if (explained) {
    judge_script(e, j, tr, sr);
    return j;
  }
  if (e.meaning.differs()) {
    judge_sharding(e, j, tr, sr);
    return j;
  }
  if (std::ranges::find(e.ensembles, "outside", &EnsembleRow::outcome) != e.ensembles.end()) {
    undecided_finding(e, j, tr,
                      "The engine's first steps lie farther from those of correct engines than "
                      "these lie from each other.");
    inconclusive(
        j,
        "The subject's first steps are not those of an honest engine of its declaration, yet "
        "nothing wrong was found in them.",
        "farther from honest engines than they are from each other; a bias below the bounds, or a "
        "cause outside every switch",
        {std::string(kProbeEvery), "compare with more engines: --set diagnose.ensemble=40"});
    return j;
  }
  if (!e.held_out) {
    noise(e, j);
    j.notes.push_back(
        "Whether the drift matters for what is learnt was not judged: an imported step comes with "
        "one initial state and no held-out samples.");
    return j;
  }
  if (!has_interval(tr) && !no_effect(tr)) {
    undecided_finding(e, j, tr, "Whether the engine's drift matters was not tested.");
    inconclusive(
        j,
        fmt::format(
            "{} and the program means the same, but whether the drift matters was not tested.",
            nothing_outside(e)),
        "one seed gives no interval", {what_decides({tr})});
    return j;
  }
  // Rounding explains a small effect. If the whole interval lies beyond what the declared margin,
  // or another seed, allows (must_see), the effect is not attributed to rounding.
  const bool beyond =
      !std::isfinite(tr->mean) || tr->low > tr->must_see || tr->high < -tr->must_see;
  if (!beyond || no_effect(tr)) {
    noise(e, j);
    return j;
  }
  undecided_finding(
      e, j, tr,
      "The drift is larger than rounding is known to make it, and neither an op nor a "
      "cause of sharding explains it.");
  inconclusive(
      j,
      fmt::format("{}, which is more than {}; yet every {} and the program means the same.",
                  effect_words(*tr),
                  tr->margin > 0 ? "the margin that " + tr->margin_source + " declares"
                                 : "what another seed does",
                  e.level == 'C' ? "tensor is where honest engines put it"
                                 : "probed op is inside its bound"),
      "cause outside every switch, or a bias below the bounds",
      {std::string(kProbeEvery),
       "see whether it is the operands' precision: --set tpu.precision=highest"});
  return j;
}

}  // namespace

Judgement classify(const Evidence& e) {
  Judgement j = judge(e);
  answer_effect(e, j);
  if (e.hidden_state) hidden_state_finding(e, j);
  if (e.match && e.match->harmless) harmless_notes(e, j);
  tell_resolution(e, j);
  return j;
}

}  // namespace twinrun
