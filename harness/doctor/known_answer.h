// A training step of small integers and powers of two. Every product, sum and update is exact in
// binary32, and every operand of a product in bfloat16, so all correct engines give the same bits,
// whatever their precision and order of sums. Used by doctor.h.
//
//   TWINRUN_ASSIGN(const KnownAnswer program, KnownAnswer::make());
//   TWINRUN_ASSIGN(auto backend, make_engine(name, program.scenario(), options));
//   TWINRUN_ASSIGN(const KnownAnswer::Checked one, program.check(*backend, 1));
//   one.wrong;                                            // "" if every number is right
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
    // "12 of 6281 numbers wrong, first in dense1/kernel.grad[0] on core 3: 1.5, due is 1"
    std::string wrong;
    double step_seconds = 0;
  };
  // Runs one step on `cores` cores (a divisor of kBatch) from the known state and checks every
  // number. Errors: the engine's.
  Result<Checked> check(Backend& backend, int cores) const;
  // Runs one step on one core, then the next step twice: from the state that the engine kept, and
  // from the same state given to it. "" if both give the same bits.
  Result<std::string> check_state(Backend& backend) const;

 private:
  explicit KnownAnswer(Experiment e) : experiment_(std::move(e)) {}
  Program program(const Backend& backend, int cores) const;
  Result<StepInputs> inputs(const Program& program) const;
  States states(const Program& program) const;
  Experiment experiment_;
};

}  // namespace twinrun
