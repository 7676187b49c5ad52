// The rows of the table of verdicts, and their conditions.
#include "harness/diagnose/verdict_rows.h"

#include <algorithm>
#include <cmath>

#include "harness/diagnose/findings.h"
#include "harness/diagnose/verdicts.h"

namespace twinrun {
namespace {

bool is_identified_as(const Evidence& e, Identification::Outcome outcome) {
  return e.match && e.match->outcome == outcome;
}

// Whether known causes explain the other program that the subject ran.
bool is_explained(const Evidence& e) {
  return is_identified_as(e, Identification::Outcome::kExplained);
}

// Whether the explanation is of the script and not of how the batch is split: a formula, or anything
// that one core alone shows.
bool is_of_program(const Evidence& e) {
  return is_explained(e) &&
         (e.match->explanations.front().has_formula() || e.all_cores || e.cores == 1);
}

bool is_unexplained(const Evidence& e) {
  return is_identified_as(e, Identification::Outcome::kUnexplained);
}

bool has_no_effect(const TrajectoryRow* row) {
  return row != nullptr && effect_of(*row) == Effect::kNoneDetected;
}

const TrajectoryRow* seen_by_user(const Evidence& e) { return find_row(e, "T - R"); }
const TrajectoryRow* of_sharding(const Evidence& e) { return find_row(e, "S - R"); }

// Nothing was compared of a subject that shows tensors only, or ops of which no bound says anything.
bool is_unseen(const Evidence& e) {
  return !e.unbounded.empty() ||
         (e.level == 'C' &&
          (!e.match || is_identified_as(e, Identification::Outcome::kUntestable) ||
           e.step_coverage.judged <= e.step_coverage.set_aside));
}

// Whether the whole drift has an effect where `part` of it alone, which was measured, has none.
bool is_more_than(const Evidence& e, const TrajectoryRow* part) {
  const TrajectoryRow* whole = seen_by_user(e);
  return has_interval(part) && part != whole && !is_significant(part) && is_significant(whole);
}

// Whether the whole interval of the effect lies beyond what the declared margin, or another seed,
// allows (must_see). Rounding explains a smaller effect; a larger one is not attributed to it.
bool is_beyond_rounding(const Evidence& e) {
  const TrajectoryRow* row = seen_by_user(e);
  return row != nullptr && !has_no_effect(row) &&
         (!std::isfinite(row->mean) || row->low > row->must_see || row->high < -row->must_see);
}

using Judges = VerdictRow::Judges;

constexpr VerdictRow kRows[] = {
    {"reference_diverges", "R and R′ diverge", VerdictClass::kNondeterministic,
     [](const Evidence& e) { return e.reference_diverges_at.has_value(); },
     verdicts::reference_diverges, Judges::kNothing},
    {"reference_not_finite", "R or S ends in NaN or Inf", VerdictClass::kInconclusive,
     [](const Evidence& e) { return e.reference_non_finite.has_value(); },
     verdicts::reference_not_finite, Judges::kNothing},
    {"engine_failed",
     "the subject, an engine of another process, exits, hangs or returns an invalid answer",
     VerdictClass::kInconclusive, [](const Evidence& e) { return e.engine_failure.has_value(); },
     verdicts::engine_failed, Judges::kNothing},
    {"emulator_fails", "the emulator at precision `f32` does not have the bits of S",
     VerdictClass::kInconclusive, [](const Evidence& e) { return e.emulator_fails; },
     verdicts::emulator_fails, Judges::kNothing},
    {"violation",
     "a violation in T, or else in E1: an op outside its bound, a biased sum, a broken link "
     "between ops, or wrong samples",
     VerdictClass::kEngineBug, [](const Evidence& e) { return !e.violations.empty(); },
     verdicts::violation},
    {"unrepeatable",
     "a tensor is outside, and the step run again is as far from itself as from what is expected",
     VerdictClass::kInconclusive,
     [](const Evidence& e) { return is_identified_as(e, Identification::Outcome::kUnrepeatable); },
     verdicts::unrepeatable, Judges::kOpen},
    {"tensor_outside",
     "only tensors are seen, one is outside the envelope of conforming engines, and no "
     "cause and no formula explains it",
     VerdictClass::kEngineBug,
     [](const Evidence& e) { return is_unexplained(e) && e.level == 'C'; },
     verdicts::tensor_outside},
    {"replicas_diverge",
     "only tensors are seen, and cores that compute the same diverge in one step by more than "
     "rounding",
     VerdictClass::kEngineBug, [](const Evidence& e) { return e.replica_split.has_value(); },
     verdicts::replicas_diverge},
    {"user_sharding",
     "an imported step on several cores: in binary64 its update is not that of the step on one "
     "device (`--whole`), or its copies of what is one array differ",
     VerdictClass::kSharding,
     [](const Evidence& e) { return e.user_sharding && e.user_sharding->differs(); },
     verdicts::user_sharding},
    {"other_formula",
     "the subject ran another program: another formula, alone or with a cause of sharding, "
     "explains all its tensors; or what explains them shows on one core alone (run E1)",
     VerdictClass::kProgram, is_of_program, verdicts::other_formula},
    {"other_program",
     "the subject ran another program, and no known cause explains it; or one does, and E1, in "
     "which that cause changes nothing, is outside as well",
     VerdictClass::kInconclusive,
     [](const Evidence& e) { return is_unexplained(e) || (is_explained(e) && e.one_core); },
     verdicts::other_program, Judges::kOpen},
    {"hidden_state",
     "only tensors are seen, and a step that is resumed from the subject's own state is farther "
     "from the step of its run than rounding explains: the state does not hold all that the next "
     "step depends on",
     VerdictClass::kProgram,
     [](const Evidence& e) { return e.hidden_state && !e.hidden_state->promised; },
     verdicts::hidden_state},
    {"identical", "T has the bits of R, and E1 those of R1, after every step",
     VerdictClass::kIdentical, [](const Evidence& e) { return e.identical; }, identical},
    {"script_undecided",
     "a cause explains the other program, but T − R is significant where the effect of that "
     "program is not",
     VerdictClass::kInconclusive,
     [](const Evidence& e) { return is_explained(e) && is_more_than(e, effect_of_script(e)); },
     verdicts::script_undecided, Judges::kOpen},
    {"script", "a cause explains the other program of the subject's script",
     VerdictClass::kSharding, is_explained, verdicts::script},

    {"sharding_matters",
     "sharding changes the meaning, the known causes explain the change, and its effect (S − R) is "
     "significant, or was not tested: `--quick`, or one seed",
     VerdictClass::kSharding,
     [](const Evidence& e) {
       return e.meaning.differs() && e.meaning.explained() &&
              (is_significant(of_sharding(e)) || !has_interval(of_sharding(e)));
     },
     verdicts::sharding},
    {"subject_not_finite",
     "T ends in NaN or Inf, R and S do not, and no op or tensor is known to be wrong",
     VerdictClass::kInconclusive,
     [](const Evidence& e) { return e.subject_non_finite.has_value(); },
     verdicts::subject_not_finite, Judges::kOpen},
    {"not_judged",
     "an op without a finite bound for any of its elements; or only tensors are seen, and no step "
     "could be compared with conforming engines",
     VerdictClass::kInconclusive, is_unseen, verdicts::not_judged, Judges::kOpen},
    {"promise_broken",
     "the subject promises the same bits on a rerun, the same run twice gives others, and nothing "
     "else is wrong",
     VerdictClass::kNondeterministic,
     [](const Evidence& e) { return e.subject_diverges_at && e.subject.deterministic; },
     verdicts::promise_broken},
    {"sharding_undecided",
     "sharding changes the meaning, but T − R is significant where S − R is not",
     VerdictClass::kInconclusive,
     [](const Evidence& e) { return e.meaning.differs() && is_more_than(e, of_sharding(e)); },
     verdicts::sharding_undecided, Judges::kOpen},
    {"sharding", "sharding changes the meaning", VerdictClass::kSharding,
     [](const Evidence& e) { return e.meaning.differs(); }, verdicts::sharding},

    {"ensemble_outside",
     "the meaning is the same; the first steps of T are farther from those of conforming engines "
     "than these are from each other",
     VerdictClass::kInconclusive,
     [](const Evidence& e) {
       return std::ranges::find(e.ensembles, EnsembleOutcome::kOutside, &EnsembleRow::outcome) !=
              e.ensembles.end();
     },
     verdicts::ensemble_outside, Judges::kOpen},
    {"quick", "the meaning is the same; `--quick`", VerdictClass::kInconclusive,
     [](const Evidence& e) { return e.quick && e.held_out; }, verdicts::quick},
    {"imported", "the meaning is the same; an imported step without held-out batches",
     VerdictClass::kNoise, [](const Evidence& e) { return !e.held_out; }, noise},
    {"not_tested", "the meaning is the same; one seed only", VerdictClass::kInconclusive,
     [](const Evidence& e) {
       return !has_interval(seen_by_user(e)) && !has_no_effect(seen_by_user(e));
     },
     verdicts::not_tested},
    {"beyond_rounding",
     "the meaning is the same; the whole interval of T − R lies beyond the declared margin, or "
     "beyond what another seed "
     "does",
     VerdictClass::kInconclusive, is_beyond_rounding, verdicts::beyond_rounding, Judges::kOpen},
    {"noise", "the meaning is the same, and nothing else holds", VerdictClass::kNoise,
     [](const Evidence&) { return true; }, noise},
};

}  // namespace

std::span<const VerdictRow> verdict_rows() { return kRows; }

const VerdictRow& deciding_row(const Evidence& evidence) {
  return *std::ranges::find_if(kRows, [&](const VerdictRow& row) { return row.holds(evidence); });
}

const VerdictRow* find_verdict_row(std::string_view name) {
  const auto* row = std::ranges::find(kRows, name, &VerdictRow::name);
  return row == std::end(kRows) ? nullptr : row;
}

}  // namespace twinrun
