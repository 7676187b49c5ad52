// A training step of small integers and powers of two: every product, sum and update is exact in binary32, and every operand of a
// product in bfloat16, so that all right engines give the same bits, whatever their precision and order of sums.
//
//   TWINRUN_ASSIGN(const KnownAnswer program, KnownAnswer::make());
//   TWINRUN_ASSIGN(auto backend, make_engine(name, program.scenario(), options));
//   TWINRUN_ASSIGN(const KnownAnswer::Checked one, program.check(*backend, 1));     // "" where every number is right
#pragma once

#include <string>

#include "harness/experiment/experiment.h"

namespace twinrun {

class KnownAnswer {
 public:
  static constexpr int kBatch = 32;  // over all cores

  static Result<KnownAnswer> make();
  const Scenario& scenario() const { return experiment_.scenario; }

  struct Checked {
    int64_t numbers = 0;
    std::string
        wrong;  // "12 of 6281 numbers wrong, first in dense1/kernel.grad[0] on core 3: 1.5, due is 1"
    double step_seconds = 0;
  };
  // One step on so many cores (a divisor of kBatch) from the known state. Errors: the engine's.
  Result<Checked> check(Backend& backend, int cores) const;
  // Two more from there: "" if the second, from the state that the engine kept, gives the bits that it gives from the same state
  // when that is handed to it.
  Result<std::string> check_state(Backend& backend) const;

 private:
  explicit KnownAnswer(Experiment e) : experiment_(std::move(e)) {}
  Program program(const Backend& backend, int cores) const;
  Result<StepInputs> inputs(const Program& program) const;
  States states(const Program& program) const;
  Experiment experiment_;
};

}  // namespace twinrun
