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

// "engine 0.109, expected 0.107, at [111,0]"
std::string worst_text(const WrongResult& wrong) {
  const auto& worst = wrong.verdict.worst;
  if (!worst) return "";
  return fmt::format("engine {:.9g}, expected {:.9g}, at {}", worst->found, worst->expected,
                     index_text(wrong.dims, worst->at));
}

std::string share_text(const FoundVerdict& v) {
  return fmt::format("{} of {} elements", text::count(v.outside), text::count(v.elements));
}

// `whole`: it is a tensor of the step, not of the excerpt.
Finding wrong_tensor(const Evidence& e, const WrongResult& wrong, bool whole) {
  Finding f;
  f.verdict = VerdictClass::kEngineBug;
  f.cause = "joined_ops";
  f.step = e.module_wrong_at;
  f.op =
      e.module.joined.empty() ? wrong.name : fmt::format("{}", fmt::join(e.module.joined, " + "));
  f.op_kind = "compiled step";
  f.level = e.level;
  f.reproduce = e.command;
  f.elements = share_text(wrong.verdict);
  f.sentence = fmt::format(
      "{} is wrong in {} at step {}{}: no legal way of computing {} gives it.",
      whole ? wrong.name : fmt::format("%{} of these ops alone", wrong.name), f.elements,
      *e.module_wrong_at,
      e.module.joined.empty() ? "" : ", where the compiler joins " + named(e.module.joined),
      whole ? "the step" : "them");
  if (const auto& worst = wrong.verdict.worst) {
    f.number = std::abs(worst->found - worst->expected);
    f.bound = worst->radius;
    f.number_text = std::isfinite(worst->found) && std::isfinite(worst->expected)
                        ? "error " + text::against_bound(f.number, f.bound)
                        : fmt::format("{} where {} was expected", worst->found, worst->expected);
    f.hex = worst_text(wrong);
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
      "judged: the untraced module, compiled from {}, at {}; op by op, in the traced module, whose "
      "values are all results, none is outside its bound (the curve of T is that module's)",
      m.text, steps_text(m.steps)));
  if (!m.joined.empty())
    f.evidence.push_back(
        fmt::format("with an optimization barrier between these ops the step is right, and with "
                    "barriers everywhere else it is wrong: {} ({} compilations)",
                    fmt::join(m.joined, ", "), m.compilations));
  if (!e.excerpt_wrong.empty()) {
    const WrongResult& wrong = e.excerpt_wrong.front();
    f.evidence.push_back(
        fmt::format("{}: a module of these ops alone, run on what they read in the step: %{} is "
                    "wrong in {} ({})",
                    m.excerpt, wrong.name, share_text(wrong.verdict), worst_text(wrong)));
  }
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
  std::vector<std::string> names;
  constexpr size_t kMost = 8;
  for (const WrongResult& wrong : e.module_wrong) {
    names.push_back(wrong.name);
    if (found.size() < kMost) found.push_back(wrong_tensor(e, wrong, true));
  }
  // Where the intervals of the whole step are too wide, the excerpt's are not.
  for (size_t i = 0; names.empty() && i < std::min(kMost, e.excerpt_wrong.size()); ++i)
    found.push_back(wrong_tensor(e, e.excerpt_wrong[i], false));
  tell_module(e, found.front());
  j.headline = fmt::format(
      "{} computes the step wrong{}, first seen at step {}{}; each op alone is right.",
      subject_name(e), e.module.joined.empty() ? "" : " where it joins " + named(e.module.joined),
      *e.module_wrong_at, names.empty() ? "" : ", in " + named(names));
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
      "{} of the untraced step is {} spreads of conforming engines from their mean, where {} is "
      "allowed; the traced step is inside.",
      apart.tensor, text::number(apart.ratio), text::number(apart.threshold));
  f.number = apart.ratio;
  f.bound = apart.threshold;
  f.number_text = spreads(apart.ratio, apart.threshold);
  f.bound_source = fmt::format(
      "{} conforming engines from the same state "
      "(docs/method/diagnosis.md#the-step-as-it-is-compiled)",
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
