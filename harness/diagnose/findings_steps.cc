// Findings about the steps of a subject that shows tensors only: a step that began from another
// state than reported, a wrong layer, cores that diverge, hidden state, and how much of the run was
// seen.
#include <fmt/format.h>

#include <algorithm>

#include "harness/diagnose/findings.h"
#include "reports/text.h"

namespace twinrun {
namespace {

std::string listed(const std::vector<int64_t>& steps) {
  std::string out;
  for (size_t i = 0; i < std::min<size_t>(steps.size(), 8); ++i)
    out += (i == 0 ? "" : ", ") + std::to_string(steps[i]);
  return steps.size() > 8 ? out + fmt::format(" and {} more", steps.size() - 8) : out;
}

Finding finding_at(const Evidence& e, std::string cause, int64_t step, std::string tensor,
                   int replica) {
  Finding f;
  f.cause = std::move(cause);
  f.step = step;
  f.op = std::move(tensor);
  f.core = replica;
  f.level = 'C';
  f.reproduce = e.command;
  return f;
}

}  // namespace

void step_findings(const Evidence& e, Judgement& j) {
  if (j.findings.empty()) return;
  Finding& first = j.findings.front();
  const StepCoverage& described = e.step_coverage;
  if (!described.outside.empty())
    first.evidence.push_back(
        fmt::format("outside at {} of the {} steps that were judged: {}", described.outside.size(),
                    described.judged - described.set_aside, listed(described.outside)));
  if (e.inside_again) {
    if (*e.inside_again && j.verdict == VerdictClass::kEngineBug)
      j.headline += " Run again from the engine's own state, the step is right.";
    first.evidence.push_back(
        !*e.inside_again ? "run again from the state that the engine reported: outside again"
        : described.outside.size() > 1
            ? "run again from the state that the engine reported, the step is inside: the script "
              "or engine keeps something that the state does not hold, or the fault comes and goes"
            : "run again from the state that the engine reported, the step is inside: what made "
              "it wrong is not in that state, or does not repeat");
  }
  if (!e.layers_error.empty())
    first.evidence.push_back(
        "the engine failed when it was asked for the outputs of its layers in that step: " +
        e.layers_error);
  if (!e.other_start) return;
  const OtherStart& other = *e.other_start;
  Finding f = finding_at(e, "other_start", other.step, other.variable, other.replica);
  f.verdict = VerdictClass::kEngineBug;
  f.phase = "forward";
  f.elements = other.elements;
  f.number = first.number;
  f.bound = first.bound;
  f.number_text = first.number_text;
  f.bound_source = first.bound_source;
  f.sentence = fmt::format(
      "Step {} does not follow from the state that the engine reported after step {}: from that "
      "state its tensors are outside, and from one in which {} differs on core {} they are inside "
      "({}).",
      other.step, other.step - 1, other.variable, other.replica, other.elements);
  f.evidence = first.evidence;
  j.headline = fmt::format(
      "{} (framework or script): step {} does not follow from the state that it reported: {} had "
      "another value.",
      e.subject.name, other.step, other.variable);
  j.findings.insert(j.findings.begin(), std::move(f));
}

namespace {

// "conv2"; "relu1 or conv2"; "" for more than three layers.
std::string one_of_layers(const std::vector<std::string>& layers) {
  constexpr size_t kMax = 3;
  if (layers.size() > kMax) return "";
  std::string out;
  for (size_t i = 0; i < layers.size(); ++i)
    out += (i == 0 ? "" : i + 1 == layers.size() ? " or " : ", ") + layers[i];
  return out;
}

std::string value_named(const LayerFault& l) {
  if (!l.of_layer) return l.value;
  if (!l.backward) return "the output of " + l.value;
  return "the gradient at the output of " + l.value.substr(0, l.value.rfind(".grad"));
}

// The predicate of the headline: "computes the output of conv2 wrong (forward pass)".
std::string does_wrong(const LayerFault& l) {
  const std::string pass = l.backward ? "backward pass" : "forward pass";
  const std::string where = one_of_layers(l.layers);
  const std::string own = l.backward && !l.of_layer   ? l.value.substr(0, l.value.rfind('/'))
                          : l.of_layer && !l.backward ? l.value
                                                      : "";
  // The value's own name says which layer computes it, except for a gradient at a layer's output,
  // which the layer after it computes.
  const bool described = where.empty() || where == own || (where == "loss" && l.value == "loss");
  return fmt::format("computes {} wrong ({}{}{})", value_named(l), pass, described ? "" : " of ",
                     described ? "" : where);
}

}  // namespace

void layer_finding(const Evidence& e, Judgement& j) {
  const LayerFault& l = *e.layer_fault;
  j.headline = fmt::format("{} (framework or script) {}, seen at step {} on core {}.",
                           e.subject.name, does_wrong(l), l.step, l.replica);
  std::string from;
  for (size_t i = 0; i < l.from.size() && l.from.size() <= 4; ++i)
    from += (i == 0 ? "" : i + 1 == l.from.size() ? " and " : ", ") + l.from[i];
  const std::string described = fmt::format(
      "the engine was asked for the step again and showed {} outputs of layers and gradients at "
      "them: this is the first that is outside in the order of computation{}",
      l.shown,
      from.empty() ? ""
                   : fmt::format("; {}, which it is computed from, {} inside", from,
                                 l.from.size() == 1 ? "is" : "are"));
  if (!j.findings.empty() && j.findings.front().op == l.value) {
    j.findings.front().evidence.push_back(described);
    return;
  }
  Finding f = finding_at(e, "engine:" + l.value, l.step, l.value, l.replica);
  f.verdict = VerdictClass::kEngineBug;
  f.phase = l.backward ? "gradient" : "forward";
  f.fingerprint = l.pattern;
  f.number = l.ratio;
  f.bound = l.threshold;
  f.number_text = spreads(l.ratio, l.threshold);
  f.bound_source = envelope_source(*e.match);
  std::string what = value_named(l);
  if (l.of_layer) what.front() = 'T';
  f.sentence = fmt::format(
      "{} on core {} at step {} is {} as far from what is expected as conforming engines spread "
      "({}).",
      what, l.replica, l.step, text::times(l.ratio), text::relative(l.relative));
  if (!l.pattern.empty()) f.sentence += fmt::format(" It looks like {}.", l.pattern);
  f.evidence.push_back(described);
  j.findings.insert(j.findings.begin(), std::move(f));
}

void split_finding(const Evidence& e, Judgement& j) {
  const ReplicaSplit& s = *e.replica_split;
  Finding f = finding_at(e, "engine:" + s.variable, s.step, s.variable, s.replica);
  f.verdict = VerdictClass::kEngineBug;
  f.phase = "update";
  f.number = s.distance;
  f.bound = s.allowed;
  f.number_text = fmt::format("{} between the changes on two cores; allowed {}",
                              text::number(s.distance), text::number(s.allowed));
  f.bound_source =
      "twice what binary32 engines of other orders of summation differ by on that step, and four "
      "roundings of what is stored (docs/method/diagnosis.md)";
  f.sentence = fmt::format(
      "{} on core {} diverges from the other cores at step {}, although the program computes the "
      "same on all of them: its change differs by {} of its size{}.",
      s.variable, s.replica, s.step, text::relative(s.relative),
      s.for_good ? ", and the cores differ to the end" : "");
  const bool alone = j.findings.empty() || j.headline.empty();
  j.findings.push_back(std::move(f));
  if (!alone) return;
  j.headline =
      fmt::format("{} (framework or script) updates {} differently on core {}, seen at step {}.",
                  e.subject.name, s.variable, s.replica, s.step);
  j.confidence =
      "statistical (tensors only): cores that compute the same differ by more than "
      "rounding";
  advise_layers(e, j);
}

void hidden_state_finding(const Evidence& e, Judgement& j) {
  const HiddenState& h = *e.hidden_state;
  Finding f = finding_at(e, "hidden_state", h.step, h.tensor, h.replica);
  f.verdict = j.verdict;
  f.number = h.relative;
  f.number_text = fmt::format("{} (relative, the step resumed against the step of the run)",
                              text::number(h.relative));
  f.bound_source =
      h.promised ? "bits must be equal: the engine promises to repeat them"
                 : "what conforming engines of the declared arithmetic, and the engine itself "
                   "run twice, differ by on that step";
  f.sentence = fmt::format(
      "Resuming from the engine's own state of step {0} gives another step {0} ({1} differs by "
      "{2}): the script or engine keeps something that the state does not hold, such as a "
      "schedule's counter, a momentum or a random generator.",
      h.step, h.tensor, text::relative(h.relative));
  j.findings.insert(j.row == "hidden_state" ? j.findings.begin() : j.findings.end(), std::move(f));
  j.notes.push_back(
      "The run cannot be resumed from its own state to the same end; the findings about its steps "
      "hold for the run as it was made.");
}

std::string coverage_text(const StepCoverage& c) {
  std::string out;
  if (!c.left_out.empty())
    out = fmt::format(
        "The script left out the update of {} (its loss scaler skipped step{} {}): the loss or a "
        "gradient was not finite, and the state stayed as it was. {}",
        c.left_out.size() == 1 ? "one step" : fmt::format("{} steps", c.left_out.size()),
        c.left_out.size() == 1 ? "" : "s", listed(c.left_out),
        c.screened == 0 ? "No other step was seen." : "");
  if (c.screened == 0) return out;
  out += fmt::format(
      "The reference repeated {} of {} steps from the subject's own states, and {} of them, those "
      "that differ most and a sample, were compared with conforming engines.",
      c.screened, c.steps, c.judged);
  if (c.set_aside > 0)
    out += fmt::format(
        " {} of these {} set aside: a decision that depends on a rounding (a relu, a maximum) "
        "explains what was outside.",
        c.set_aside, c.set_aside == 1 ? "was" : "were");
  if (!c.not_exercised.empty()) {
    out += " Never exercised in this run, and so not judged: ";
    for (size_t i = 0; i < c.not_exercised.size(); ++i)
      out += (i == 0 ? "" : "; ") + c.not_exercised[i];
    out += ".";
  }
  return out;
}

}  // namespace twinrun
