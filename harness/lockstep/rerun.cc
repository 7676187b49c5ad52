// Runs flagged steps twice more on the subject and compares violations, bits and states.
#include "harness/lockstep/rerun.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/lockstep/lockstep.h"
#include "harness/lockstep/op_digests.h"
#include "harness/tensors/distance.h"
#include "reports/text.h"

namespace twinrun {
namespace {

constexpr int kReruns = 2;

double distance(const States& a, const States& b) {
  RelativeDistance all;
  for (size_t r = 0; r < a.size(); ++r) {
    for (size_t i = 0; i < a[r].vars.size(); ++i) {
      if (a[r].vars[i].dtype() == DType::kF32) all.add(a[r].vars[i], b[r].vars[i]);
    }
  }
  return all.value();
}

struct Attempt {
  std::vector<Violation> violations;
  OpDigests trace;
  States after;
};

// Runs the step once from the kept state, under a probe of its own.
Result<Attempt> attempt(Backend& backend, const Program& program, const KeptStep& kept,
                        ThreadPool* pool, int64_t& executions) {
  TWINRUN_ASSIGN(const std::unique_ptr<Engine> engine, engine_before(backend, program, kept));
  if (kept.lead) ++executions;
  StepOutputs outputs;
  ProbePolicy policy;
  policy.bias = false;
  Lockstep probe(program, backend.capabilities(), policy, pool);
  Attempt a;
  a.after = kept.before;
  a.trace = OpDigests(probe.begin_step(kept.step, kept.before, kept.inputs));
  TWINRUN_RETURN_IF_ERROR(engine->step(kept.step, a.after, kept.inputs, outputs, &a.trace));
  ++executions;
  probe.end_step(kept.step, a.after, outputs);
  a.violations = probe.violations();
  return a;
}

void count(Violation& v, const Attempt& again) {
  ++v.reruns;
  for (const Violation& w : again.violations) {
    if (w.op != v.op || w.what != v.what) continue;
    ++v.wrong_again;
    if (w.bits == v.bits && w.replica == v.replica && w.link == v.link) ++v.same_bits_again;
    break;
  }
}

Violation::Persistence persistence(const Violation& v) {
  if (v.wrong_again == 0) return Violation::Persistence::kTransient;
  return v.same_bits_again == v.reruns ? Violation::Persistence::kPersistent
                                       : Violation::Persistence::kIntermittent;
}

}  // namespace

Result<std::unique_ptr<Engine>> engine_before(Backend& backend, const Program& program,
                                              const KeptStep& kept) {
  TWINRUN_ASSIGN(std::unique_ptr<Engine> engine, backend.prepare(program));
  if (!kept.lead) return engine;
  States states = kept.lead->first;
  StepOutputs outputs;
  TWINRUN_RETURN_IF_ERROR(engine->step(kept.step - 1, states, kept.lead->second, outputs));
  return engine;
}

std::string RunSpread::text() const {
  return fmt::format(
      "Step {} run twice from the same state gives other bits, first in {}; every op is inside its "
      "bound in both, and the states after it differ by {}.",
      step, op, text::relative(relative));
}

Result<Reruns> rerun_flagged(Backend& backend, const Program& program,
                             std::span<const KeptStep> steps, std::vector<Violation> violations,
                             ThreadPool* pool) {
  Reruns all;
  all.violations = std::move(violations);
  for (const KeptStep& kept : steps) {
    if (kept.step < 0) continue;
    std::vector<Attempt> attempts;
    for (int i = 0; i < kReruns; ++i) {
      TWINRUN_ASSIGN(Attempt a, attempt(backend, program, kept, pool, all.executions));
      attempts.push_back(std::move(a));
    }
    for (Violation& v : all.violations) {
      if (v.step != kept.step || v.what == Violation::What::kStatistic) continue;
      for (const Attempt& a : attempts) count(v, a);
      v.persistence = persistence(v);
    }
    const bool clean =
        std::ranges::all_of(attempts, [](const Attempt& a) { return a.violations.empty(); });
    const std::string parts = attempts[0].trace.first_difference(attempts[1].trace);
    if (clean && !parts.empty() && !all.spread)
      all.spread = RunSpread{kept.step, parts, distance(attempts[0].after, attempts[1].after)};
  }
  return all;
}

}  // namespace twinrun
