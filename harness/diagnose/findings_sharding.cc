// Findings about causes: those that the sharded program has, and those that the subject's script
// introduces.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/diagnose/findings.h"
#include "harness/sharding/catalogue.h"
#include "reports/text.h"

namespace twinrun {
namespace {

std::string roundoff_text(const MeaningResult& meaning) {
  return meaning.threshold > kMeaningThreshold
             ? "four times float32's unit roundoff: 1/cores is no float32 number"
             : "a quarter of float32's unit roundoff";
}

// Whether the proof covers this kind of comparison. An evaluation follows from the state, so update
// and statistics prove it.
bool proves(const ProofRow& proof, StepKind kind) {
  return proof.unproven.empty() &&
         (kind == StepKind::kGradient     ? proof.gradient
          : kind == StepKind::kUpdate     ? proof.update
          : kind == StepKind::kStatistics ? proof.statistics
                                          : proof.update && proof.statistics);
}

const ProofRow* find_proof(const Evidence& e, const std::string& program) {
  const auto it = std::ranges::find(e.proofs, program, &ProofRow::program);
  return it == e.proofs.end() ? nullptr : &*it;
}

// What remains of the change with a cause undone: nothing, if that is proven; else the measured
// drift.
std::string left_over(const Evidence& e, const AblationRow& row) {
  const ProofRow* proof = find_proof(e, "without " + row.cause);
  if (proof != nullptr && row.drift_after <= row.envelope && proves(*proof, e.meaning.kind))
    return fmt::format("; with this cause undone the {} is the whole batch's function: {}",
                       to_string(e.meaning.kind), proof_text(*proof));
  return fmt::format(", and by {} with this cause undone; below {} ({}) it means the same",
                     text::relative(row.drift_after), text::number(row.envelope),
                     roundoff_text(e.meaning));
}

}  // namespace

std::string proof_text(const ProofRow& proof) {
  return fmt::format(
      "equal at {} random points of the field of 2^61 - 1 elements, as another function of degree "
      "{:.0f} or less is with a probability below 2^{:.0f}",
      proof.points, proof.degree, std::ceil(proof.log2_error));
}

void sharding_findings(const Evidence& e, Judgement& j, VerdictClass as) {
  const TrajectoryRow* effect = find_row(e, "S - R");
  const std::string kind(to_string(e.meaning.kind));
  for (const AblationRow& row : e.meaning.rows) {
    if (row.direction != "restored in S" || row.share < 0.01) continue;
    const auto cause = std::ranges::find(e.meaning.causes, row.cause, &ShardingCause::name);
    const std::string name = catalogued(row.cause)->subject;
    Finding f;
    f.verdict = as;
    f.cause = row.cause;
    f.phase = kind;
    f.share = row.share;
    f.level = 'A';
    const std::string changes = fmt::format("sharding changes the {} of one step by {}", kind,
                                            text::relative(e.meaning.drift));
    f.sentence =
        fmt::format("{} changes what the program means: {}. Its share of the squared change is {}.",
                    capitalized(name), cause->meaning, text::share(row.share));
    if (has_interval(effect)) {
      set_effect(*effect, f);
    } else {
      f.number = e.meaning.drift;
      f.bound = e.meaning.threshold;
      f.number_text = fmt::format("{}; allowed {}", changes, text::relative(e.meaning.threshold));
      f.bound_source = "meaning is compared in binary64; the bound is " + roundoff_text(e.meaning);
    }
    f.evidence.push_back(changes + left_over(e, row));
    if (const ProofRow* sharded = find_proof(e, "sharded");
        sharded != nullptr && !sharded->diverges_at.empty() && row.explains)
      f.evidence.push_back(
          "the first value that is not the whole batch's is " + sharded->diverges_at +
          (sharded->diverging_operand.empty()
               ? ""
               : fmt::format(", made of {}, of which each core has a part of its own",
                             sharded->diverging_operand)));
    if (has_interval(effect) && effect_of(*effect) == Effect::kBeneficial)
      f.evidence.push_back(
          "the sharded run is better here; the cure makes it behave as the unsharded reference "
          "does");
    f.evidence.push_back("cure: " + cause->cure);
    f.reproduce = e.command;
    j.findings.push_back(std::move(f));
    j.next_steps.push_back(cause->cure);
  }
  std::ranges::stable_sort(j.findings, std::greater<>(),
                           [](const Finding& f) { return f.share.value_or(0); });
}

std::string named_causes(const Evidence& e) {
  std::string names;
  for (const AblationRow& row : e.meaning.rows) {
    if (row.direction != "restored in S" || row.share < 0.01) continue;
    names += fmt::format("{}{} {}", names.empty() ? "" : ", ", catalogued(row.cause)->share,
                         text::share(row.share));
  }
  return names.empty() ? "no known cause" : names;
}

namespace {

std::string subject_of(const Explanation::Part& part) {
  if (part.sharding) return part.sharding->subject;
  const CataloguedCause* row = catalogued(part.cause);
  return row == nullptr || row->subject.empty() ? part.cause : row->subject;
}

// "adds epsilon after the bias correction, and has per-core batch norm": follows the subject of a
// sentence.
std::string doings_text(const Explanation& explanation) {
  std::string text;
  for (const Explanation::Part& part : explanation.parts) {
    text += text.empty() ? "" : ", and ";
    text += part.formula ? part.formula->meaning
                         : fmt::format("has {}{}", part.introduced ? "" : "no ", subject_of(part));
  }
  return text;
}

}  // namespace

std::string parts_text(const Explanation& explanation) {
  if (explanation.has_formula()) return doings_text(explanation);
  std::string text;
  for (const Explanation::Part& part : explanation.parts) {
    text += fmt::format("{}{}{}", text.empty() ? "" : " and ",
                        part.introduced ? "" : "the absence of ", subject_of(part));
  }
  return text;
}

std::string explained_by(const Identification& match) {
  std::string text;
  for (const Explanation& explanation : match.explanations)
    text += (text.empty() ? "" : ", or ") + parts_text(explanation);
  return text;
}

namespace {

std::string formula_sentence(const Evidence& e, const FormulaChange& change) {
  std::string text = fmt::format("{} {}.", e.subject.name, change.meaning);
  if (!change.frameworks.empty()) text += fmt::format(" Who does so: {}.", change.frameworks);
  return text;
}

}  // namespace

void program_findings(const Evidence& e, Judgement& j, VerdictClass as) {
  const Identification& m = *e.match;
  const TrajectoryRow* effect = find_row(e, "T - R");
  for (const Explanation& explanation : m.explanations) {
    for (const Explanation::Part& part : explanation.parts) {
      Finding f;
      // What one core shows is not sharding.
      const bool split = e.cores > 1 && !e.all_cores;
      f.verdict =
          as == VerdictClass::kProgram && !part.formula && split ? VerdictClass::kSharding : as;
      f.cause = part.formula ? part.formula->values.front().first : part.cause;
      f.level = m.read ? e.level : 'C';
      const auto found = std::ranges::find(e.known_causes, part.cause, &ShardingCause::name);
      const ShardingCause* known = part.sharding                   ? &part.sharding->cause
                                   : found == e.known_causes.end() ? nullptr
                                                                   : &*found;
      const bool known_cause = known != nullptr;
      f.sentence =
          part.formula
              ? formula_sentence(e, *part.formula)
              : fmt::format("The training script differs from the scenario{}.",
                            part.introduced && known_cause
                                ? ": " + known->meaning
                                : fmt::format(" by {}{}", part.introduced ? "" : "the absence of ",
                                              subject_of(part)));
      const std::string identified_by =
          m.read ? "what the ops read is bit by bit what this cause feeds"
                 : fmt::format(
                       "its tensors lie {} the spread from what this cause predicts ({}), and {} "
                       "the spread from what the scenario predicts",
                       text::times(explanation.ratio), envelope_source(m), text::times(m.ratio));
      if (has_interval(effect)) {
        set_effect(*effect, f);
        f.evidence.push_back(identified_by);
      } else {
        f.number = explanation.ratio;
        f.bound = m.threshold;
        f.number_text =
            m.read ? "the bits are equal"
                   : fmt::format("with the scenario changed so {}; as it is {}",
                                 spreads(explanation.ratio, m.threshold), text::times(m.ratio));
        f.bound_source = m.read ? identified_by : envelope_source(m);
      }
      if (!m.outside.empty()) {
        const TensorMismatch& t = m.outside.front();
        f.step = t.step;
        f.evidence.push_back(fmt::format("first tensor that shows it: {} on core {} at step {}{}",
                                         t.tensor, t.replica, t.step,
                                         t.pattern.empty() ? "" : " (" + t.pattern + ")"));
      }
      if (m.explanations.size() > 1)
        f.evidence.push_back((explanation.has_formula() ? "the tensors do not decide whether it "
                                                        : "the same tensors follow from ") +
                             explained_by(e));
      if (part.formula) {
        const std::string both = fmt::format(
            "if the script is right, set {} in the scenario; if the scenario is right, {}",
            part.formula->setting, part.formula->cure);
        f.evidence.push_back("cure: " + both);
        j.next_steps.push_back(capitalized(both) + ".");
      }
      if (e.level == 'C' && known_cause && !known->twin.empty())
        f.evidence.push_back("an engine fault would look the same: " + known->twin +
                             "; the list of executed ops would decide");
      if (known_cause && part.introduced) {
        f.evidence.push_back("cure: " + known->cure);
        j.next_steps.push_back(known->cure);
      }
      f.reproduce = e.command;
      j.findings.push_back(std::move(f));
    }
  }
}

void harmless_notes(const Evidence& e, Judgement& j) {
  for (const Explanation::Part& part : e.match->harmless->parts) {
    const ShardingCause& cause = part.sharding->cause;
    j.notes.push_back(
        fmt::format("{} differs from the scenario in a way that changes nothing of what the batch "
                    "means ({}): {}. It was judged as such, and every tensor is where conforming "
                    "engines put it. {}.",
                    e.subject.name, cause.name, cause.meaning, capitalized(cause.cure)));
  }
}

}  // namespace twinrun
