// The stage that judges the module which an engine compiles of the whole step (harness/fusion).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>

#include "checkpoints/container/atomic_file.h"
#include "harness/diagnose/runs.h"
#include "harness/fusion/joined_ops.h"
#include "harness/fusion/recomputed.h"
#include "reports/text.h"

namespace twinrun {
namespace {

constexpr const char* kExcerptFile = "joined_ops.mlir";

// Passes of XLA that join or rewrite ops, by the names of --xla_disable_hlo_passes. Each costs a
// process that loads the plugin and repeats the first steps.
constexpr std::array kPasses = {"algsimp",       "fusion",         "constant_folding",
                                "reshape-mover", "dot_decomposer", "cse"};

// The first wrong step, and how another text of its module is judged.
struct WrongModule {
  KeptStep given;
  WrongStep wrong;
};

// Finds the ops that may not be joined, and keeps what proves it.
Status find_group(DiagnosisState& diagnosis, Backend& backend, const WrongModule& at) {
  Evidence& e = diagnosis.evidence;
  const Program& program = diagnosis.programs["T"];
  TWINRUN_ASSIGN(const JoinedOps found,
                 find_joined_ops(backend, program, at.given, at.wrong, &diagnosis.pool,
                                 diagnosis.progress, diagnosis.stop));
  for (const DefinedOp& op : found.ops) e.module.joined.push_back(op.label);
  e.module.compilations = found.compilations;
  e.module_not_joined = found.why;
  if (!found.excerpt) return Ok{};
  e.module.excerpt = kExcerptFile;
  e.excerpt_wrong = found.verdict.wrong;
  return write_file_atomically(
      (std::filesystem::path(diagnosis.options.directory) / kExcerptFile).string(),
      found.excerpt->text);
}

void find_passes(DiagnosisState& diagnosis) {
  Evidence& e = diagnosis.evidence;
  if (!diagnosis.options.wrong_without || !e.compiled_wrong()) return;
  if (diagnosis.progress != nullptr)
    diagnosis.progress->begin("without which pass of XLA is it right", 1);
  for (const char* pass : kPasses) {
    if (diagnosis.stopped()) break;
    const auto wrong = diagnosis.options.wrong_without(pass, *e.module_wrong_at);
    if (wrong && !*wrong) e.module.passes.emplace_back(pass);
  }
  if (diagnosis.progress != nullptr)
    diagnosis.progress->end(e.module.passes.empty()
                                ? "none of those that were left out"
                                : fmt::format("{}", fmt::join(e.module.passes, ", ")));
}

std::string apart_text(const StepApart& nearest) {
  return fmt::format("{} is the farthest: {} spreads from the mean of {}, allowed {}",
                     nearest.tensor, text::number(nearest.ratio), StepAround::kMembers,
                     text::number(nearest.threshold));
}

}  // namespace

Status clear_recomputed(DiagnosisState& diagnosis) {
  Evidence& e = diagnosis.evidence;
  if (e.violations.empty() || e.level == 'C') return Ok{};
  const bool one_core = e.violations_run == "E1";
  const Program& program = diagnosis.programs[e.violations_run];
  const Lockstep& probe = one_core              ? *diagnosis.probe_e1
                          : diagnosis.probe_gap ? *diagnosis.probe_gap
                                                : *diagnosis.probe_t;
  TWINRUN_ASSIGN(const auto backend, subject(diagnosis));
  TWINRUN_ASSIGN(const auto engine, backend->prepare(program));
  if (engine->module_text() == nullptr) return Ok{};
  const Capabilities declared = backend->capabilities();
  std::map<ValueId, bool> explained;
  for (const KeptStep& kept : probe.flagged()) {
    TWINRUN_ASSIGN(const TracedStep traced, TracedStep::of(*engine, kept));
    for (const Violation& v : e.violations) {
      if (v.step != kept.step || v.what != Violation::What::kResult || v.replica < 0) continue;
      const auto [at, first] = explained.try_emplace(v.id, true);
      if (!at->second) continue;
      TWINRUN_ASSIGN(at->second, traced.explains(program, declared, v.id,
                                                 static_cast<size_t>(v.replica), &diagnosis.pool));
    }
  }
  std::erase_if(e.violations, [&](const Violation& v) {
    const auto at = explained.find(v.id);
    const bool legal = v.what == Violation::What::kResult && at != explained.end() && at->second;
    if (legal && std::ranges::find(e.recomputed, v.op) == e.recomputed.end())
      e.recomputed.push_back(v.op);
    return legal;
  });
  if (!e.violations.empty() || one_core || !diagnosis.probe_e1) return Ok{};
  e.violations = diagnosis.probe_e1->violations();
  e.violations_run = "E1";
  return clear_recomputed(diagnosis);
}

Status judge_compiled_step(DiagnosisState& diagnosis) {
  Evidence& e = diagnosis.evidence;
  if (!diagnosis.probe_t || !e.violations.empty() || diagnosis.subject_states.empty() ||
      e.level == 'C')
    return Ok{};
  const Program& program = diagnosis.programs["T"];
  TWINRUN_ASSIGN(const auto backend, subject(diagnosis));
  TWINRUN_ASSIGN(const auto engine, backend->prepare(program));
  if (engine->module_text() == nullptr) return Ok{};
  if (diagnosis.progress != nullptr) diagnosis.progress->begin("the step as it is compiled", 1);
  const Capabilities declared = backend->capabilities();
  ModuleCheck& m = e.module;
  m.text = program.source != nullptr && *engine->module_text() == program.source->text
               ? "the imported StableHLO, as it is"
               : "twinrun's StableHLO of the program";
  std::optional<WrongModule> found;
  StepFeed feed(diagnosis.experiment, program);
  StepApart nearest;
  for (const ProbedState& state : diagnosis.subject_states) {
    if (diagnosis.stopped()) return Ok{};
    TWINRUN_ASSIGN(StepInputs inputs, feed.inputs(state.step));
    const KeptStep given{state.step, state.states, std::move(inputs), std::nullopt};
    m.steps.push_back(state.step);
    if (auto made = StepJudge::make(program, declared, given, &diagnosis.pool)) {
      const auto judge = std::make_shared<StepJudge>(*std::move(made));
      TWINRUN_ASSIGN(const StepVerdict verdict, judge->step(*engine));
      m.elements += verdict.elements;
      m.outside += verdict.outside;
      m.unknown += verdict.unknown;
      if (m.why.empty()) m.why = verdict.why;
      if (verdict.outside > 0 && !found) {
        e.module_wrong = verdict.wrong;
        found = {given, [judge](Engine& other) -> Result<bool> {
                   TWINRUN_ASSIGN(const StepVerdict v, judge->step(other));
                   return v.outside > 0;
                 }};
      }
    } else if (m.why.empty()) {
      m.why = made.error().what;
    }
    if (found) break;
    TWINRUN_ASSIGN(auto made, StepAround::make(diagnosis.experiment, program, declared, state,
                                               diagnosis.options.threads));
    const auto around = std::make_shared<StepAround>(std::move(made));
    StepApart here;
    TWINRUN_ASSIGN(const auto apart, around->of(*engine, false, &here));
    if (here.ratio >= nearest.ratio) nearest = here;
    if (!apart) continue;
    TWINRUN_ASSIGN(const auto traced, around->of(*engine, true));
    if (traced) continue;  // a decision that the traced step takes as well
    e.module_apart = apart;
    found = {given, [around](Engine& other) -> Result<bool> {
               TWINRUN_ASSIGN(const auto v, around->of(other, false));
               return v.has_value();
             }};
    break;
  }
  if (!nearest.tensor.empty()) m.compared = apart_text(nearest);
  if (diagnosis.progress != nullptr)
    diagnosis.progress->end(
        !found ? fmt::format("no element of {} is outside", text::count(m.elements))
        : e.module_wrong.empty() ? "apart from conforming engines"
                                 : fmt::format("{} elements are outside", text::count(m.outside)));
  if (!found) return Ok{};
  e.module_wrong_at = found->given.step;
  TWINRUN_RETURN_IF_ERROR(find_group(diagnosis, *backend, *found));
  find_passes(diagnosis);
  return Ok{};
}

}  // namespace twinrun
