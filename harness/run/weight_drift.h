// How far the subject's weights are from the reference's while both train: the weights of run R2
// are kept after some steps, and those of run T are compared with them as they come. R2 has R's
// bits and is always computed, while R may come from an earlier diagnosis (reference_cache.h).
//
//   WeightKeeper kept(program, steps);                       // observes R2
//   WeightWatch watch(inner, kept, program, "T - R");        // observes T; passes calls to `inner`
//   watch.drift();                                           // for the report
#pragma once

#include <map>
#include <string>
#include <vector>

#include "harness/run/run.h"
#include "reports/report.h"

namespace twinrun {

// Keeps the parameters of replica 0 after up to 24 steps, evenly spaced and including the first and
// the last; fewer, or none, where they would take more than 256 MiB.
class WeightKeeper : public StepObserver {
 public:
  WeightKeeper(const Program& program, int64_t steps);
  bool needs_before(int64_t) const override { return false; }
  TraceSink* begin_step(int64_t, const States&, const StepInputs&) override { return nullptr; }
  void end_step(int64_t step, const States& after, const StepOutputs& outputs) override;

 private:
  friend class WeightWatch;
  struct Variable {
    std::string name;
    TensorType type;
    size_t place = 0;  // index in the state
  };
  std::vector<Variable> variables_;              // the parameters
  std::vector<int64_t> wanted_;                  // the steps to keep
  std::map<int64_t, std::vector<Tensor>> kept_;  // by step, one for each variable
};

class WeightWatch : public StepObserver {
 public:
  // `program` is that of the watched run. Variables that have another name or shape in it are left
  // out.
  WeightWatch(StepObserver& inner, const WeightKeeper& kept, const Program& program,
              std::string pair);
  bool needs_before(int64_t step) const override { return inner_.needs_before(step); }
  TraceSink* begin_step(int64_t step, const States& before, const StepInputs& inputs) override {
    return inner_.begin_step(step, before, inputs);
  }
  void end_step(int64_t step, const States& after, const StepOutputs& outputs) override;
  // Distances, to three digits, at the steps that both runs took.
  const WeightDrift& drift() const { return drift_; }

 private:
  StepObserver& inner_;
  const WeightKeeper& kept_;
  // Indices in the watched state and among the kept variables.
  std::vector<std::pair<size_t, size_t>> places_;
  WeightDrift drift_;
};

}  // namespace twinrun
