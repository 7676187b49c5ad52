// Findings about ops that violate their bounds, exact agreement, noise, failed controls and
// undecided results.
#include "harness/diagnose/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "harness/effect/trajectory.h"
#include "reports/text.h"

namespace twinrun {
namespace {

std::string core_text(const Violation& v, int cores) {
  if (v.replica < 0) return "in the all-reduce, whose result all cores share";
  if (v.replicas >= cores) return cores == 1 ? "on core 0" : "on all cores";
  return v.replicas == 1 ? fmt::format("on core {}", v.replica)
                         : fmt::format("on {} cores, first core {}", v.replicas, v.replica);
}

// Nine digits distinguish a float32 number from its neighbours.
std::string f32_text(double x) {
  if (std::isnan(x)) return "NaN";
  return std::isinf(x) ? (x < 0 ? "-Inf" : "Inf") : fmt::format("{:.9g}", static_cast<float>(x));
}

std::string hex_of(const OracleVerdict& v) {
  const auto bits = [](double x) {
    return fmt::format("{} (0x{:08x})", f32_text(x),
                       std::bit_cast<uint32_t>(static_cast<float>(x)));
  };
  return fmt::format("engine {}, expected {}", bits(v.subject), bits(v.value));
}

std::string persistence_text(const Violation& v) {
  const std::string again = "run again from the same state: ";
  switch (v.persistence) {
    case Violation::Persistence::kPersistent:
      return again + fmt::format("the same wrong bits in {0} of {0} reruns (persistent)", v.reruns);
    case Violation::Persistence::kTransient:
      return again + fmt::format("right in {0} of {0} reruns (transient)", v.reruns);
    default:
      return again +
             fmt::format("wrong in {} of {} reruns, with the same bits in {} (intermittent)",
                         v.wrong_again, v.reruns, v.same_bits_again);
  }
}

// Ops without arithmetic: they move, select, compare or convert values, or generate them (sources,
// random numbers).
bool moves_only(const std::string& kind) {
  for (int k = 0; k < kOpKinds; ++k) {
    const auto op = static_cast<OpKind>(k);
    if (name_of(op) != kind) continue;
    const OpClass c = class_of(op);
    return c == OpClass::kMove || c == OpClass::kSource || c == OpClass::kRandom ||
           op == OpKind::kMaximum || op == OpKind::kMinimum || op == OpKind::kCompare ||
           op == OpKind::kConvert || op == OpKind::kBitcastConvert;
  }
  return false;
}

// Sets number and bound from the worst element: its error, what rounding allows there, and the
// source of that bound.
void set_error(const Violation& v, Finding& f) {
  const OracleVerdict& o = v.verdict;
  f.number = std::abs(o.subject - o.value);
  f.bound = o.radius;
  f.number_text =
      std::isfinite(o.subject) && std::isfinite(o.value)
          ? "error " + text::against_bound(f.number, f.bound)
          : fmt::format("{} where {} was expected", f32_text(o.subject), f32_text(o.value));
  f.hex = hex_of(o);
  const bool exact = o.value == static_cast<double>(static_cast<float>(o.value));
  f.bound_source =
      o.radius > 0         ? "running error analysis of the arithmetic that the engine declares"
      : moves_only(v.kind) ? "this op only moves or selects values"
      : exact || std::isnan(o.value)
          ? "the exact result is a float32 number, so a correct engine returns exactly it"
          : "the exact result lies midway between two float32 numbers, so a correct engine returns "
            "the even one";
  f.bound_source += " (docs/method/bounds.md)";
}

Finding engine_finding(const Evidence& e, const Violation& v) {
  Finding f;
  f.verdict = VerdictClass::kEngineBug;
  f.cause = "engine:" + v.op;
  f.step = v.step;
  f.phase = v.phase;
  f.op = v.op;
  f.op_kind = v.kind;
  if (v.replica >= 0 && v.replicas < e.cores) f.core = v.replica;
  f.elements = v.elements;
  f.fingerprint = v.fingerprint;
  f.picture = v.picture;
  f.level = e.level;
  f.reproduce = e.command;
  if (v.persistence != Violation::Persistence::kNotRerun) f.evidence.push_back(persistence_text(v));
  if (!v.layer.empty()) f.evidence.push_back(fmt::format("layer: {}", v.layer));
  if (!v.pattern.empty()) f.evidence.push_back(fmt::format("which elements: {}", v.pattern));
  if (!v.last_good.empty())
    f.evidence.push_back(
        fmt::format("nearest op upstream that was checked and is in bounds: {}", v.last_good));
  if (!v.also.empty())
    f.evidence.push_back(fmt::format("fits as well: {}", fmt::join(v.also, "; ")));
  const std::string where = fmt::format("{} ({}, {} phase) at step {} {}", v.op, v.kind, v.phase,
                                        v.step, core_text(v, e.cores));
  if (v.what == Violation::What::kLink || v.what == Violation::What::kFeed) {
    f.sentence = fmt::format("What passes between the ops is wrong at {}: {}.", where, v.link);
    f.number = 1;
    f.number_text = "the bits differ";
    f.bound_source = "bits must be equal: nothing is computed between two ops";
    return f;
  }
  if (v.what == Violation::What::kStatistic && v.bias) {
    const BiasFinding& b = *v.bias;
    f.number = std::abs(b.score.value);
    f.bound = std::max(std::abs(b.score.high), std::abs(b.score.low));
    f.number_text = fmt::format("score {}; conforming engines stay within {}",
                                text::number(f.number), text::number(f.bound));
    f.fingerprint = "";
    f.bound_source = fmt::format(
        "{} simulated engines that conform to the same declaration, on the same inputs "
        "(docs/method/bounds.md, "
        "Bias below the bound)",
        b.members);
    f.sentence =
        fmt::format("{} is biased, though each element is inside its bound: {}.", where, b.text());
    return f;
  }
  set_error(v, f);
  f.sentence = fmt::format("{} is wrong in {}: {}.", where, v.elements, f.number_text);
  if (!v.fingerprint.empty()) f.sentence += fmt::format(" It looks like {}.", v.fingerprint);
  return f;
}

// Whether the fault may have begun before the violation that shows it. A result far outside its
// bound would have shown earlier; a bias, or a result at less than twice its bound, may have stayed
// undetected.
bool could_hide(const Violation& v) {
  return v.what == Violation::What::kStatistic ||
         (v.what == Violation::What::kResult && v.verdict.worst < 2);
}

std::string hidden(const Violation& v, int cores) {
  const bool earlier = v.step > 0, elsewhere = v.replica >= 0 && v.replicas < cores;
  if (!earlier && !elsewhere) return "";
  return fmt::format(" Smaller errors of the same kind may be {}{}{}.", earlier ? "earlier" : "",
                     earlier && elsewhere ? " and " : "", elsewhere ? "on other cores" : "");
}

// TensorFlow's CPU kernel and XLA's compute the optimizer's update by different formulas with the
// same meaning.
void describe_algebra(const Evidence& e, Finding& f) {
  f.phase = "update";
  f.sentence =
      "The update's algebra differs: the TPU's stack computes the optimizer by another formula "
      "than the CPU's, of the same meaning.";
  f.number = e.algebra_drift;
  f.number_text = fmt::format("{} (relative change of the weights in one update)",
                              text::number(e.algebra_drift));
  f.bound_source =
      "one update of the reference by either formula; optimizer.algebra = \"cpu\" or \"xla\" gives "
      "both the same";
}

}  // namespace

std::string subject_name(const Evidence& e) {
  return e.subject.ours && e.subject.name == "tpu" ? "The emulated TPU" : e.subject.name;
}

void advise_layers(const Evidence& e, Judgement& j) {
  if (!e.subject.activations)
    j.next_steps.push_back(
        "let the engine show what layers give (`activations`, docs/reference/engine-protocol.md): "
        "then the layer is named");
}

void engine_bug(const Evidence& e, Judgement& j) {
  // Violations are ordered by step and, within a step, by program order, so the first one leads.
  // Later ones may follow from it, but each op was judged on its own inputs, so each is listed.
  std::vector<std::string> seen;
  std::vector<Finding> found;
  for (const Violation& v : e.violations) {
    if (std::ranges::find(seen, v.op) != seen.end()) continue;
    seen.push_back(v.op);
    if (found.size() < 8) found.push_back(engine_finding(e, v));
  }
  j.findings.insert(j.findings.begin(), found.begin(), found.end());
  const Violation& first = e.violations.front();
  j.headline = fmt::format(
      "{} {} {}, first {}at step {}, {} (seen in {}).", subject_name(e),
      first.what == Violation::What::kStatistic ? "rounds the results of" : "computes",
      first.what == Violation::What::kStatistic ? first.op + " with a bias" : first.op + " wrong",
      could_hide(first) ? "detectable " : "", first.step, core_text(first, e.cores),
      e.violations_run);
  if (could_hide(first)) j.headline += hidden(first, e.cores);
  if (first.persistence == Violation::Persistence::kTransient)
    j.headline += " The fault does not repeat: transient.";
  if (first.persistence == Violation::Persistence::kIntermittent)
    j.headline += " The fault comes and goes: intermittent.";
  if (seen.size() > 1) {
    j.headline += fmt::format(
        " {} ops are affected{}.", seen.size(),
        seen.size() > found.size() ? fmt::format(", the first {} are listed", found.size()) : "");
  }
  j.confidence =
      first.what == Violation::What::kStatistic
          ? "statistical: conforming engines are accused so in fewer than 1 of 10,000 diagnoses "
            "(docs/method/bounds.md)"
      : first.what == Violation::What::kResult
          ? "certain: the op was recomputed in binary64 on the engine's own inputs, within the "
            "arithmetic that it declares"
          : "certain: bits that must be equal are not";
  if (e.level == 'B')
    j.confidence +=
        "; the engine declares no arithmetic, so it is held to the loosest bounds of its precision";
  if (!e.localised)
    j.notes.push_back(
        "The step before the first finding was not probed; the fault may begin earlier "
        "(diagnose.probe = \"every\").");
  j.to_file = true;
}

std::string compared_text(const EnsembleRow& row) {
  const bool outside = row.outcome == EnsembleOutcome::kOutside;
  return fmt::format(
      "compared with {} simulated correct engines by {} over {} steps: {}, rank p = {:.2f}; "
      "{}flagged, as a correct "
      "engine is so far with a probability {} 1e-4",
      row.members, row.metric, row.steps,
      row.subject > row.high
          ? "its median distance to the others is larger than the largest of theirs"
          : "its median distance to the others is no larger than the largest of theirs",
      row.p, outside ? "" : "not ", outside ? "below" : "above");
}

void identical(const Evidence& e, Judgement& j) {
  j.headline = "The subject's run is the reference's, bit for bit.";
  j.confidence = "certain: digests are equal";
  Finding f;
  f.verdict = VerdictClass::kIdentical;
  f.cause = "identical";
  f.sentence =
      "After every step the engine's weights and optimizer state have the reference's bits.";
  f.number_text = "0 steps with other bits; allowed 0";
  f.bound_source = "bits must be equal: digests of the whole state after every step";
  f.level = e.level;
  f.reproduce = e.command;
  j.findings.push_back(std::move(f));
}

void noise(const Evidence& e, Judgement& j) {
  Finding f;
  f.verdict = VerdictClass::kNoise;
  f.level = e.level;
  f.reproduce = e.command;
  const bool tensors = e.level == 'C' && e.match;
  const std::string as = tensors ? e.match->computes_as : "";
  const auto declared = declared_precision(e.subject);
  const std::string inside =
      !tensors ? "every op is inside its bound"
      : as.empty() || as == declared_word(e.subject)
          ? "every tensor is where conforming engines of this declaration put it"
          : fmt::format("every tensor is where conforming engines that compute as \"{}\" put it",
                        as);
  // If sharding changes the meaning, the engine's own part is T - S.
  const TrajectoryRow* whole = find_row(e, "T - R");
  const TrajectoryRow* effect =
      e.meaning.differs() && find_row(e, "T - S") != nullptr ? find_row(e, "T - S") : whole;
  const bool only_algebra = e.algebra_drift >= 0 && e.t_equals_s && e.cores == 1;
  f.cause = only_algebra                                ? "update_algebra"
            : e.t_equals_s                              ? "rounding"
            : as == "f32"                               ? "rounding"
            : e.subject.precision == DotPrecision::kF32 ? "rounding"
                                                        : "precision";
  const std::string part = effect == whole ? "The drift" : "The engine's own part";
  if (f.cause == "precision") {
    const std::string rounds = tensors && !e.match->computes.empty()
                                   ? fmt::format("computing as \"{}\", {},", as, e.match->computes)
                               : declared && *declared == Precision::kDefault
                                   ? std::string("rounding the operands of products to bfloat16")
                                   : fmt::format("the declared precision of products ({})",
                                                 to_string(e.subject.precision));
    f.sentence = fmt::format("{} is what {} explains: {}.", part, rounds, inside);
    if (e.highest_drift >= 0 && e.highest_drift < e.default_drift / 2) {
      f.evidence.push_back(
          fmt::format("one step's {} differs from the float32 reference by {} at precision "
                      "{}, by {} at highest: the rounding of "
                      "operands is the reason",
                      e.held_out ? "gradient" : "update", text::relative(e.default_drift),
                      to_string(e.subject.precision), text::relative(e.highest_drift)));
    }
  } else if (only_algebra) {
    describe_algebra(e, f);
    f.evidence.push_back(fmt::format("{}: {}", f.number_text, f.bound_source));
  } else {
    f.sentence = fmt::format("{} is the order of float32 summation: {}{}.", part, inside,
                             effect == whole ? ", and the program means the same" : "");
  }
  if (effect != nullptr) set_effect(*effect, f);
  if (effect != whole && whole != nullptr) f.evidence.push_back(effect_number(*whole));
  if (tensors && !as.empty() && as != declared_word(e.subject)) {
    f.evidence.push_back(
        !declared ? fmt::format("it declares no precision, and computes as \"{}\" would: {}", as,
                                e.match->computes)
        : allows(*declared, find_precision(as)->precision)
            ? fmt::format("its arithmetic is consistent with precision \"{}\" ({}), which is no "
                          "coarser than the declared \"{}\"",
                          as, e.match->computes, declared_word(e.subject))
            : fmt::format("it declares \"{}\" and computes as \"{}\" would: {}; the word for that "
                          "is \"{}\"",
                          declared_word(e.subject), as, e.match->computes, as));
  }
  if (tensors) {
    f.evidence.push_back(fmt::format(
        "the farthest tensor is {} from the mean of conforming engines; allowed {} ({})",
        text::times(e.match->ratio), text::number(e.match->threshold), envelope_source(*e.match)));
  }
  for (const EnsembleRow& row : e.ensembles) f.evidence.push_back(compared_text(row));
  const bool also_algebra = e.algebra_drift >= 0 && !only_algebra;
  j.headline = fmt::format(
      "What differs is noise, from {}{}: no {}{}.",
      only_algebra             ? "the update's algebra"
      : f.cause == "precision" ? (declared ? "the declared precision" : "the precision")
                               : "rounding",
      also_algebra ? " and the update's algebra" : "",
      tensors ? "tensor is outside what conforming engines do" : "op is outside its bound",
      has_interval(whole) ? fmt::format(". {}", effect_words(*whole)) : "");
  j.confidence = inside + (has_interval(whole) ? "; the effect: " + trials_text(*whole) : "");
  j.findings.push_back(std::move(f));
  if (!also_algebra) return;
  Finding algebra;
  algebra.verdict = VerdictClass::kNoise;
  algebra.cause = "update_algebra";
  algebra.level = 'A';
  algebra.reproduce = e.command;
  describe_algebra(e, algebra);
  j.findings.push_back(std::move(algebra));
}

void undecided_finding(const Evidence& e, Judgement& j, const TrajectoryRow* row,
                       std::string sentence) {
  Finding f;
  f.verdict = VerdictClass::kInconclusive;
  f.cause = "undecided";
  f.sentence = std::move(sentence);
  f.level = e.level;
  if (row != nullptr) set_effect(*row, f);
  for (const EnsembleRow& one : e.ensembles) f.evidence.push_back(compared_text(one));
  f.reproduce = e.command;
  j.findings.push_back(std::move(f));
}

void control_finding(const Evidence& e, Judgement& j, ControlKind control, std::string cause,
                     std::string sentence) {
  Finding f;
  f.verdict = j.verdict;
  f.cause = std::move(cause);
  f.sentence = std::move(sentence);
  f.level = e.level;
  const auto failed = std::ranges::find_if(
      e.controls, [&](const Control& c) { return !c.passed && c.kind == control; });
  f.number_text = failed == e.controls.end() ? "the bits differ" : failed->detail;
  f.bound_source =
      "bits must be equal: the same program on the same inputs, by arithmetic that is defined to "
      "the bit";
  f.reproduce = e.command;
  j.findings.push_back(std::move(f));
}

std::string inside_text(const EngineProbe& probe, const std::string& sum, double ratio) {
  const std::string none =
      fmt::format("no element of {} is outside its rounding bound", text::count(probe.elements));
  return sum.empty()
             ? none
             : fmt::format(
                   "{}; the largest error of a sum or dot product is {} of what is allowed ({})",
                   none, text::number(ratio), sum);
}

void tell_losses(Finding& f, std::span<const float> losses) {
  if (losses.empty()) return;
  const size_t last = losses.size() - 1;
  f.number = losses[last];
  const std::string end = fmt::format("{} at step {}", text::number(losses[last]), last);
  f.number_text = last == 0 ? "loss " + end
                            : fmt::format("loss {} at step {}, {}", text::number(losses[last - 1]),
                                          last - 1, end);
  f.bound_source = "a loss must stay finite";
}

}  // namespace twinrun
