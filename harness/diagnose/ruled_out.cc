// Lists what the evidence excludes, each with its number.
#include "harness/diagnose/ruled_out.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/diagnose/findings.h"
#include "reports/text.h"

namespace twinrun {

std::vector<std::string> ruled_out(const Evidence& e, const Report& r) {
  std::vector<std::string> out;
  if (e.reference_diverges_at || e.reference_non_finite) return out;  // nothing can be excluded
  const auto probe = std::ranges::find(r.probes, "T", &EngineProbe::pair);
  if (probe != r.probes.end() && e.violations.empty() && e.level != 'C' &&
      r.verdict != VerdictClass::kEngineBug) {
    out.push_back(
        fmt::format("a wrong op of the engine: none of {} that were checked is outside its bound",
                    text::plural(probe->elements, "element")));
  }
  const bool repeats = std::ranges::any_of(r.controls, [](const Control& c) {
    return c.kind == ControlKind::kSubjectRepeats && c.run && c.passed;
  });
  if (repeats && !e.subject_diverges_at && !e.inside_again.value_or(false) &&
      r.verdict == VerdictClass::kEngineBug)
    out.push_back("chance: the subject gave the same bits when its first steps were run again");
  const MeaningResult& meaning = e.meaning;
  if (!meaning.steps.empty() && !meaning.differs()) {
    const ProofRow* proof = e.proofs.empty() ? nullptr : &e.proofs.front();
    if (proof != nullptr && proof->gradient && proof->update && proof->statistics) {
      out.push_back(
          fmt::format("sharding: the sharded program is the same function as the whole batch's: {}",
                      proof_text(*proof)));
      return out;
    }
    out.push_back(fmt::format(
        "sharding: in binary64 one step of the sharded program is {} away from the whole batch's, "
        "below {}{}",
        text::number(meaning.drift), text::number(meaning.threshold),
        proof == nullptr              ? ""
        : !proof->unproven.empty()    ? "; it is not proven: " + proof->unproven
        : !proof->diverges_at.empty() ? "; on other data they diverge at " + proof->diverges_at
                                      : "; on other data they diverge"));
    return out;
  }
  for (const AblationRow& row : r.ablations) {
    // A cause is ruled out only if undoing it leaves the change as it is: one that shrinks the
    // change contributes to it, even if too little to explain it.
    constexpr double kUnmoved = 0.99;
    if (row.direction != "restored in S" || row.explains ||
        !(row.drift_after >= kUnmoved * row.drift_before))
      continue;
    out.push_back(fmt::format("{}: undone on the reference, the change of one step stays {}",
                              row.cause, text::number(row.drift_after)));
  }
  return out;
}

}  // namespace twinrun
