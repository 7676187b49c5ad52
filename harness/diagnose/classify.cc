// Judges the evidence by the table of verdicts (verdict_rows.cc), and prints that table.
#include "harness/diagnose/classify.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "harness/diagnose/findings.h"
#include "harness/diagnose/verdict_rows.h"
#include "reports/text.h"

namespace twinrun {
namespace {

// Notes, beside any verdict on the subject, that it is not deterministic or ends in NaN or Inf.
void note_subject(const Evidence& e, Judgement& j) {
  if (e.subject_diverges_at) {
    j.notes.push_back(fmt::format(
        "The subject is not deterministic{}: the same run twice diverges at step {}.{}{}",
        e.subject.deterministic ? "" : ", as it declares", *e.subject_diverges_at,
        !e.violations.empty() ? ""
        : e.level == 'C'      ? " Each step is judged from the state that it began with."
                              : " Every op is inside its bound in both.",
        e.spread ? " " + e.spread->text() : ""));
  }
  if (e.subject_non_finite) {
    j.notes.push_back(fmt::format(
        "The subject ends in {} at step {}{}; the references do not.", e.subject_non_finite->what,
        e.subject_non_finite->step,
        e.subject_non_finite->op.empty() ? "" : ", first in " + e.subject_non_finite->op));
  }
}

// Beside a SHARDING verdict, notes the smallest effect of the engine itself (T - S) that the seeds
// would show, if they do not resolve it.
void note_resolution(const Evidence& e, Judgement& j) {
  const TrajectoryRow* engine = find_row(e, "T - S");
  if (j.verdict == VerdictClass::kSharding && engine != nullptr && engine->detectable > 0 &&
      effect_of(*engine) == Effect::kUndecided)
    j.notes.push_back(unresolved_text(*engine));
}

// Beside a verdict that finds nothing wrong, notes what the diagnosis did not ask.
void note_what_was_not_asked(const Evidence& e, Judgement& j) {
  if (!e.held_out)
    j.notes.push_back(
        "Whether the drift matters for what is learnt was not judged: no held-out batches were "
        "given (--held-out FILE).");
  if (e.user_sharding) {
    const UserSharding& u = *e.user_sharding;
    j.notes.push_back(fmt::format(
        "{} in {} of {} cores.{}",
        u.compared
            ? "In binary64 the sharded step does what the step on one device does,"
            : "What the sharding means was not judged, because no step on one device was given "
              "(--whole); copies of state stay equal,",
        text::plural(u.steps, "step"), u.cores,
        u.unjudged.empty() ? ""
                           : fmt::format(" Not judged, as its change is rounding alone: {}.",
                                         fmt::join(u.unjudged, ", "))));
  }
  if (const ProofRow* proof = e.proofs.empty() ? nullptr : &e.proofs.front();
      proof != nullptr && !e.meaning.differs() && proof->unproven.empty() &&
      !(proof->gradient && proof->update && proof->statistics))
    j.remarks.push_back(fmt::format(
        "the sharded program is another function than the whole batch's{}, although the steps that "
        "were compared show no difference, as behind a clip that is always reached: other data may "
        "show one, and `twinrun check` names settings that do not fit",
        proof->diverges_at.empty() ? "" : " (they diverge at " + proof->diverges_at + ")"));
}

std::string exit_codes(VerdictClass verdict) {
  const int code = exit_code(verdict), accepted = exit_code(verdict, Effect::kWithinMargin);
  return accepted == code
             ? std::to_string(code)
             : fmt::format("{}; {} where the effect lies inside a declared margin", code, accepted);
}

}  // namespace

Judgement classify(const Evidence& e) {
  const VerdictRow& row = deciding_row(e);
  Judgement j;
  j.verdict = row.verdict;
  j.row = row.name;
  if (row.judges != VerdictRow::Judges::kNothing) note_subject(e, j);
  row.write(e, j);
  answer_effect(e, j);
  if (j.verdict == VerdictClass::kNoise || j.verdict == VerdictClass::kIdentical)
    note_what_was_not_asked(e, j);
  if (e.hidden_state) hidden_state_finding(e, j);
  if (e.match && e.match->harmless) harmless_notes(e, j);
  note_resolution(e, j);
  return j;
}

std::string verdict_table_markdown() {
  std::string out = "| | row | condition | class | exit |\n|---|---|---|---|---|\n";
  int order = 0;
  for (const VerdictRow& row : verdict_rows())
    out += fmt::format("| {} | `{}` | {} | `{}` | {} |\n", ++order, row.name, row.condition,
                       to_string(row.verdict), exit_codes(row.verdict));
  return out;
}

}  // namespace twinrun
