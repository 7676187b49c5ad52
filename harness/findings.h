// What the classifier says of each kind of evidence: findings, sentences, numbers. Which kind decides is classify.cc's table.
#pragma once

#include <string>

#include "harness/classify.h"

namespace twinrun {

const TrajectoryRow* find_row(const Evidence& evidence, const std::string& pair);

// The violations as findings, the first wrong op leading; headline and confidence of an ENGINE_BUG.
void engine_bug(const Evidence& evidence, Judgement& judgement);
// The causes that S has, with their shares, most important first.
void sharding_findings(const Evidence& evidence, Judgement& judgement, VerdictClass as);
// "reduction 90 %, batch norm 10 %"
std::string named_causes(const Evidence& evidence);
// "a missing all-reduce, or ..." of Evidence::match.
std::string explained_by(const Evidence& evidence);
// What the subject's script changed, told from its tensors.
void program_findings(const Evidence& evidence, Judgement& judgement, VerdictClass as);
// Tensors that neither honest engines nor a sharding cause explain; headline and confidence of an ENGINE_BUG.
void tensor_findings(const Evidence& evidence, Judgement& judgement);
// IDENTICAL, or NOISE and its kind.
void noise(const Evidence& evidence, Judgement& judgement);

}  // namespace twinrun
