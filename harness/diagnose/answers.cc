// The five questions, answered by a diagnosis of a scenario.
#include <fmt/format.h>

#include <algorithm>

#include "harness/diagnose/stages.h"
#include "reports/text.h"

namespace twinrun {
namespace {

using Outcome = Answer::Outcome;

Answer repeats(const Evidence& e, const Report& r) {
  if (e.reference_diverges_at) return {Outcome::kNo, r.headline};
  Answer out{Outcome::kNotAsked, "no run was repeated"};
  for (const Control& c : e.controls) {
    const bool subject = c.kind == ControlKind::kSubjectRepeats;
    if (!c.run || (!subject && c.kind != ControlKind::kReferenceRepeats)) continue;
    if (!c.passed) return {Outcome::kNo, c.detail.empty() ? c.name : c.detail};
    if (subject || out.outcome == Outcome::kNotAsked)
      out = {Outcome::kYes, subject ? "reference and engine give the same bits again"
                                    : "the reference gives the same bits again; the engine was "
                                      "run once"};
  }
  if (e.inside_again.value_or(false) && r.verdict == VerdictClass::kEngineBug)
    return {Outcome::kNo,
            "a step that was wrong is right when it runs again from the state that the engine "
            "reported: the fault comes and goes, or the engine keeps more than its state"};
  return out;
}

Answer operations(const Evidence& e, const Report& r) {
  if (r.verdict == VerdictClass::kEngineBug) return {Outcome::kNo, r.headline};
  if (e.engine_failure) return {Outcome::kOpen, "the engine failed"};
  int64_t elements = 0, ops = 0;
  for (const EngineProbe& p : r.probes) {
    elements += p.elements;
    ops += p.ops;
  }
  if (elements > 0)
    return {Outcome::kYes, fmt::format("{} of {} are within their bounds",
                                       text::plural(elements, "element"), text::plural(ops, "op"))};
  if (e.match && e.match->outcome == Identification::Outcome::kInside)
    return {Outcome::kYes, fmt::format("the engine shows no ops; its tensors are within what "
                                       "conforming engines give, in {}",
                                       text::plural(e.match->states, "step"))};
  if (e.identical) return {Outcome::kYes, "the engine has the reference's bits"};
  return {r.verdict == VerdictClass::kInconclusive ? Outcome::kOpen : Outcome::kNotAsked,
          "the engine's ops were not judged"};
}

Answer program(const DiagnosisState& diagnosis, const Report& r) {
  const Evidence& e = diagnosis.evidence;
  if (r.verdict == VerdictClass::kProgram) return {Outcome::kNo, r.headline};
  if (diagnosis.experiment.imported)
    return {Outcome::kNotAsked,
            "the step is taken as it is written; whether its gradient is the derivative, and its "
            "optimizer the published formula, was not asked"};
  if (e.match) {
    if (e.match->outcome == Identification::Outcome::kInside)
      return {Outcome::kYes, "the engine's tensors are those of the requested program"};
    if (e.match->outcome == Identification::Outcome::kExplained) return {Outcome::kNo, r.headline};
    return {Outcome::kOpen, "no known program explains the engine's tensors"};
  }
  if (e.level == 'C' || e.engine_failure) return {Outcome::kNotAsked, "the engine shows no ops"};
  return {Outcome::kYes, "the engine ran the requested program, op by op"};
}

Answer user_sharding(const UserSharding& u, const Report& r) {
  if (r.verdict == VerdictClass::kSharding) return {Outcome::kNo, r.headline};
  if (u.differs())
    return {Outcome::kNo, "one step differs from that on one device by more than rounding"};
  if (!u.compared)
    return {Outcome::kPartly,
            "what the step declares to be one array is the same on all cores; what it means on one "
            "device was not given (--whole FILE)"};
  return {Outcome::kYes,
          fmt::format("{} the same as on one device, in binary64",
                      u.steps == 1 ? "1 step means" : fmt::format("{} steps mean", u.steps))};
}

Answer sharding(const DiagnosisState& diagnosis, const Report& r) {
  if (diagnosis.evidence.user_sharding) return user_sharding(*diagnosis.evidence.user_sharding, r);
  if (!diagnosis.sharded()) return {Outcome::kNotApplicable, "one core"};
  if (r.verdict == VerdictClass::kSharding) return {Outcome::kNo, r.headline};
  if (!r.proofs.empty() && r.proofs.front().unproven.empty()) {
    const ProofRow& p = r.proofs.front();
    if (p.gradient && p.update && p.statistics)
      return {Outcome::kYes,
              "proven exactly, modulo a prime: the sharded step is the whole batch's"};
    if (!diagnosis.evidence.meaning.differs())
      return {Outcome::kPartly,
              fmt::format("on these batches; exactly, modulo a prime, {} is not the whole batch's",
                          p.diverges_at.empty() ? "the step" : p.diverges_at)};
  }
  if (diagnosis.evidence.meaning.differs())
    return {Outcome::kNo, "one step differs from the whole batch's by more than rounding"};
  if (r.ablations.empty())
    return {Outcome::kNotAsked, "no step was held against the whole batch's"};
  return {Outcome::kYes, "one step is the whole batch's, but for rounding"};
}

Answer effect(const Report& r) {
  const std::string words = text::effect_of(r);
  switch (r.effect) {
    case Effect::kHarmful:
    case Effect::kBeneficial:
      return {Outcome::kYes, words};
    case Effect::kNoneDetected:
    case Effect::kSeedNoise:
    case Effect::kWithinMargin:
      return {Outcome::kNo, words};
    case Effect::kUndecided:
      break;
  }
  return {r.trajectories.empty() ? Outcome::kNotAsked : Outcome::kOpen, words};
}

}  // namespace

Answers answers_of(const DiagnosisState& diagnosis, const Report& r) {
  return {repeats(diagnosis.evidence, r), operations(diagnosis.evidence, r), program(diagnosis, r),
          sharding(diagnosis, r), effect(r)};
}

}  // namespace twinrun
