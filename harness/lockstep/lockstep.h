// Instrument 1: the f64 oracle recomputes every op of a probed step on the subject's own inputs,
// and between the ops, what a consumer read must be what its producer wrote. It uses only what the
// engine declares. It observes a run (harness/run/run.h); its violations lead to the verdict.
//
//   Lockstep probe(program, backend->capabilities(), {.every = 10}, pool);
//   train(experiment, program, *backend, {.observer = &probe});
//   probe.violations();        // in the order of execution
//   probe.summary("T", steps); // worst ratio per op, for the report
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backends/oracle/oracle.h"
#include "harness/lockstep/bias.h"
#include "harness/lockstep/group_watch.h"
#include "harness/lockstep/links.h"
#include "harness/lockstep/rerun.h"
#include "harness/lockstep/violation.h"
#include "harness/run/run.h"
#include "reports/report.h"

namespace twinrun {

struct ProbePolicy {
  int64_t first = 3;  // this many first steps are always probed
  int64_t every = 1;  // and then every Nth; 0: none
  // Screen all other steps: a cheap check of every op decides whether the op is replayed
  // (backends/oracle/screen.h). An engine that fuses ops runs these steps fused
  // (harness/lockstep/group_watch.h).
  bool screen = false;
  bool bias = true;          // score rounding errors (harness/lockstep/bias.h)
  std::string text() const;  // "every step", "steps 0-2 and every 10th; the others screened"
};

class Lockstep : public StepObserver, public TraceSink {
 public:
  Lockstep(const Program& program, Capabilities declared, ProbePolicy policy, ThreadPool* pool);

  TraceSink* begin_step(int64_t step, const States& before, const StepInputs& inputs) override;
  void end_step(int64_t step, const States& after, const StepOutputs& outputs) override;
  void on_op(const OpEvent& event) override;
  GroupSink* groups(const Program& program, std::span<const FusionGroup> groups) override;

  // Ordered by step, and within a step in the order of the program. At most 8 per op.
  const std::vector<Violation>& violations() const { return violations_; }
  // The step after the last clean one, with the state from which it starts: localisation begins
  // there. The state is empty where a bias was found that begins at an earlier step, whose state
  // was not kept; nullopt if no clean step is known.
  std::optional<std::pair<int64_t, States>> last_clean() const { return last_clean_; }
  // The first steps, up to three, that had a violation other than a bias, as they began; for
  // rerun_flagged (harness/lockstep/rerun.h).
  const std::vector<KeptStep>& flagged() const { return flagged_; }
  // The last step as it began: it shows whether an engine without violations repeats its bits.
  const KeptStep& last_step() const { return step_; }
  // The program that the engine reports, if it is not the one that it was asked to run; else
  // nullptr.
  const Program* executed_program() const { return executed_.get(); }
  // State variables whose replicas diverge, whether or not the program allows it.
  const std::vector<ReplicaDivergence>& divergences() const { return links_.divergences(); }
  const BiasCounts& bias_counts() const { return bias_.counts(); }
  // The level of evidence. A: op trace and declared arithmetic. B: op trace only. C: no op was
  // seen.
  char level() const;
  double worst_ratio() const;  // over all probed ops
  EngineProbe summary(const std::string& pair, int64_t steps) const;

 private:
  struct Row {
    double worst = 0;
    int64_t elements = 0, outside = 0, untestable = 0, violations = 0;
    std::vector<double> residuals;  // the first few
  };
  enum class Seen : uint8_t { kNot, kInside, kOutside };  // what was seen of an op in this step
  void follow(const Program* reported);
  void screen(const OpEvent& event, size_t replica);
  void check_again(const OpEvent& event);
  void check_result(const OpEvent& event, size_t replica);
  Violation* found_already(ValueId id);
  void found(const OpEvent& event, size_t replica, const OracleVerdict& verdict,
             const OracleResult& oracle, const std::vector<Tensor>& inputs);
  void biased(const OpEvent& event, int replica, const OracleVerdict& verdict, BiasFinding finding);
  void keep_result(ValueId id, int replica, const Tensor& output);
  std::string last_good(ValueId id) const;
  bool probed(int64_t step) const;

  const Program& program_;
  Capabilities declared_;
  ProbePolicy policy_;
  ThreadPool* pool_;
  Links links_;
  BiasWatch bias_;
  GroupWatch group_watch_;
  // The program whose ops are checked: as requested, or as the engine reports it.
  const Program* followed_;
  const Program* reported_ = nullptr;
  std::unique_ptr<Program> executed_;
  std::map<ValueId, Row> rows_;
  std::vector<Violation> violations_, fresh_;  // fresh_: of the current step
  std::set<int64_t> probed_steps_, screened_steps_;
  // The current step as it began, with the step before it where that was kept.
  KeptStep step_;
  std::vector<KeptStep> flagged_;
  std::vector<Seen> seen_;  // [value]
  bool traced_ = false;
  // Results of small ops, of the step before and of the current one: for fingerprints.
  std::map<std::pair<ValueId, int>, Tensor> previous_, current_;
  int64_t kept_bytes_ = 0;
  std::map<std::pair<ValueId, int>, Tensor> sources_;  // constants, as last checked
  std::optional<std::pair<int64_t, States>> last_clean_;
  // Seconds spent in this class; start and length of the whole run.
  double seconds_ = 0, run_began_ = 0, run_seconds_ = 0;
};

}  // namespace twinrun
