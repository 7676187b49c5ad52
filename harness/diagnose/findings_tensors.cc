// Findings about tensors outside the envelope of conforming engines: one for each tensor, on
// whatever cores and steps it is outside.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "harness/diagnose/findings.h"
#include "reports/text.h"

namespace twinrun {
namespace {

// The calibrated probability of a false alarm, as text: "1e-06".
std::string rate(double probability) { return fmt::format("{:.0e}", probability); }

// "dense1/kernel.grad" in words: "the gradient of dense1/kernel".
std::string tensor_words(const std::string& tensor, bool is_state) {
  constexpr std::string_view kOutput = "output/";
  if (tensor.ends_with(".grad")) {
    const std::string of = tensor.substr(0, tensor.size() - 5);
    return "the gradient of " +
           (of.starts_with(kOutput) ? "what " + of.substr(kOutput.size()) + " gives" : of);
  }
  if (tensor.starts_with(kOutput)) return "the output of " + tensor.substr(kOutput.size());
  if (is_state) return "the update of " + tensor;
  return tensor == "loss" ? "the loss" : tensor;
}

// A tensor that is outside: its mismatch at the first such step, and the cores that show it there.
struct Told {
  const TensorMismatch* first = nullptr;
  std::vector<int> cores;
  // Mismatches on other cores or at other steps whose pattern or elements differ.
  std::vector<const TensorMismatch*> others;
};

std::vector<Told> grouped(const std::vector<TensorMismatch>& outside) {
  std::vector<Told> out;
  for (const TensorMismatch& m : outside) {
    auto it = std::ranges::find_if(out, [&](const Told& t) { return t.first->tensor == m.tensor; });
    if (it == out.end()) it = out.insert(out.end(), {&m, {}, {}});
    if (m.step == it->first->step) {
      const std::vector<int> own = m.cores.empty() ? std::vector<int>{m.replica} : m.cores;
      it->cores.insert(it->cores.end(), own.begin(), own.end());
    }
    const auto same = [&](const TensorMismatch& o) {
      return o.pattern == m.pattern && o.elements == m.elements;
    };
    if (!m.pattern.empty() && !same(*it->first) &&
        std::ranges::none_of(it->others, [&](const TensorMismatch* o) { return same(*o); }))
      it->others.push_back(&m);
  }
  for (Told& t : out) std::ranges::sort(t.cores);
  return out;
}

// " on core 2", " on cores 0 to 3 and 6"; "" if there is one core only, or if all cores show it.
std::string cores_text(const std::vector<int>& cores, int all) {
  if (all == 1 || static_cast<int>(cores.size()) >= all) return "";
  std::vector<std::string> runs;
  for (size_t i = 0; i < cores.size();) {
    size_t k = i;
    while (k + 1 < cores.size() && cores[k + 1] == cores[k] + 1) ++k;
    if (k > i + 1) {
      runs.push_back(fmt::format("{} to {}", cores[i], cores[k]));
    } else {
      for (size_t n = i; n <= k; ++n) runs.push_back(std::to_string(cores[n]));
    }
    i = k + 1;
  }
  std::string out = cores.size() == 1 ? " on core " : " on cores ";
  for (size_t i = 0; i < runs.size(); ++i)
    out += (i == 0 ? "" : i + 1 == runs.size() ? " and " : ", ") + runs[i];
  return out;
}

// How far off the tensor is: relative to what was expected if that is meaningful, else in absolute
// size.
std::string amount(const TensorMismatch& t) {
  if (!std::isfinite(t.distance)) return "it has NaN or Inf";
  if (std::isfinite(t.relative) && (t.known || t.expected == 0)) return text::relative(t.relative);
  return fmt::format("{} in size, where {} was expected", text::number(t.distance),
                     t.expected == 0 ? "exactly zero" : "nothing but rounding");
}

// The signature of the fault: "in column 7 of 32 it looks like 2 times what was expected"; "" if
// none is known.
std::string signature(const TensorMismatch& t) {
  if (t.pattern.empty())
    return t.elements.empty() ? "" : fmt::format("what is wrong is {}", t.elements);
  return t.elements.empty() ? "it looks like " + t.pattern
                            : fmt::format("in {} it looks like {}", t.elements, t.pattern);
}

std::string sentence_of(std::string clause) {
  if (!clause.empty()) clause.front() = static_cast<char>(std::toupper(clause.front()));
  return clause + ".";
}

// " from step 3 on", " at step 7 alone", " at 5 of 24 steps, first at step 3".
std::string steps_text(const Evidence& e, const TensorMismatch& t) {
  const StepCoverage& c = e.step_coverage;
  if (t.all_steps) return " in all steps together";
  const auto judged = c.judged - c.set_aside;
  const auto outside = static_cast<int64_t>(c.outside.size());
  if (outside == 0 || judged < 2) return fmt::format(" at step {}", t.step);
  if (outside == 1) return fmt::format(" at step {} alone", t.step);
  if (outside == e.judged_since_outside) return fmt::format(" from step {} on", t.step);
  return fmt::format(" at {} of the {} steps that were judged, first at step {}", outside, judged,
                     t.step);
}

Finding tensor_finding(const Evidence& e, const TensorMismatch& t) {
  const Identification& m = *e.match;
  Finding f;
  f.verdict = VerdictClass::kEngineBug;
  f.cause = "engine:" + t.tensor;
  f.step = t.step;
  f.op = t.tensor;
  f.phase = t.is_state ? "update" : t.tensor.ends_with(".grad") ? "gradient" : "forward";
  f.core = t.replica;
  f.elements = t.elements;
  f.fingerprint = t.pattern;
  f.level = 'C';
  f.number = t.ratio;
  f.bound = m.threshold;
  f.number_text = spreads(t.ratio, m.threshold);
  if (!std::isfinite(t.ratio) && std::isfinite(t.distance)) {
    f.number = t.distance;
    f.bound = 0;
    f.number_text =
        fmt::format("{} away from the result that all conforming engines give; allowed 0",
                    text::number(t.distance));
  }
  f.bound_source = envelope_source(m);
  f.reproduce = e.command;
  return f;
}

Finding reported_finding(const Evidence& e, const Told& reported) {
  const TensorMismatch& t = *reported.first;
  Finding f = tensor_finding(e, t);
  const std::string cores = cores_text(reported.cores, e.cores);
  if (cores.empty() && e.cores > 1) f.core.reset();
  const std::string where = fmt::format("{}{} at step {}", t.tensor, cores, t.step);
  f.sentence =
      std::isfinite(t.ratio)
          ? fmt::format(
                "{} is {} as far from what is expected as conforming engines spread "
                "({}).",
                where, text::times(t.ratio), amount(t))
          : fmt::format("{} is not what all conforming engines give ({}).", where, amount(t));
  if (const std::string like = signature(t); !like.empty()) f.sentence += " " + sentence_of(like);
  if (t.follows) f.sentence += " It is the update that follows from the gradient as reported.";
  if (t.wrong_besides)
    f.sentence += " It is not the update that follows from the gradient as reported, either.";
  for (size_t i = 0; i < std::min<size_t>(reported.others.size(), 4); ++i) {
    const TensorMismatch& o = *reported.others[i];
    f.evidence.push_back(fmt::format(
        "{} at step {}: {}", e.cores == 1 ? std::string("also") : fmt::format("core {}", o.replica),
        o.step, signature(o)));
  }
  return f;
}

// The whole step is computed in another precision than the declared one: one finding, not one for
// each tensor.
void undeclared_finding(const Evidence& e, Judgement& j) {
  const Identification& m = *e.match;
  const TensorMismatch& t = m.outside.front();
  Finding f = tensor_finding(e, t);
  f.cause = "undeclared_precision";
  f.elements = "";
  f.fingerprint = m.undeclared;
  f.sentence = fmt::format(
      "Its arithmetic is coarser than the declared one ({}): it is off by as much as \"{}\", {}. "
      "{} tensors of {} steps show it, first {} on core {} at step {}, {} off.",
      declared_word(e.subject), m.computes_as, m.undeclared, m.outside.size(), m.states, t.tensor,
      t.replica, t.step, amount(t));
  j.headline = fmt::format(
      "{} (framework or script) is off by as much as \"{}\", which it does not declare: {}.",
      e.subject.name, m.computes_as, m.undeclared);
  j.findings.push_back(std::move(f));
}

std::string headline(const Evidence& e, const Told& reported) {
  const TensorMismatch& t = *reported.first;
  std::string out = fmt::format("{} (framework or script) makes {} wrong{}{}", e.subject.name,
                                tensor_words(t.tensor, t.is_state), steps_text(e, t),
                                cores_text(reported.cores, e.cores));
  if (!t.pattern.empty()) {
    out += ": " + signature(t);
  } else {
    out += fmt::format(", by {}{}", amount(t), t.elements.empty() ? "" : ": " + t.elements);
  }
  out += ".";
  return out;
}

}  // namespace

std::string envelope_source(const Identification& m) {
  return fmt::format(
      "spread of conforming engines of the declared arithmetic over the same step{}; a conforming "
      "engine exceeds it with probability {} (docs/method/diagnosis.md, Which program did the "
      "subject run)",
      m.elements_kept == m.elements
          ? ""
          : fmt::format(", on a sample of {} of {} elements", text::count(m.elements_kept),
                        text::count(m.elements)),
      rate(m.false_alarm));
}

std::string spreads(double ratio, double threshold) {
  return fmt::format("{} the spread of conforming engines; allowed {}", text::times(ratio),
                     text::number(threshold));
}

void unrepeatable_finding(const Evidence& e, Judgement& j) {
  const Identification& m = *e.match;
  Finding f = tensor_finding(e, m.outside.front());
  f.verdict = VerdictClass::kInconclusive;
  f.cause = "unrepeatable";
  f.core.reset();
  f.sentence = fmt::format(
      "A step run twice from the same state gives tensors that differ by {} of their size, as much "
      "as they differ from what is expected: {}.",
      text::relative(m.apart),
      m.draws ? "it draws random numbers of its own instead of those that the scenario provides"
              : "it uses numbers that are not inputs of the step");
  j.findings.push_back(std::move(f));
}

void tensor_findings(const Evidence& e, Judgement& j) {
  const Identification& m = *e.match;
  const std::vector<Told> reported = grouped(m.outside);
  if (!m.undeclared.empty()) {
    undeclared_finding(e, j);
  } else if (reported.empty()) {
    j.headline =
        fmt::format("{} (framework or script) does not compute the step that it was asked for.",
                    e.subject.name);
  } else {
    j.headline = headline(e, reported.front());
    std::string following;
    size_t listed = 0;
    for (const Told& t : reported) {
      // An update that follows from the reported gradient is a consequence, not a finding of its
      // own.
      if (t.first->follows && &t != &reported.front()) {
        following += (following.empty() ? "" : ", ") + t.first->tensor;
        continue;
      }
      if (listed++ < 8) j.findings.push_back(reported_finding(e, t));
    }
    const auto at =
        std::ranges::find(j.findings, "engine:" + reported.front().first->tensor, &Finding::cause);
    if (!following.empty())
      at->evidence.push_back(
          "outside as well, as they follow from the gradients that it reported: " + following);
    if (listed > 8) at->evidence.push_back(fmt::format("{} more tensors are outside", listed - 8));
  }
  if (m.signature && m.undeclared.empty() && !reported.empty()) {
    std::ranges::find(j.findings, "engine:" + reported.front().first->tensor, &Finding::cause)
        ->evidence.push_back(fmt::format(
            "nearest of the known formulas, which does not explain it: {} {}; {} of {} tensors are "
            "outside with it, too",
            e.subject.name, parts_text(m.signature->explanation), m.signature->outside,
            m.signature->of));
  }
  if (m.beside) {
    j.headline += fmt::format(" Its script also differs from the scenario: it {}{}.",
                              m.beside->has_formula() ? "" : "runs with ", parts_text(*m.beside));
    Finding f;
    f.verdict = m.beside->has_formula() ? VerdictClass::kProgram : VerdictClass::kSharding;
    f.cause = m.beside->parts.front().formula
                  ? m.beside->parts.front().formula->values.front().first
                  : m.beside->parts.front().cause;
    f.level = 'C';
    f.sentence = fmt::format(
        "The tensors above are compared with the scenario as the script runs it: it {}{}.",
        m.beside->has_formula() ? "" : "runs with ", parts_text(*m.beside));
    f.number = m.beside->ratio;
    f.bound = m.threshold;
    f.number_text = spreads(m.beside->ratio, m.threshold);
    f.bound_source = envelope_source(m);
    f.reproduce = e.command;
    j.findings.push_back(std::move(f));
  }
  j.confidence = fmt::format(
      "statistical (tensors only): a conforming engine is accused so with probability {}; "
      "no known formula or sharding cause explains it{}",
      rate(m.false_alarm),
      declared_precision(e.subject) ? "" : ", and no precision that an engine can declare does");
  advise_layers(e, j);
}

}  // namespace twinrun
