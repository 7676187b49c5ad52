#include "harness/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>

namespace twinrun {
namespace {

std::string core_text(const Violation& v, int cores) {
  if (v.replica < 0) return "the collective";
  if (v.replicas >= cores) return cores == 1 ? "core 0" : "all cores";
  return v.replicas == 1 ? fmt::format("core {}", v.replica)
                         : fmt::format("{} cores, first core {}", v.replicas, v.replica);
}

std::string hex_of(const OracleVerdict& v) {
  const auto subject = static_cast<float>(v.subject);
  const auto value = static_cast<float>(v.value);
  return fmt::format(
      "subject {:.9g} (0x{:08x}), oracle {:.17g} (nearest f32 0x{:08x}), bound {:.3g}", subject,
      std::bit_cast<uint32_t>(subject), v.value, std::bit_cast<uint32_t>(value), v.radius);
}

std::string persistence_text(const Violation& v) {
  const std::string again = fmt::format("run again from the same state {} times: ", v.reruns);
  switch (v.persistence) {
    case Violation::Persistence::kPersistent:
      return again + "the same wrong bits each time (persistent)";
    case Violation::Persistence::kTransient:
      return again + "right each time (transient)";
    default:
      return again + fmt::format("wrong {} times, in the same bits {} (intermittent)", v.wrong_again, v.same_bits_again);
  }
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
  f.level = e.level;
  f.reproduce = e.command;
  if (!v.layer.empty()) f.evidence.push_back(fmt::format("layer: {}", v.layer));
  if (!v.pattern.empty()) f.evidence.push_back(fmt::format("which elements: {}", v.pattern));
  if (!v.last_good.empty())
    f.evidence.push_back(fmt::format("last good neighbour: {} was checked and is inside", v.last_good));
  if (!v.also.empty()) f.evidence.push_back(fmt::format("fits no worse: {}", fmt::join(v.also, "; ")));
  if (v.persistence != Violation::Persistence::kNotRerun) f.evidence.push_back(persistence_text(v));
  const std::string where = fmt::format("{} ({}, {} phase) at step {} on {}", v.op, v.kind, v.phase,
                                        v.step, core_text(v, e.cores));
  if (v.what == Violation::What::kLink || v.what == Violation::What::kFeed) {
    f.sentence = fmt::format("Between the ops: {}: {}.", where, v.link);
    f.number = 1;
    f.bound_source = "bits must be equal";
    return f;
  }
  if (v.what == Violation::What::kStatistic && v.bias) {
    const BiasFinding& b = *v.bias;
    f.number = std::abs(b.score.value);
    f.bound = std::max(std::abs(b.score.high), std::abs(b.score.low));
    f.fingerprint = "";
    f.bound_source = fmt::format(
        "{} engines that are honest within the same declaration, on the same inputs (docs/bounds.md, "
        "Bias below the bound)",
        b.members);
    f.sentence = fmt::format("{} is biased, though each element is inside its bound: {}.", where, b.text());
    return f;
  }
  f.number = v.verdict.worst;
  f.bound = 1;
  f.hex = hex_of(v.verdict);
  f.bound_source = v.verdict.radius == 0
                       ? "the op moves or selects bits: no rounding is allowed (docs/bounds.md)"
                       : "running error analysis of the declared arithmetic (docs/bounds.md)";
  f.sentence =
      std::isfinite(v.verdict.worst)
          ? fmt::format("{} is wrong: {}, up to {:.3g} times what rounding can explain.", where,
                        v.elements, v.verdict.worst)
          : fmt::format("{} is wrong: {}, where its operands leave no freedom.", where, v.elements);
  if (!v.fingerprint.empty()) f.sentence += fmt::format(" It looks like {}.", v.fingerprint);
  return f;
}

// What people call a cause of sharding: as a subject, and in a list of shares.
struct CauseName {
  std::string_view cause, subject, share;
};

constexpr CauseName kCauseNames[] = {
    {"reduction", "the loss reduction", "reduction"},
    {"batch_norm", "per-core batch norm", "batch norm"},
    {"batch_wise", "looking across one core's samples", "batch-wise layers"},
    {"token_mean", "a mean of means over unequal tokens", "mean of means over unequal tokens"},
    {"clipping", "clipping before the all-reduce", "clipping"},
    {"l2", "the L2 term of every core", "L2"},
    {"unscaled", "a gradient that is never scaled by 1/cores", "unscaled gradient"},
    {"scaled_twice", "a gradient scaled by 1/cores twice", "gradient scaled twice"},
    {"averaged_variance", "the average of the cores' own variances", "averaged variances"},
    {"statistics", "running statistics of replica 0 alone", "running statistics"},
    {"rate_times_cores", "a learning rate times the cores", "learning rate"},
    {"rate_over_cores", "a learning rate over the cores", "learning rate"},
    {"one_stream", "one random stream on all cores", "one random stream"},
    {"stream_per_core", "a random stream of each core", "random streams"},
    {"same_shard", "the same shard on every core", "unsharded data"},
    {"shard_twice", "one shard on two cores", "duplicate shard"},
    {"remainder_padded", "padding that counts", "padded remainder"},
    {"remainder_repeated", "samples that count twice", "repeated remainder"},
    {"remainder_dropped", "samples that are left out", "dropped remainder"},
    {"no_all_reduce", "a missing all-reduce", "missing all-reduce"},
};

CauseName name_of(const std::string& cause) {
  for (const CauseName& name : kCauseNames) {
    if (name.cause == cause) return name;
  }
  return {cause, cause, cause};
}

std::string capitalized(std::string text) {
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

// TensorFlow's CPU kernel and XLA's compute the optimizer's update by different formulas of one meaning.
void describe_algebra(const Evidence& e, Finding& f) {
  f.phase = "update";
  f.sentence =
      "The update's algebra differs: the TPU's stack computes the optimizer by another formula of "
      "the same meaning than the CPU's.";
  f.evidence.push_back(
      fmt::format("one update of the reference by either formula: the weights differ by {:.2g} of "
                  "their size",
                  e.algebra_drift));
  f.evidence.push_back("optimizer.algebra = \"cpu\" or \"xla\" gives both the same");
}

}  // namespace

const TrajectoryRow* find_row(const Evidence& e, const std::string& pair) {
  const auto it = std::ranges::find(e.trajectories, pair, &TrajectoryRow::pair);
  return it == e.trajectories.end() ? nullptr : &*it;
}

void engine_bug(const Evidence& e, Judgement& j) {
  j.verdict = VerdictClass::kEngineBug;
  // The first step that is wrong, and there the first op in program order: later ones may only pass the damage on, but each was
  // judged on its own inputs, so each stands.
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
      "{} {} {}, first at step {}, on {} (seen in {}).", e.subject.name,
      first.what == Violation::What::kStatistic ? "rounds the results of" : "computes",
      first.what == Violation::What::kStatistic ? first.op + " with a bias" : first.op + " wrong",
      first.step, core_text(first, e.cores), e.violations_run);
  if (first.persistence == Violation::Persistence::kTransient)
    j.headline += " The fault does not repeat: transient.";
  if (first.persistence == Violation::Persistence::kIntermittent)
    j.headline += " The fault comes and goes: intermittent.";
  if (seen.size() > 1) j.headline += fmt::format(" {} ops are affected.", seen.size());
  j.confidence =
      first.what == Violation::What::kStatistic
          ? "statistical: honest engines are accused so in fewer than 1 of 10,000 diagnoses "
            "(docs/bounds.md)"
      : first.what == Violation::What::kResult
          ? "certain: the op was recomputed in binary64 on the engine's own inputs, within the "
            "arithmetic that it declares"
          : "certain: bits that must be equal are not";
  if (e.level == 'B')
    j.confidence += "; the engine declares no arithmetic: held to the loosest of its precision";
  if (!e.localised)
    j.notes.push_back(
        "The step before the first finding was not probed; the fault may begin earlier "
        "(diagnose.probe = \"every\").");
  j.next_steps.insert(j.next_steps.begin(), "file it: report.md is made to be pasted");
}

// Causes with their share, most important first.
void sharding_findings(const Evidence& e, Judgement& j, VerdictClass as) {
  const TrajectoryRow* effect = find_row(e, "S - R");
  for (const SwitchRow& row : e.meaning.rows) {
    if (row.direction != "restored in S" || row.share < 0.01) continue;
    const auto cause = std::ranges::find(e.meaning.causes, row.cause, &ShardingCause::name);
    Finding f;
    f.verdict = as;
    f.cause = row.cause;
    f.phase = to_string(e.meaning.kind);
    f.share = row.share;
    f.level = 'A';
    f.number = e.meaning.drift;
    f.bound = kMeaningThreshold;
    f.bound_source = "meaning is compared in binary64; 2^-26 is a quarter of f32's unit roundoff";
    f.sentence = fmt::format(
        "{} changes what the program means: {}. Undoing it removes {:.1f} % of the squared "
        "one-step drift ({} {:.2g} of its size).",
        capitalized(std::string(name_of(row.cause).subject)), cause->meaning, 100 * row.share,
        to_string(e.meaning.kind), e.meaning.drift);
    f.evidence.push_back(
        fmt::format("restored in S: drift {:.3g} -> {:.3g}", row.drift_before, row.drift_after));
    if (effect != nullptr) {
      f.evidence.push_back(
          fmt::format("held-out loss, S - R: {:+.4f} [{:+.4f}, {:+.4f}], margin {:.4f}: {}",
                      effect->mean, effect->low, effect->high, effect->margin, effect->outcome));
    }
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
  for (const SwitchRow& row : e.meaning.rows) {
    if (row.direction != "restored in S" || row.share < 0.01) continue;
    names += fmt::format("{}{} {:.0f} %", names.empty() ? "" : ", ", name_of(row.cause).share,
                         100 * row.share);
  }
  return names.empty() ? "no known cause" : names;
}

namespace {

std::string parts_text(const Explanation& explanation) {
  std::string text;
  for (const Explanation::Part& part : explanation.parts) {
    text += fmt::format("{}{}{}", text.empty() ? "" : " and ", part.introduced ? "" : "the absence of ",
                        name_of(part.cause).subject);
  }
  return text;
}

}  // namespace

std::string explained_by(const Evidence& e) {
  std::string text;
  for (const Explanation& explanation : e.match->explanations)
    text += (text.empty() ? "" : ", or ") + parts_text(explanation);
  return text;
}

void program_findings(const Evidence& e, Judgement& j, VerdictClass as) {
  const MatchResult& m = *e.match;
  const TrajectoryRow* effect = find_row(e, "T - R");
  for (const Explanation& explanation : m.explanations) {
    for (const Explanation::Part& part : explanation.parts) {
      Finding f;
      f.verdict = as;
      f.cause = part.cause;
      f.level = m.read ? e.level : 'C';
      f.number = explanation.ratio;
      f.bound = m.threshold;
      f.bound_source = m.read ? std::string("what the ops read is bit by bit what this cause feeds") : fmt::format(
          "distance from the mean of honest engines of this program, in units of their spread; an honest "
          "subject exceeds it with probability {:.0e} (docs/diagnosis.md, instrument 2)",
          m.false_alarm);
      const auto known = std::ranges::find(e.known_causes, part.cause, &ShardingCause::name);
      const std::string meaning = known == e.known_causes.end() ? "" : ": " + known->meaning;
      f.sentence = fmt::format(
          "The subject's script runs another program than it was asked to, one with{} {}{}.",
          part.introduced ? "" : "out", name_of(part.cause).subject, meaning);
      if (!m.read) f.evidence.push_back(fmt::format(
          "against the program asked for, its tensors are {:.3g} times as far off as honest engines "
          "spread; against this one {:.3g} times",
          m.ratio, explanation.ratio));
      if (!m.outside.empty()) {
        const TensorMismatch& t = m.outside.front();
        f.step = t.step;
        f.evidence.push_back(fmt::format("first tensor that shows it: {} on core {} at step {}{}", t.tensor,
                                         t.replica, t.step,
                                         t.pattern.empty() ? "" : " (" + t.pattern + ")"));
      }
      if (m.explanations.size() > 1)
        f.evidence.push_back("the same tensors follow from: " + explained_by(e));
      if (e.level == 'C' && known != e.known_causes.end() && !known->twin.empty())
        f.evidence.push_back("an engine fault would look the same: " + known->twin +
                             "; the list of executed ops would tell");
      if (effect != nullptr) {
        f.evidence.push_back(
            fmt::format("held-out loss, T - R: {:+.4f} [{:+.4f}, {:+.4f}], margin {:.4f}: {}",
                        effect->mean, effect->low, effect->high, effect->margin, effect->outcome));
      }
      if (known != e.known_causes.end()) {
        f.evidence.push_back("cure: " + known->cure);
        j.next_steps.push_back(known->cure);
      }
      f.reproduce = e.command;
      j.findings.push_back(std::move(f));
    }
  }
}

void tensor_findings(const Evidence& e, Judgement& j) {
  const MatchResult& m = *e.match;
  j.verdict = VerdictClass::kEngineBug;
  for (size_t i = 0; i < std::min<size_t>(m.outside.size(), 8); ++i) {
    const TensorMismatch& t = m.outside[i];
    Finding f;
    f.verdict = VerdictClass::kEngineBug;
    f.cause = "engine:" + t.tensor;
    f.step = t.step;
    f.op = t.tensor;
    f.phase = t.is_state ? "update" : t.tensor.ends_with(".grad") ? "gradient" : "forward";
    f.core = t.replica;
    f.fingerprint = t.pattern;
    f.level = 'C';
    f.number = t.ratio;
    f.bound = m.threshold;
    f.bound_source = fmt::format(
        "spread of honest engines of the declared arithmetic over the same step; an honest subject exceeds it "
        "with probability {:.0e} (docs/diagnosis.md, instrument 2)",
        m.false_alarm);
    f.sentence = fmt::format(
        "{} on core {} at step {} is {:.3g} times as far from what is due as honest engines spread "
        "({:.2g} of its size).",
        t.tensor, t.replica, t.step, t.ratio, t.relative);
    if (!t.pattern.empty()) f.sentence += fmt::format(" It looks like {}.", t.pattern);
    f.reproduce = e.command;
    j.findings.push_back(std::move(f));
  }
  j.headline = m.outside.empty()
                   ? fmt::format("{} (framework or script) does not do the step it was asked to.", e.subject.name)
                   : fmt::format("{} (framework or script) makes {} wrong, seen at step {} on core {}.", e.subject.name,
                                 m.outside.front().tensor, m.outside.front().step, m.outside.front().replica);
  j.confidence = fmt::format(
      "statistical (level C, tensors only): an honest engine is accused so with probability {:.0e}; no known "
      "sharding cause explains it",
      m.false_alarm);
  j.next_steps.push_back("give the engine an op trace: then the op is named, and the claim is certain");
}

void noise(const Evidence& e, Judgement& j) {
  j.verdict = e.identical ? VerdictClass::kIdentical : VerdictClass::kNoise;
  if (e.identical) {
    j.headline = "The subject's run is the reference's, bit for bit.";
    j.confidence = "certain: digests are equal";
    return;
  }
  Finding f;
  f.verdict = VerdictClass::kNoise;
  f.level = e.level;
  f.reproduce = e.command;
  const bool tensors = e.level == 'C' && e.match;
  const std::string inside =
      tensors ? "every tensor is where honest engines of this declaration put it" : "every op is inside its bound";
  const TrajectoryRow* effect = find_row(e, "T - R");
  const bool only_algebra = e.algebra_drift >= 0 && e.t_equals_s && e.cores == 1;
  f.cause = only_algebra                                ? "update_algebra"
            : e.t_equals_s                              ? "rounding"
            : e.subject.precision == DotPrecision::kF32 ? "rounding"
                                                        : "precision";
  if (f.cause == "precision") {
    f.sentence = fmt::format(
        "The drift is what operands of the declared precision ({}) explain: {}.",
        to_string(e.subject.precision), inside);
    if (e.highest_drift >= 0) {
      f.evidence.push_back(
          fmt::format("one step's gradient is off by {:.2g} of its size as declared, by {:.2g} "
                      "under precision highest: "
                      "precision highest removes it",
                      e.default_drift, e.highest_drift));
    }
  } else if (only_algebra) {
    describe_algebra(e, f);
  } else {
    f.sentence = fmt::format(
        "The drift is the order of f32 summation: {}, and the program means the same.", inside);
  }
  f.number = tensors ? e.match->ratio : e.worst_ratio;
  f.bound = tensors ? e.match->threshold : 1;
  f.bound_source =
      tensors ? fmt::format("largest distance of a tensor from the mean of honest engines, in units of their "
                            "spread; an honest subject exceeds it with probability {:.0e} (docs/diagnosis.md, "
                            "instrument 2)",
                            e.match->false_alarm)
              : "worst |subject - oracle| / radius over all probed ops; running error analysis, "
                "docs/bounds.md";
  for (const EnsembleRow& row : e.ensembles) {
    f.evidence.push_back(fmt::format(
        "one of {} honest engines by its {} over {} steps: p = {:.2f} ({})", row.members, row.metric,
        row.steps, row.p, row.outcome));
  }
  if (effect != nullptr) {
    f.evidence.push_back(fmt::format(
        "held-out loss, T - R: {:+.4f} [{:+.4f}, {:+.4f}], margin {:.4f} ({})", effect->mean,
        effect->low, effect->high, effect->margin, effect->margin_source));
  }
  const bool also_algebra = e.algebra_drift >= 0 && !only_algebra;
  j.headline = fmt::format(
      "What differs is {}{} noise: no {}{}.",
      only_algebra ? "update algebra" : f.cause, also_algebra ? " and update algebra" : "",
      tensors ? "tensor is outside what honest engines do" : "op is outside its bound",
      effect == nullptr || effect->outcome != "equivalent"
          ? ""
          : fmt::format(", and held-out loss stays within {:.3g}", effect->margin));
  j.confidence =
      effect != nullptr && effect->outcome == "equivalent"
          ? fmt::format("95 %: two one-sided t tests over {} seeds; {}", effect->differences.size(),
                        inside)
          : inside;
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

}  // namespace twinrun
