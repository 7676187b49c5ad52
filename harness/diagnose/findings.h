// Findings, sentences and numbers for each kind of evidence. The table of verdicts (verdict_rows.h)
// decides which kind determines the class, which the judgement has before these are called.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/diagnose/classify.h"

namespace twinrun {

// The subject's name in a headline: "The emulated TPU" for our emulator, so that it is not mistaken
// for a device.
std::string subject_name(const Evidence& evidence);
// Adds how to learn the layer at fault, unless the engine shows its layers already.
void advise_layers(const Evidence& evidence, Judgement& judgement);
// The row of a pair, among its metrics, that says most (`speaking` in harness/effect/effect.h);
// nullptr if there is none.
const TrajectoryRow* find_row(const Evidence& evidence, const std::string& pair);
// "Held-out loss is 0.0125 higher ([+0.0087, +0.0163]), worse, in 5 paired seeds", "... moves by
// ... in ..., which would have shown a change of ...".
std::string effect_words(const TrajectoryRow& row);
std::string capitalized(std::string sentence);
std::string lower_first(std::string sentence);
// The statistical basis of a result: "95% over all looks and metrics: t intervals of 5 paired
// seeds, each of 99.5%".
std::string trials_text(const TrajectoryRow& row);
// Fills the second answer of the judgement: the effect of the drift on what is learnt, or why that
// is undecided.
void answer_effect(const Evidence& evidence, Judgement& judgement);

// Sets number and bound of a finding that rests on a held-out metric.
void set_effect(const TrajectoryRow& row, Finding& finding);
// "held-out loss is moved by +0.0125 by sharding alone, on the reference, interval [+0.0087, +0.0163], in 5 paired seeds: harmful"
std::string effect_number(const TrajectoryRow& row);
bool has_interval(const TrajectoryRow* row);  // two seeds or more
// Number and bound of a finding that rests on tensors: the distance from conforming engines, and
// where the bound comes from.
std::string spreads(double ratio, double threshold);
std::string envelope_source(const Identification& match);

// Adds the violations as findings, the first wrong op first, and sets headline and confidence.
void engine_bug(const Evidence& evidence, Judgement& judgement);
// "equal at 2 random points of the field of 2^61 - 1 elements, as another function of degree 58 or
// less is with ..."
std::string proof_text(const ProofRow& proof);
// Adds a finding of class `as` for each cause that S has, with its share, most important first.
void sharding_findings(const Evidence& evidence, Judgement& judgement, VerdictClass as);
// "reduction 90 %, batch norm 10 %"
std::string named_causes(const Evidence& evidence);
// The parts of an explanation: "a missing all-reduce and ..." for sharding causes; "adds epsilon
// after ..., and has ..." if a formula is among them.
std::string parts_text(const Explanation& explanation);
// Adds notes on what the subject does otherwise without changing what the batch means.
void harmless_notes(const Evidence& evidence, Judgement& judgement);
// parts_text of all explanations, joined by ", or ".
std::string explained_by(const Identification& match);
inline std::string explained_by(const Evidence& evidence) { return explained_by(*evidence.match); }
// Adds findings for what the subject's script does otherwise than the scenario, as identified from
// its tensors or from what its ops read.
void program_findings(const Evidence& evidence, Judgement& judgement, VerdictClass as);
// Adds findings for tensors that neither conforming engines nor a known cause explain, and sets
// headline and confidence.
void tensor_findings(const Evidence& evidence, Judgement& judgement);
// Adds to tensor_findings: at how many steps tensors are outside, and whether the first of these
// steps began from another state than the engine had reported.
void step_findings(const Evidence& evidence, Judgement& judgement);
// Adds to tensor_findings: which layer is wrong, and in which pass, for an engine that shows the
// outputs of its layers.
void layer_finding(const Evidence& evidence, Judgement& judgement);
// Adds a finding for cores that diverge in one step by more than rounding; sets headline and
// confidence unless another finding has set them.
void split_finding(const Evidence& evidence, Judgement& judgement);
// Adds a finding, beside any verdict (and first where that decides), if resuming from the subject's
// own state gives another step than its run did.
void hidden_state_finding(const Evidence& evidence, Judgement& judgement);
// "200 of 200 steps were taken again by the reference, 24 of them ..."; "" if the subject's ops
// were seen.
std::string coverage_text(const StepCoverage& coverage);
// Adds a finding for a subject whose tensors, when a step is run again, differ from the first run
// as much as from the expected ones.
void unrepeatable_finding(const Evidence& evidence, Judgement& judgement);
// The judgement of IDENTICAL.
void identical(const Evidence& evidence, Judgement& judgement);
// The judgement of NOISE, with its kind: precision, rounding or update algebra.
void noise(const Evidence& evidence, Judgement& judgement);
// The finding of an INCONCLUSIVE verdict. `row`: the difference of a held-out metric that decides
// nothing, or nullptr.
void undecided_finding(const Evidence& evidence, Judgement& judgement, const TrajectoryRow* row,
                       std::string sentence);
// Adds a finding, of the judgement's class, for a control that failed.
void control_finding(const Evidence& evidence, Judgement& judgement, ControlKind control,
                     std::string cause, std::string sentence);
// How many seeds, or which margin, would decide: "about 34 seeds would decide, ...: --set
// diagnose.max_seeds=34; or, ..."
std::string what_decides(const std::vector<const TrajectoryRow*>& rows);
// "The engine's own effect is not resolved: 3 seeds would show a change of 0.130 or more."
std::string unresolved_text(const TrajectoryRow& row);
// Says that all elements are inside their bounds. `sum`: the op with the largest error among the
// sums, which reaches `ratio` of its bound; "": no sum is named.
std::string inside_text(const EngineProbe& probe, const std::string& sum, double ratio);
// Sets the finding's number to the last losses of a run that ended in NaN or Inf.
void tell_losses(Finding& finding, std::span<const float> losses);

}  // namespace twinrun
