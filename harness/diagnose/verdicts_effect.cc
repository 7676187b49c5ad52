// The judgements of a subject in which nothing is wrong: whether another program, sharding or the
// engine's rounding matters for what is learnt.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "harness/diagnose/findings.h"
#include "harness/diagnose/verdicts.h"
#include "harness/sharding/catalogue.h"
#include "reports/text.h"

namespace twinrun {
namespace {

const char* nothing_outside(const Evidence& e) {
  return e.level == 'C' ? "No tensor is outside what conforming engines do"
                        : "No op is outside its bound";
}

constexpr std::string_view kMoreThanThat =
    "the whole drift is significant, and this part of it is not: an effect that matters may have "
    "been missed, or the engine has a part in it";
constexpr std::string_view kProbeEvery =
    "replay every op of every step: --set diagnose.probe=every";

// How to test what was not.
std::string to_test(const Evidence& e, const TrajectoryRow* row) {
  return e.quick ? "run again without --quick: it trains the seeds that decide"
                 : what_decides({row});
}

void script_findings(const Evidence& e, Judgement& j) {
  if (e.meaning.differs()) sharding_findings(e, j, j.verdict);
  program_findings(e, j, j.verdict);
}

// "The subject's script runs another program than it was asked to (a missing all-reduce)"
std::string script_text(const Evidence& e) {
  return fmt::format("The subject's script runs another program than it was asked to ({})",
                     explained_by(e));
}

std::string identified_by(const Evidence& e) {
  return e.match->read ? "the cause was identified from what the ops read, bit by bit"
                       : "the cause was identified tensor by tensor, in single steps from the "
                         "subject's own states";
}

bool has_learnt(const Evidence& e) { return !e.learning || e.learning->learnt; }

// What a change of meaning does to what is learnt; without a capital and a full stop.
std::string effect_text(const Evidence& e, const TrajectoryRow* row) {
  if (!has_interval(row)) return "whether that matters was not tested";
  if (!has_learnt(e) && !is_significant(row))
    return "the reference has not learnt: what this does to learning cannot be seen";
  return lower_first(effect_words(*row));
}

void next_steps_of_effect(const Evidence& e, const TrajectoryRow* row, Judgement& j) {
  if (!has_interval(row)) {
    j.next_steps.push_back(to_test(e, row));
  } else if (effect_of(*row) == Effect::kNoneDetected && row->margin == 0 && has_learnt(e)) {
    j.next_steps.push_back(
        "undo the cause above if sharding has to mean the same; otherwise declare the largest "
        "effect that you accept (--set diagnose.margin=X): inside it the exit code is 0");
  } else if (!is_significant(row) && has_learnt(e)) {
    j.next_steps.push_back(what_decides({row}));
  }
}

// Of a change of meaning that no known cause explains.
void unexplained_finding(const Evidence& e, Judgement& j, VerdictClass as) {
  undecided_finding(e, j, find_row(e, "S - R"),
                    "Sharding changes what the program means, and no known cause explains it.");
  j.findings.back().verdict = as;
  j.findings.back().cause = "unexplained";
}

}  // namespace

const TrajectoryRow* effect_of_script(const Evidence& e) {
  const TrajectoryRow* alone = find_row(e, "S - R");
  return alone != nullptr ? alone : find_row(e, "T - R");
}

namespace verdicts {

void script(const Evidence& e, Judgement& j) {
  const TrajectoryRow* effect = effect_of_script(e);
  script_findings(e, j);
  j.headline = fmt::format("{}. {}.", script_text(e), capitalized(effect_text(e, effect)));
  j.confidence = identified_by(e);
  if (has_interval(effect)) j.confidence = trials_text(*effect) + "; " + j.confidence;
  next_steps_of_effect(e, effect, j);
}

void script_undecided(const Evidence& e, Judgement& j) {
  script_findings(e, j);
  j.headline =
      fmt::format("{}, but that alone does not show what the whole drift does.", script_text(e));
  j.confidence = kMoreThanThat;
  j.next_steps.push_back(what_decides({find_row(e, "T - R"), find_row(e, "S - R")}));
}

void sharding(const Evidence& e, Judgement& j) {
  const TrajectoryRow* effect = find_row(e, "S - R");
  sharding_findings(e, j, VerdictClass::kSharding);
  if (j.findings.empty()) unexplained_finding(e, j, VerdictClass::kSharding);
  j.headline = fmt::format(
      "Sharding changes what the program means (cause: {}{}). {}{}.", named_causes(e),
      e.meaning.explained() ? "" : ", which does not explain all of it",
      has_interval(effect) ? "On cpu alone, without the engine, " : "",
      has_interval(effect) ? effect_text(e, effect) : capitalized(effect_text(e, effect)));
  std::vector<std::string> shown;
  if (has_interval(effect)) shown.push_back(trials_text(*effect));
  if (!e.meaning.explained()) {
    shown.push_back(fmt::format("with every known cause undone, one step still differs by {}",
                                text::relative(e.meaning.residual)));
    j.next_steps.push_back("compare the two programs: `twinrun inspect SCENARIO --ops`");
  } else if (!has_interval(effect)) {
    shown.push_back(fmt::format(
        "one step in binary64, without the engine: with the causes undone it is {} away from the "
        "whole batch's; below {} it means the same",
        text::number(e.meaning.residual), text::number(e.meaning.threshold)));
  }
  if (e.level != 'C' || (e.match && e.match->outcome == Identification::Outcome::kInside))
    shown.push_back(lower_first(nothing_outside(e)));
  j.confidence = fmt::format("{}", fmt::join(shown, "; "));
  next_steps_of_effect(e, effect, j);
}

void sharding_undecided(const Evidence& e, Judgement& j) {
  sharding_findings(e, j, VerdictClass::kInconclusive);
  if (j.findings.empty()) unexplained_finding(e, j, VerdictClass::kInconclusive);
  j.headline = fmt::format(
      "Sharding changes the program's meaning ({}), but that alone does not show what the whole "
      "drift does.",
      named_causes(e));
  j.confidence = kMoreThanThat;
  j.next_steps.push_back(what_decides({find_row(e, "T - R"), find_row(e, "S - R")}));
}

void quick(const Evidence& e, Judgement& j) {
  undecided_finding(e, j, find_row(e, "T - R"),
                    fmt::format("{}; whether the remaining difference matters takes several seeds.",
                                nothing_outside(e)));
  j.headline = "The quick look found nothing wrong, but the runs do not have equal bits.";
  j.confidence =
      "--quick runs no seeds: it can show a fault, another program or exact agreement, but not "
      "whether a difference is noise";
  j.next_steps.push_back(to_test(e, nullptr));
}

void ensemble_outside(const Evidence& e, Judgement& j) {
  undecided_finding(e, j, find_row(e, "T - R"),
                    "The engine's first steps lie farther from those of correct engines than "
                    "these lie from each other.");
  j.headline =
      "The subject's first steps are not those of a conforming engine of its declaration, yet "
      "nothing wrong was found in them.";
  j.confidence =
      "farther from conforming engines than these are from each other: a bias below the bounds, or "
      "a cause that no ablation covers";
  j.next_steps = {std::string(kProbeEvery),
                  "compare with more engines: --set diagnose.ensemble=40"};
}

void user_sharding(const Evidence& e, Judgement& j) {
  const UserSharding& u = *e.user_sharding;
  Finding f;
  f.verdict = VerdictClass::kSharding;
  f.cause = "user_sharding";
  f.level = 'A';
  f.bound = u.threshold;
  f.bound_source =
      "one step from the same state, in binary64; no f32 engine can show less than a quarter of "
      "its unit roundoff";
  f.reproduce = e.command;
  for (size_t i = 0; i < u.in_common.size() && i < 6; ++i)
    f.evidence.push_back(
        fmt::format("{} sums what its cores already have in common", u.in_common[i]));
  if (!u.other.empty()) {
    // Of the first step, a variable that is off by a known factor says most: under Adam the moments
    // are, where the weights are not.
    const auto telling = std::ranges::find_if(u.other, [&](const UserSharding::Other& o) {
      return o.step == u.other.front().step && !o.factor_is.empty();
    });
    const auto by_drift = [](const UserSharding::Other& a, const UserSharding::Other& b) {
      return a.step != b.step ? a.step > b.step : a.drift < b.drift;
    };
    const UserSharding::Other& first =
        telling == u.other.end() ? *std::ranges::max_element(u.other, by_drift) : *telling;
    f.step = first.step;
    f.number = first.drift;
    const std::string factor =
        !first.factor ? ""
                      : fmt::format("{} times it{}", text::number(*first.factor),
                                    first.factor_is.empty() ? "" : ": " + first.factor_is);
    if (first.factor) f.fingerprint = "x" + text::number(*first.factor);
    j.headline = fmt::format(
        "The sharded step does not mean what the step on one device does: {} otherwise.",
        u.other.size() == 1 ? first.name + " changes"
                            : fmt::format("{} state variables change", u.other.size()));
    f.sentence = fmt::format("The change of {} in step {} is not the one on one device{}{}.",
                             first.name, first.step, factor.empty() ? "" : " but " + factor,
                             u.apart.empty() ? ""
                                             : "; cores hold different copies of what is one array "
                                               "to the step, so a reduction is missing");
    f.number_text = fmt::format("the change of {} is off by {}; allowed {}", first.name,
                                text::relative(first.drift), text::relative(u.threshold));
    size_t listed = 0;
    for (const UserSharding::Other& o : u.other) {
      if (&o == &first || ++listed > 6) continue;
      f.evidence.push_back(
          fmt::format("{}: off by {}{}", o.name, text::relative(o.drift),
                      o.factor ? fmt::format(", a factor of {}{}", text::number(*o.factor),
                                             o.factor_is.empty() ? "" : " (" + o.factor_is + ")")
                               : ""));
    }
  } else {
    const UserSharding::Apart& first = u.apart.front();
    f.step = first.step;
    f.core = first.core;
    f.number = first.drift;
    j.headline = fmt::format(
        "The sharded step keeps different copies of what it declares to be one array: {} state "
        "variables.",
        u.apart.size());
    f.sentence = fmt::format(
        "{} is one array to the step, but after step {} core {} holds another than core 0: a "
        "reduction is missing before it is updated.",
        first.name, first.step, first.core);
    f.number_text =
        fmt::format("the copies of {} differ by {} of its change; allowed {}", first.name,
                    text::relative(first.drift), text::relative(u.threshold));
  }
  for (size_t i = u.other.empty() ? 1 : 0; i < u.apart.size() && i < 6; ++i)
    f.evidence.push_back(fmt::format("copies of {} differ between the cores after step {}, by {}",
                                     u.apart[i].name, u.apart[i].step,
                                     text::relative(u.apart[i].drift)));
  if (u.loss_ratio)
    f.evidence.push_back(fmt::format("the loss on core 0 is {} times that on one device",
                                     text::number(*u.loss_ratio)));
  for (const std::string& name : u.unjudged)
    f.evidence.push_back(fmt::format("{} was not judged: its change is rounding alone", name));
  std::vector<Finding> more;  // of a step with several mistakes
  for (const RepairedCause& c : u.causes) {
    const CauseWords words = cause_words(c.cause, "hlo", c.facts);
    const bool first = &c == &u.causes.front();
    Finding& of = first ? f : more.emplace_back(Finding{.verdict = f.verdict, .level = f.level});
    of.cause = c.cause;
    of.facts = c.facts;
    of.sentence = words.sentence + (first ? " " + f.sentence : "");
    of.place = c.facts.at("line");
    of.evidence.insert(of.evidence.begin(), {"at " + of.place, "cure: " + words.cure});
    if (first) j.headline = words.sentence;
    j.next_steps.push_back(words.cure);
  }
  j.confidence = fmt::format("{}{} in binary64, on {} cores", text::plural(u.steps, "step"),
                             u.compared ? ", of both programs from the same state," : "", u.cores);
  if (u.causes.empty())
    j.next_steps.push_back(
        !u.apart.empty() ? "reduce the gradient of that state over every axis that splits the "
                           "samples (jax.lax.pmean)"
                         : "compare the reductions of the sharded step with what the loss on "
                           "one device averages over");
  j.findings.push_back(std::move(f));
  std::ranges::move(more, std::back_inserter(j.findings));
}

void not_tested(const Evidence& e, Judgement& j) {
  const TrajectoryRow* row = find_row(e, "T - R");
  undecided_finding(e, j, row, "Whether the engine's drift matters was not tested.");
  j.headline = fmt::format(
      "{} and the program means the same, but whether the drift matters was not tested.",
      nothing_outside(e));
  j.confidence = "one seed gives no interval";
  j.next_steps.push_back(what_decides({row}));
}

void beyond_rounding(const Evidence& e, Judgement& j) {
  const TrajectoryRow& row = *find_row(e, "T - R");
  undecided_finding(
      e, j, &row,
      "The drift is larger than rounding is known to make it, and neither an op nor a "
      "cause of sharding explains it.");
  j.headline = fmt::format(
      "{}, which is more than {}; yet every {} and the program means the same.", effect_words(row),
      row.margin > 0 ? "the margin that " + row.margin_source + " declares"
                     : "what another seed does",
      e.level == 'C' ? "tensor is where conforming engines put it"
                     : "probed op is inside its bound");
  j.confidence = "a cause that no ablation covers, or a bias below the bounds";
  j.next_steps = {std::string(kProbeEvery),
                  "see whether it is the operands' precision: --set tpu.precision=highest"};
}

}  // namespace verdicts
}  // namespace twinrun
