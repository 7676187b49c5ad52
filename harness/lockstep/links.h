// Between the ops of a step, bits must be equal: what a consumer read is what its producer wrote (or the feed, or the state);
// replicas that compute the same hold the same; the state that a step starts from is the one that the step before ended with.
// And the ops that ran are those of the program, each once and in order. No arithmetic: comparisons of pointers where the
// engine shares memory, of bytes where it does not. A part of Lockstep (harness/lockstep/lockstep.h).
//
//   Links links([&](Violation v) { ... });
//   links.begin_step(step, before, inputs);  links.on_op(event) per op;  links.end_step(after);
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backends/core/backend.h"
#include "harness/lockstep/violation.h"

namespace twinrun {

// Which values are the same on all replicas by the program's own words: computed from what is the same on all, or reduced
// over all of them. State counts as the same where its next value does.
std::vector<bool> uniform_values(const Program& program);

// A state variable whose replicas part.
struct ReplicaParting {
  std::string variable;
  int64_t step = 0;            // the first step after which they differ
  int replica = 0;             // the first core that differs from core 0
  bool must_be_equal = false;  // the program computes the same on all replicas
};

class Links {
 public:
  using Report = std::function<void(Violation)>;
  // asked: the program whose state and inputs the engine is given.
  Links(const Program& asked, bool deterministic, Report report);

  // Every step, watched or not.
  void begin_step(int64_t step, const States& before, const StepInputs& inputs, bool watched);
  void end_step(const States& after);
  // Every op of a watched step; `ran` is the program that the engine says it runs.
  void on_op(const OpEvent& event, const Program& ran);

  void noticed() {
    ++reported_;
  }  // another check found something in this step: cause enough for what follows from it

  // What replica r wrote as value `id` of this step, until its last reader has run; invalid if not seen.
  const Tensor& written(size_t replica, ValueId id) const;
  const std::vector<ReplicaParting>& partings() const { return partings_; }

 private:
  void start(const Program& ran);
  void check_order(const OpEvent& event);
  void check_operands(const OpEvent& event);
  void check_replicas(const OpEvent& event);
  void check_state(const States& after);
  void check_partings(const States& after);
  void missing(ValueId from, ValueId to);
  void broken(int replica, ValueId id, std::string what);

  const Program& asked_;
  const bool deterministic_;
  Report report_;
  // Of the program at work; facts about it are found once.
  const Program* ran_ = nullptr;
  std::vector<bool> dead_, uniform_;
  std::vector<std::vector<ValueId>> dies_;  // values whose last reader is op i
  // Of the step at work.
  int64_t step_ = 0;
  bool watched_ = false, started_ = false;
  int reported_ = 0;  // violations of this step
  ValueId next_ = 0;  // the op that is due
  States before_;
  StepInputs inputs_;
  std::vector<std::vector<Tensor>> written_;  // [replica][value]
  // Of the step before.
  States after_;
  std::vector<bool> parted_;  // [state variable]
  std::vector<ReplicaParting> partings_;
};

}  // namespace twinrun
