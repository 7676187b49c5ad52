#include "harness/classify.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/findings.h"

namespace twinrun {
namespace {

void inconclusive(Judgement& j, std::string headline, std::string why,
                  std::vector<std::string> next) {
  j.verdict = VerdictClass::kInconclusive;
  j.headline = std::move(headline);
  j.confidence = std::move(why);
  for (auto& n : next) j.next_steps.push_back(std::move(n));
}

// The subject's script runs another program, of a known cause: whether that matters is what that program does on the reference,
// and what T does.
void judge_script(const Evidence& e, Judgement& j, const TrajectoryRow* tr, const TrajectoryRow* sr) {
  const auto is = [](const TrajectoryRow* row, std::string_view outcome) {
    return row != nullptr && row->outcome == outcome;
  };
  const auto inside = [&](const TrajectoryRow* row) {
    return is(row, "equivalent") || is(row, "identical");
  };
  const VerdictClass as = is(sr, "outside") || is(tr, "outside") ? VerdictClass::kSharding
                          : inside(tr) && (sr == nullptr || inside(sr)) ? VerdictClass::kNoise
                                                                       : VerdictClass::kInconclusive;
  if (e.meaning.differs()) sharding_findings(e, j, as);
  program_findings(e, j, as);
  if (as == VerdictClass::kInconclusive) {
    inconclusive(j,
                 fmt::format("The subject's script runs another program than it was asked to ({}), but the "
                             "seeds do not decide whether that matters.",
                             explained_by(e)),
                 "the interval of the effect straddles the margin",
                 {"raise diagnose.seeds, or set diagnose.margin to the loss that you do not mind"});
    return;
  }
  j.verdict = as;
  j.headline =
      as == VerdictClass::kSharding
          ? fmt::format("The subject's script runs another program than it was asked to (cause: {}). Held-out "
                        "loss moves by {:+.4f}.",
                        explained_by(e), (is(sr, "outside") ? sr : tr)->mean)
          : fmt::format("Noise: the subject's script runs another program than it was asked to ({}), but "
                        "held-out loss stays within {:.3g}.",
                        explained_by(e), tr->margin);
  j.confidence = fmt::format("95 %: paired over {} seeds; the cause was matched tensor by tensor, one step from the "
                             "subject's own states",
                             tr->differences.size());
}

}  // namespace

Judgement classify(const Evidence& e) {
  Judgement j;
  if (e.reference_parts) {
    j.verdict = VerdictClass::kNondeterministic;
    j.headline = fmt::format("The reference is not deterministic: R and R' part at step {}{}.",
                             *e.reference_parts,
                             e.reference_parts_op.empty() ? "" : " in " + e.reference_parts_op);
    j.confidence = "certain: digests of the same program on the same engine differ";
    j.next_steps.push_back(
        "nothing else is concluded from this machine until this is found: memory test, then "
        "--threads 1");
    return j;
  }
  if (e.reference_birth) {
    Finding f;
    f.verdict = VerdictClass::kInconclusive;
    f.cause = "reference_diverges";
    f.step = e.reference_birth->step;
    f.op = e.reference_birth->op;
    f.phase = e.reference_birth->phase;
    f.sentence =
        fmt::format("{} is born in {} ({} phase) at step {} of {}, the cpu reference itself.",
                    e.reference_birth->what, e.reference_birth->op, e.reference_birth->phase,
                    e.reference_birth->step, e.reference_birth_run);
    f.reproduce = e.command;
    inconclusive(j,
                 fmt::format("The reference diverges: {} is born in {} at step {} ({}).",
                             e.reference_birth->what, e.reference_birth->op,
                             e.reference_birth->step, e.reference_birth_run),
                 "a subject cannot be judged against a reference that fails",
                 {"lower optimizer.lr, or clip the gradient, until cpu trains"});
    j.findings.push_back(std::move(f));
    return j;
  }
  if (e.emulator_fails) {
    inconclusive(j,
                 "The emulator fails its own control: at precision f32 it is not the reference, "
                 "bit for bit.",
                 "it may accuse nobody before that holds",
                 {"report this with the scenario: it is a bug of twinrun"});
    return j;
  }
  if (e.subject_parts) {
    j.notes.push_back(fmt::format(
        "The subject is not deterministic{}: T and T' part at step {}.{}{}",
        e.subject.deterministic ? "" : ", as it declares", *e.subject_parts,
        e.violations.empty() ? " Every op is inside its bound in both." : "",
        e.spread ? " " + e.spread->text() : ""));
  }
  if (e.subject_birth) {
    j.notes.push_back(
        fmt::format("The subject ends in {} at step {}, born in {}; the references do not.",
                    e.subject_birth->what, e.subject_birth->step, e.subject_birth->op));
  }
  const bool explained = e.match && e.match->outcome == MatchResult::Outcome::kExplained;
  const bool unexplained = e.match && e.match->outcome == MatchResult::Outcome::kUnexplained;
  if (!e.violations.empty()) {
    if (e.meaning.differs()) sharding_findings(e, j, VerdictClass::kSharding);
    if (explained) program_findings(e, j, VerdictClass::kSharding);
    engine_bug(e, j);
    if (explained)
      j.headline += fmt::format(" Its script runs another program besides ({}).", explained_by(e));
    if (e.meaning.differs()) {
      j.headline += fmt::format(" Sharding changes the program's meaning besides ({}).", named_causes(e));
      j.notes.push_back(
          "Whether the change of meaning matters is not judged beside an engine bug: its runs "
          "cannot be compared before that is mended.");
    }
    return j;
  }
  if (unexplained && e.level == 'C') {
    if (e.meaning.differs()) sharding_findings(e, j, VerdictClass::kSharding);
    tensor_findings(e, j);
    return j;
  }
  if (e.identical) {
    noise(e, j);
    return j;
  }
  if (unexplained) {
    inconclusive(j, "The subject runs another program than it was asked to, and no known cause explains it.",
                 "every op of the program it ran is inside its bound",
                 {"compare the list of its ops with `twinrun inspect SCENARIO --program`"});
    return j;
  }
  if (e.quick) {
    inconclusive(j, "Nothing wrong was found in the quick look, and the runs are not bit-equal.",
                 "--quick runs no seeds: it can only show an engine bug or exact agreement",
                 {"run again without --quick"});
    return j;
  }
  const TrajectoryRow* tr = find_row(e, "T - R");
  const TrajectoryRow* sr = find_row(e, "S - R");
  if (explained) {
    judge_script(e, j, tr, sr);
    return j;
  }
  if (e.meaning.differs()) {
    const bool accounted = e.meaning.explained();
    const bool s_outside = sr != nullptr && sr->outcome == "outside",
               t_outside = tr != nullptr && tr->outcome == "outside";
    const bool s_inside =
        sr != nullptr && (sr->outcome == "equivalent" || sr->outcome == "identical");
    const bool t_inside =
        tr != nullptr && (tr->outcome == "equivalent" || tr->outcome == "identical");
    if (s_outside && accounted) {
      sharding_findings(e, j, VerdictClass::kSharding);
      j.verdict = VerdictClass::kSharding;
      j.headline = fmt::format(
          "Sharding changes what the program means (cause: {}). Held-out loss moves by {:+.4f} on "
          "cpu alone, without the engine.",
          named_causes(e), sr->mean);
      j.confidence =
          fmt::format("95 %: paired over {} seeds; no op of the engine is outside its bound",
                      sr->differences.size());
      return j;
    }
    if (s_inside && t_inside) {
      noise(e, j);
      sharding_findings(e, j, VerdictClass::kNoise);
      std::ranges::stable_sort(j.findings, std::less<>(),
                               [](const Finding& f) { return f.share.has_value(); });
      j.headline = fmt::format(
          "Noise: sharding changes the program's meaning ({}), but held-out loss stays within "
          "{:.3g}.",
          named_causes(e), tr->margin);
      j.next_steps.clear();
      j.notes.push_back(
          "The sharded program does not mean the same; at this size the effect is inside the "
          "margin.");
      return j;
    }
    sharding_findings(e, j, VerdictClass::kInconclusive);
    inconclusive(j,
                 fmt::format("Sharding changes the program's meaning ({}), but {} seeds do not "
                             "decide whether that matters.",
                             named_causes(e), sr == nullptr ? 0 : sr->differences.size()),
                 t_outside && !s_outside
                     ? "the user's drift is outside the margin, sharding alone does not show it"
                     : "the interval of the effect straddles the margin",
                 {"raise diagnose.seeds, or set diagnose.margin to the loss that you do not mind"});
    return j;
  }
  if (std::ranges::find(e.ensembles, "outside", &EnsembleRow::outcome) != e.ensembles.end()) {
    inconclusive(j, "The subject's first steps are not those of an honest engine of its declaration, yet nothing wrong was found in them.",
                 "farther from honest engines than they are from each other; a bias below the bounds, or a cause outside every switch",
                 {"set diagnose.probe = \"every\"", "raise diagnose.ensemble"});
    return j;
  }
  const bool accepted = tr == nullptr || tr->outcome != "outside";
  const bool decided = tr != nullptr && (tr->outcome == "equivalent" || tr->outcome == "identical");
  if (decided) {
    noise(e, j);
  } else if (accepted) {
    inconclusive(j,
                 fmt::format("{} and the program means the same, but the seeds do not decide whether the "
                             "drift matters.",
                             e.level == 'C' ? "No tensor is outside what honest engines do" : "No op is outside its bound"),
                 tr != nullptr && tr->differences.size() > 1
                     ? "the interval of T - R straddles the margin"
                     : "one seed gives no interval",
                 {"raise diagnose.seeds or diagnose.margin"});
  } else {
    inconclusive(j,
                 fmt::format("The drift is larger than the margin, yet every {} and the program means the same.",
                             e.level == 'C' ? "tensor is where honest engines put it" : "probed op is inside its bound"),
                 "cause outside every switch, or a bias below the bounds",
                 {"set diagnose.probe = \"every\"", "try tpu.precision = \"highest\""});
  }
  return j;
}

}  // namespace twinrun
