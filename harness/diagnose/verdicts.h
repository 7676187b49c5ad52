// Writes the judgement of each row of the table of verdicts (verdict_rows.h): headline, confidence,
// findings and next steps. The judgement comes with its class. Rows without a function here use
// `identical` and `noise` of findings.h.
#pragma once

#include "harness/diagnose/classify.h"

namespace twinrun {

// The row that shows the effect of another program of the subject's script: S - R if S was trained
// with that program, else T - R; nullptr if there is neither.
const TrajectoryRow* effect_of_script(const Evidence& evidence);

namespace verdicts {

// The experiment itself (verdicts.cc).
void reference_diverges(const Evidence& evidence, Judgement& judgement);
void reference_not_finite(const Evidence& evidence, Judgement& judgement);
void engine_failed(const Evidence& evidence, Judgement& judgement);
void emulator_fails(const Evidence& evidence, Judgement& judgement);
// The engine, and which program it ran.
void violation(const Evidence& evidence, Judgement& judgement);
void unrepeatable(const Evidence& evidence, Judgement& judgement);
void tensor_outside(const Evidence& evidence, Judgement& judgement);
void replicas_diverge(const Evidence& evidence, Judgement& judgement);
void promise_broken(const Evidence& evidence, Judgement& judgement);
void other_formula(const Evidence& evidence, Judgement& judgement);
void other_program(const Evidence& evidence, Judgement& judgement);
void hidden_state(const Evidence& evidence, Judgement& judgement);
void subject_not_finite(const Evidence& evidence, Judgement& judgement);
void not_judged(const Evidence& evidence, Judgement& judgement);

// A change of meaning and its effect (verdicts_effect.cc): of the subject's script, of sharding,
// ...
void script(const Evidence& evidence, Judgement& judgement);
void script_undecided(const Evidence& evidence, Judgement& judgement);
void sharding(const Evidence& evidence, Judgement& judgement);
void sharding_undecided(const Evidence& evidence, Judgement& judgement);
// ... or neither.
void quick(const Evidence& evidence, Judgement& judgement);
void ensemble_outside(const Evidence& evidence, Judgement& judgement);
void user_sharding(const Evidence& evidence, Judgement& judgement);
void not_tested(const Evidence& evidence, Judgement& judgement);
void beyond_rounding(const Evidence& evidence, Judgement& judgement);

}  // namespace verdicts
}  // namespace twinrun
