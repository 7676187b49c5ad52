// Checks between the ops of a step, all bit for bit. What a consumer read must be what its producer
// wrote (or the feed, or the state). Replicas that compute the same value must hold the same value.
// A step must start from the state that the step before ended with. The executed ops must be those
// of the program, each once and in order. There is no arithmetic: pointers are compared where the
// engine shares memory, bytes where it does not. A part of Lockstep (harness/lockstep/lockstep.h).
//
//   Links links(program, deterministic, [&](Violation v) { ... });
//   links.begin_step(step, before, inputs, watched);
//   links.on_op(event, program);  // per op
//   links.end_step(after);
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backends/core/backend.h"
#include "harness/lockstep/violation.h"

namespace twinrun {

// Which values are the same on all replicas according to the program: those computed from values
// that are the same on all, and those reduced over all replicas. A state variable counts as the
// same if its next value does.
std::vector<bool> uniform_values(const Program& program);

// A state variable whose replicas diverge.
struct ReplicaDivergence {
  std::string variable;
  int64_t step = 0;            // the first step after which they differ
  int replica = 0;             // the first core that differs from core 0
  bool must_be_equal = false;  // the program computes the same value on all replicas
};

class Links {
 public:
  using Report = std::function<void(Violation)>;
  // `asked`: the program whose state and inputs the engine is given.
  Links(const Program& asked, bool deterministic, Report report);

  // Call these for every step, whether its ops are watched or not.
  void begin_step(int64_t step, const States& before, const StepInputs& inputs, bool watched);
  void end_step(const States& after);
  // Call this for every op of a watched step; `executed` is the program that the engine reports.
  void on_op(const OpEvent& event, const Program& executed);

  // Another check found a violation in this step; it explains replicas that diverge in it.
  void noticed() { ++reported_; }

  // What the replica wrote as value `id` in this step, until the last reader of the value has run;
  // invalid if it was not seen.
  const Tensor& written(size_t replica, ValueId id) const;
  const std::vector<ReplicaDivergence>& divergences() const { return divergences_; }

 private:
  void start(const Program& executed);
  void check_order(const OpEvent& event);
  void check_operands(const OpEvent& event);
  void check_replicas(const OpEvent& event);
  void check_state(const States& after);
  void check_divergence(const States& after);
  void missing(ValueId from, ValueId to);
  void broken(int replica, ValueId id, std::string what);

  const Program& asked_;
  const bool deterministic_;
  Report report_;
  // The program that the ops of the current step belong to, and facts about it.
  const Program* followed_ = nullptr;
  std::vector<bool> dead_, uniform_;
  std::vector<std::vector<ValueId>> dies_;  // [i]: values whose last reader is op i
  // The current step.
  int64_t step_ = 0;
  bool watched_ = false, started_ = false;
  int reported_ = 0;  // violations of this step
  ValueId next_ = 0;  // the op that is expected next, unless it is dead
  States before_;
  StepInputs inputs_;
  std::vector<std::vector<Tensor>> written_;  // [replica][value]
  // The step before.
  States after_;
  std::vector<bool> diverged_;  // [state variable]
  std::vector<ReplicaDivergence> divergences_;
};

}  // namespace twinrun
