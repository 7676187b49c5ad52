// How far the subject's weights are from the reference's while both train: R2's are kept after some of the steps, and T's are held against
// them as they come. R may have been read back from an earlier diagnosis; R2, which has its bits, never is.
//
//   WeightKeeper kept(program, steps);                       // observes R2
//   WeightWatch watch(inner, kept, program, "T - R");        // observes T, and hands every call on to `inner`
//   watch.drift();                                           // for the report
#pragma once

#include <map>
#include <string>
#include <vector>

#include "harness/run/run.h"
#include "reports/report.h"

namespace twinrun {

// Keeps the parameters after up to 24 steps, evenly spaced, the first and the last among them; fewer, or none, where they would fill more
// than 256 MiB.
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
    size_t place = 0;  // in the state
  };
  std::vector<Variable> variables_;              // the parameters
  std::vector<int64_t> wanted_;                  // steps
  std::map<int64_t, std::vector<Tensor>> kept_;  // by step, one for each variable
};

class WeightWatch : public StepObserver {
 public:
  // `program`: of the run that is watched. A variable of another name or shape there is left out.
  WeightWatch(StepObserver& inner, const WeightKeeper& kept, const Program& program,
              std::string pair);
  bool needs_before(int64_t step) const override { return inner_.needs_before(step); }
  TraceSink* begin_step(int64_t step, const States& before, const StepInputs& inputs) override {
    return inner_.begin_step(step, before, inputs);
  }
  void end_step(int64_t step, const States& after, const StepOutputs& outputs) override;
  // Of the steps that were taken by both; distances to three digits.
  const WeightDrift& drift() const { return drift_; }

 private:
  StepObserver& inner_;
  const WeightKeeper& kept_;
  std::vector<std::pair<size_t, size_t>> places_;  // in the watched state, among the kept variables
  WeightDrift drift_;
};

}  // namespace twinrun
