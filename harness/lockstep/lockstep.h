// Instrument 1: every op of a probed step is recomputed by the f64 oracle on the subject's own inputs; between the ops, what a
// consumer read must be what its producer wrote. Knows of the engine only what it declares.
//
//   Lockstep probe(program, backend->capabilities(), {.every = 10}, pool);
//   train(experiment, program, *backend, {.observer = &probe});
//   probe.violations();        // in the order of execution
//   probe.summary("T");        // worst ratio per op, for the report
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backends/oracle/oracle.h"
#include "harness/lockstep/bias.h"
#include "harness/lockstep/links.h"
#include "harness/lockstep/rerun.h"
#include "harness/lockstep/violation.h"
#include "harness/run/run.h"
#include "reports/report.h"

namespace twinrun {

struct ProbePolicy {
  int64_t first = 3;  // the first steps are always probed
  int64_t every = 1;  // and then every Nth; 0: none
  bool screen =
      false;  // all other steps are screened: a cheap check of every op calls for its replay (backends/oracle/screen.h)
  bool bias = true;          // scores of rounding errors (harness/lockstep/bias.h)
  std::string text() const;  // "every step", "steps 0-2 and every 10th; the others screened"
};

class Lockstep : public StepObserver, public TraceSink {
 public:
  Lockstep(const Program& program, Capabilities declared, ProbePolicy policy, ThreadPool* pool);

  TraceSink* begin_step(int64_t step, const States& before, const StepInputs& inputs) override;
  void end_step(int64_t step, const States& after, const StepOutputs& outputs) override;
  void on_op(const OpEvent& event) override;

  // By step, and within one in the order of the program. The first few of each op.
  const std::vector<Violation>& violations() const { return violations_; }
  // The step after the last one that came out clean, and the state it starts from (none where a bias was found that
  // begins there): where localisation begins.
  std::optional<std::pair<int64_t, States>> last_clean() const { return last_clean_; }
  // The first flagged steps as they began, for rerun_flagged (harness/lockstep/rerun.h); up to three.
  const std::vector<KeptStep>& flagged() const { return flagged_; }
  // The last step, likewise: to see whether an engine that has nothing wrong gives the same bits again.
  const KeptStep& last_step() const { return step_; }
  // What the engine says it ran, if that is not the program it was asked to run.
  const Program* executed_program() const { return executed_.get(); }
  // State variables whose replicas part, whether or not they may.
  const std::vector<ReplicaParting>& partings() const { return links_.partings(); }
  const BiasCounts& bias_counts() const { return bias_.counts(); }
  // A: op trace and declared arithmetic. B: op trace only. C: no op was seen.
  char level() const;
  double worst_ratio() const;  // over all probed ops
  EngineProbe summary(const std::string& pair, int64_t steps) const;

 private:
  struct Row {
    double worst = 0;
    int64_t elements = 0, outside = 0, untestable = 0, violations = 0;
    std::vector<double> residuals;  // the first few
  };
  enum class Seen : uint8_t { kNot, kInside, kOutside };  // an op of this step
  void follow(const Program* told);
  void screen(const OpEvent& event, size_t replica);
  void check_result(const OpEvent& event, size_t replica);
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
  // The program at work: as asked, or as the engine says.
  const Program* ran_;
  const Program* told_ = nullptr;
  std::unique_ptr<Program> executed_;
  std::map<ValueId, Row> rows_;
  std::vector<Violation> violations_, fresh_;  // fresh_: of the step in progress
  std::set<int64_t> probed_steps_, screened_steps_;
  // The step in progress and the one before it, as they began.
  KeptStep step_;
  std::vector<KeptStep> flagged_;
  std::vector<Seen> seen_;  // [value]
  bool traced_ = false;
  // Results of small ops, one step before: for fingerprints.
  std::map<std::pair<ValueId, int>, Tensor> previous_, current_;
  int64_t kept_bytes_ = 0;
  std::map<std::pair<ValueId, int>, Tensor> sources_;  // constants, as last judged
  std::optional<std::pair<int64_t, States>> last_clean_;
  double seconds_ = 0, run_began_ = 0, run_seconds_ = 0;  // spent here; of the whole run
};

}  // namespace twinrun
