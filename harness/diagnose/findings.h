// What the classifier says of each kind of evidence: findings, sentences, numbers. Which kind decides is classify.cc's table.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/diagnose/classify.h"

namespace twinrun {

// The subject as a headline has it: nobody is to take the emulator for a device.
std::string subject_name(const Evidence& evidence);
// Of the rows of a pair, by several metrics, the one that says most.
const TrajectoryRow* find_row(const Evidence& evidence, const std::string& pair);
// "Held-out loss is 0.0125 higher (worse) [+0.0087, +0.0163]", "... moves by ... [...]: no effect detected".
std::string effect_words(const TrajectoryRow& row);
std::string capitalized(std::string sentence);
std::string lower_first(std::string sentence);
// "95% over all looks and metrics: t intervals of 5 paired seeds, each of 99.5%": what an answer of the seeds rests on.
std::string trials_text(const TrajectoryRow& row);
// The second answer of the judgement: what the drift does to what is learnt, or why that is undecided.
void answer_effect(const Evidence& evidence, Judgement& judgement);

// Number and bound of a claim that rests on a held-out metric.
void set_effect(const TrajectoryRow& row, Finding& finding);
// "S - R of held-out loss +0.0125, interval [+0.0087, +0.0163]: harmful"
std::string effect_number(const TrajectoryRow& row);
bool has_interval(const TrajectoryRow* row);  // of two seeds or more
// Number and bound of one that rests on tensors: how far from honest engines, and who says so.
std::string spreads(double ratio, double threshold);
std::string envelope_source(const MatchResult& match);

// The violations as findings, the first wrong op leading; headline and confidence of an ENGINE_BUG.
void engine_bug(const Evidence& evidence, Judgement& judgement);
// The causes that S has, with their shares, most important first.
// "equal at 2 random points of the field of 2^61 - 1 elements, as another function of degree 58 or less is with ..."
std::string proof_text(const ProofRow& proof);
void sharding_findings(const Evidence& evidence, Judgement& judgement, VerdictClass as);
// "reduction 90 %, batch norm 10 %"
std::string named_causes(const Evidence& evidence);
// "a missing all-reduce and ..." of sharding causes; "adds epsilon after ..., and has ..." where a formula is among them.
std::string parts_text(const Explanation& explanation);
// What the subject does otherwise, though the batch means the same.
void harmless_notes(const Evidence& evidence, Judgement& judgement);
// The same of all explanations of Evidence::match, "..., or ...".
std::string explained_by(const Evidence& evidence);
// What the subject's script changed, told from its tensors.
void program_findings(const Evidence& evidence, Judgement& judgement, VerdictClass as);
// Tensors that neither honest engines nor a sharding cause explain; headline and confidence of an ENGINE_BUG.
void tensor_findings(const Evidence& evidence, Judgement& judgement);
// Beside tensor_findings: at how many steps, and whether the first of them began from another state than the engine had reported.
void step_findings(const Evidence& evidence, Judgement& judgement);
// Beside tensor_findings: which layer it was, and in which pass, of an engine that shows what its layers give.
void layer_finding(const Evidence& evidence, Judgement& judgement);
// Cores that part in one step by more than rounding; headline and confidence of an ENGINE_BUG unless there is another one.
void split_finding(const Evidence& evidence, Judgement& judgement);
// Resuming from the subject's own state gives another step than its run did: told beside any verdict.
void hidden_state_finding(const Evidence& evidence, Judgement& judgement);
// "200 of 200 steps were taken again by the reference, 24 of them ..."; "" where the subject's ops were seen.
std::string coverage_text(const StepCoverage& coverage);
// Tensors of a subject that is as far from itself, run again, as from what is due.
void unrepeatable_finding(const Evidence& evidence, Judgement& judgement);
void identical(const Evidence& evidence, Judgement& judgement);
// NOISE and its kind.
void noise(const Evidence& evidence, Judgement& judgement);
// What INCONCLUSIVE rests on: a difference of held-out loss (or nullptr) that decides nothing.
void undecided_finding(const Evidence& evidence, Judgement& judgement, const TrajectoryRow* row,
                       std::string sentence);
// A control that failed, of the judgement's class.
void control_finding(const Evidence& evidence, Judgement& judgement, std::string_view control,
                     std::string cause, std::string sentence);
// How many seeds would decide, and which margin: "about 34 seeds would decide, ...: --set diagnose.max_seeds=34; or, ..."
std::string what_decides(const std::vector<const TrajectoryRow*>& rows);
// "The engine's own effect (T - S) is not resolved: 3 seeds would show a change of 0.130 or more."
std::string unresolved_text(const TrajectoryRow& row);
// All elements inside; `sum`, the op among the sums with the largest error, at `ratio` of its bound ("": none).
std::string inside_text(const EngineProbe& probe, const std::string& sum, double ratio);
// The losses of the run in which a NaN or Inf was born.
void tell_losses(Finding& finding, std::span<const float> losses);

// What to do about an engine bug.
inline constexpr std::string_view kFileIt = "file it: report.md is made to be pasted";
inline constexpr std::string_view kNothingToFile =
    "nothing to file: the fault was put there on purpose";

}  // namespace twinrun
