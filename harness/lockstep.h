// Instrument 1: every op of a probed step is recomputed by the f64 oracle on the subject's own inputs; between the ops, what a
// consumer read must be what its producer wrote. Knows of the engine only what it declares.
//
//   Lockstep probe(program, backend->capabilities(), {.every = 10}, pool);
//   train(experiment, program, *backend, {.observer = &probe});
//   probe.violations();        // in the order of execution
//   probe.summary("T");        // worst ratio per op, for the report
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backends/oracle.h"
#include "harness/run.h"
#include "reports/report.h"

namespace twinrun {

struct ProbePolicy {
  int64_t first = 3;  // the first steps are always probed
  int64_t every = 1;  // and then every Nth; 0: none
  bool screen =
      false;  // all other steps are screened: a cheap check of every op calls for its replay (backends/oracle/screen.h)
  std::string text() const;  // "every step", "steps 0-2 and every 10th; the others screened"
};

// One op outside its bound, or a broken link between ops.
struct Violation {
  int64_t step = 0;
  int replica = 0;   // the first core it was seen on; -1: all (a collective)
  int replicas = 1;  // on how many cores
  ValueId id = kNoValue;
  std::string op, kind, phase, layer;
  enum class What : uint8_t { kResult, kLink } what = What::kResult;
  OracleVerdict verdict;    // kResult
  std::string link;         // kLink: "read other bits than conv1/convolution wrote"
  std::string fingerprint;  // "8.000 times the expected value", "the value of the step before", ...
  std::string elements;     // "12 of 4608 elements, first at [0,3,1,7]"
};

class Lockstep : public StepObserver, public TraceSink {
 public:
  Lockstep(const Program& program, Capabilities declared, ProbePolicy policy, ThreadPool* pool);

  TraceSink* begin_step(int64_t step, const States& before, const StepInputs& inputs) override;
  void end_step(int64_t step, const States& after, const StepOutputs& outputs) override;
  void on_op(const OpEvent& event) override;

  const std::vector<Violation>& violations() const { return violations_; }
  // The step after the last probed one that came out clean, and the state it starts from: where localisation begins.
  std::optional<std::pair<int64_t, States>> last_clean() const { return last_clean_; }
  double worst_ratio() const;  // over all probed ops
  EngineProbe summary(const std::string& pair, int64_t steps) const;

 private:
  struct Row {
    double worst = 0;
    int64_t elements = 0, outside = 0, untestable = 0;
    std::vector<double> residuals;
  };
  void check_links(const OpEvent& event);
  void screen(const OpEvent& event, size_t replica);
  void check_result(const OpEvent& event, size_t replica);
  bool probed(int64_t step) const;

  const Program& program_;
  Capabilities declared_;
  ProbePolicy policy_;
  ThreadPool* pool_;
  std::map<ValueId, Row> rows_;
  std::vector<Violation> violations_;
  std::vector<std::vector<Tensor>> written_;  // [replica][value] of the step in progress
  std::map<std::pair<ValueId, int>, Tensor>
      previous_;  // outputs of small ops one probed step before, for fingerprints
  int64_t previous_step_ = -2;
  std::optional<std::pair<int64_t, States>> last_clean_;
  std::set<int64_t> probed_steps_, screened_steps_;
};

}  // namespace twinrun
