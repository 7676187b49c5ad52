// The judgements on the module that an engine compiles of a whole step.
#include <fmt/format.h>

#include <cmath>

#include "harness/diagnose/findings.h"
#include "harness/diagnose/verdicts.h"
#include "harness/tensors/pattern.h"
#include "reports/text.h"

namespace twinrun {
namespace {

// "a, b and c"; of a long list the first few.
std::string named(const std::vector<std::string>& ops) {
  constexpr size_t kMost = 4;
  std::string out;
  const size_t shown = std::min(ops.size(), kMost);
  for (size_t i = 0; i < shown; ++i) {
    const bool last = i + 1 == shown && ops.size() <= kMost;
    out += (i == 0 ? "" : last ? " and " : ", ") + ops[i];
  }
  if (ops.size() > kMost) out += fmt::format(" and {} more", ops.size() - kMost);
  return out;
}

std::string steps_text(const std::vector<int64_t>& steps) {
  return fmt::format("step{} {}", steps.size() == 1 ? "" : "s", fmt::join(steps, ", "));
}

Finding wrong_tensor(const Evidence& e, const WrongTensor& wrong) {
  Finding f;
  f.verdict = VerdictClass::kEngineBug;
  f.cause = "joined_ops";
  f.step = e.module_wrong_at;
  f.op =
      e.module.joined.empty() ? wrong.name : fmt::format("{}", fmt::join(e.module.joined, " + "));
  f.op_kind = "compiled step";
  f.level = e.level;
  f.reproduce = e.command;
  const FoundVerdict& v = wrong.verdict;
  f.elements = fmt::format("{} of {} elements", text::count(v.outside), text::count(v.elements));
  f.sentence = fmt::format(
      "{} is wrong in {} of step {}{}: no legal way of computing {} gives it.",
      e.module_wrong_in_excerpt ? fmt::format("Value %{} of these ops alone", wrong.name)
                                : wrong.name,
      f.elements, e.module_wrong_at.value_or(0),
      e.module.joined.empty() ? "" : ", where the compiler joins " + named(e.module.joined),
      e.module_wrong_in_excerpt ? "them" : "the step");
  if (v.worst) {
    f.number = std::abs(v.worst->found - v.worst->expected);
    f.bound = v.worst->radius;
    f.number_text =
        std::isfinite(v.worst->found) && std::isfinite(v.worst->expected)
            ? "error " + text::against_bound(f.number, f.bound)
            : fmt::format("{} where {} was expected", v.worst->found, v.worst->expected);
    f.hex = fmt::format("engine {:.9g}, expected {:.9g}, at {}", v.worst->found, v.worst->expected,
                        index_text(wrong.dims, v.worst->at));
  }
  f.bound_source =
      "interval around the binary64 replay of all ops together: any order of sums, any fusion, any "
      "legal rewrite (docs/method/bounds.md)";
  if (const std::string pattern = wrong.pattern(); !pattern.empty())
    f.evidence.push_back("which elements: " + pattern);
  return f;
}

void tell_module(const Evidence& e, Finding& f) {
  const ModuleCheck& m = e.module;
  f.evidence.push_back(fmt::format(
      "judged: the untraced module, compiled from {}, at {}; op by op, in a module of which every "
      "value is a result, none of them is outside its bound",
      m.text, steps_text(m.steps)));
  if (!m.joined.empty())
    f.evidence.push_back(
        fmt::format("with an optimization barrier between these ops the step is right, and with "
                    "barriers everywhere else it is wrong: {} ({} compilations)",
                    fmt::join(m.joined, ", "), m.compilations));
  if (!m.excerpt.empty())
    f.evidence.push_back(fmt::format(
        "{}: a module of these ops alone, which is computed wrongly on what they read in the step",
        m.excerpt));
  if (!m.passes.empty())
    f.evidence.push_back(
        fmt::format("right if XLA leaves out any one of these passes: {} "
                    "(XLA_FLAGS=--xla_disable_hlo_passes={})",
                    fmt::join(m.passes, ", "), m.passes.front()));
  if (m.joined.empty() && !e.module_not_joined.empty())
    f.evidence.push_back("which ops are joined is not known: " + e.module_not_joined);
}

}  // namespace

namespace verdicts {

void joined_ops(const Evidence& e, Judgement& j) {
  if (e.meaning.differs()) sharding_findings(e, j, VerdictClass::kSharding);
  std::vector<Finding> found;
  constexpr size_t kMost = 8;
  for (const WrongTensor& wrong : e.module_wrong) {
    if (found.size() < kMost) found.push_back(wrong_tensor(e, wrong));
  }
  tell_module(e, found.front());
  const std::string ops =
      e.module.joined.empty() ? "" : " where it joins " + named(e.module.joined);
  j.headline = fmt::format("{} computes {} wrong{}, first seen at step {}; each op alone is right.",
                           subject_name(e),
                           e.module_wrong_in_excerpt ? "the step" : e.module_wrong.front().name,
                           ops, *e.module_wrong_at);
  if (!e.module.passes.empty())
    j.headline += fmt::format(" Without XLA's pass {} it is right.", e.module.passes.front());
  j.confidence =
      "certain: the result lies outside of what any order of sums, any fusion and any legal "
      "rewrite "
      "may give, within the arithmetic that the engine declares";
  j.findings.insert(j.findings.begin(), found.begin(), found.end());
  if (!e.module.passes.empty())
    j.next_steps.push_back(
        fmt::format("until it is fixed: XLA_FLAGS=--xla_disable_hlo_passes={}, or "
                    "an optimization_barrier between these ops",
                    e.module.passes.front()));
  else if (!e.module.joined.empty())
    j.next_steps.push_back(
        "until it is fixed: jax.lax.optimization_barrier around the first of these ops");
  j.to_file = true;
}

void joined_apart(const Evidence& e, Judgement& j) {
  const StepApart& apart = *e.module_apart;
  Finding f;
  f.verdict = VerdictClass::kInconclusive;
  f.cause = "joined_ops";
  f.step = e.module_wrong_at;
  f.op =
      e.module.joined.empty() ? apart.tensor : fmt::format("{}", fmt::join(e.module.joined, " + "));
  f.level = 'C';
  f.sentence = fmt::format(
      "{} of the untraced step is {} from the mean of conforming engines, where {} is allowed; the "
      "traced step is inside.",
      apart.tensor, text::times(apart.ratio), text::number(apart.threshold));
  f.number = apart.ratio;
  f.bound = apart.threshold;
  f.number_text = spreads(apart.ratio, apart.threshold);
  f.bound_source = fmt::format("{} conforming engines from the same state (docs/guides/xla.md)",
                               StepAround::kMembers);
  f.reproduce = e.command;
  tell_module(e, f);
  j.headline = fmt::format(
      "{}: the compiled step and its ops one by one disagree by more than rounding, in {} at step "
      "{}; no bound proves which of them is wrong.",
      subject_name(e), apart.tensor, *e.module_wrong_at);
  j.confidence =
      "statistical: a conforming engine is so far with a probability below 1e-6, unless a decision "
      "depends on rounding";
  j.findings.push_back(std::move(f));
}

}  // namespace verdicts
}  // namespace twinrun
