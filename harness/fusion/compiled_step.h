// Judges a step as users run it: the results of the whole step that an engine compiled as one
// module, against the intervals of everything that a conforming compiler may make of it
// (backends/radii/radii.h). Instrument 1 judges another module, in which every value is a result.
//
//   TWINRUN_ASSIGN(const StepJudge judge, StepJudge::make(program, declared, given, &pool));
//   TWINRUN_ASSIGN(const StepVerdict v, judge.step(*engine));
//   v.outside;                                   // > 0: the engine computed the step wrongly
#pragma once

#include <string>
#include <vector>

#include "backends/radii/radii.h"
#include "harness/lockstep/rerun.h"

namespace twinrun {

// A tensor of a step with elements outside their intervals.
struct WrongResult {
  std::string name;  // "dense1/kernel": its value after the step; "loss"
  Dims dims;
  FoundVerdict verdict;
  std::string pattern() const;  // which elements: "every 8th along dimension 1"
};

struct StepVerdict {
  int64_t elements = 0, outside = 0;
  int64_t unknown = 0;             // elements without a finite bound
  std::string why;                 // the first reason for that
  std::vector<WrongResult> wrong;  // in the order of the program: state, then outputs
  void add(const StepVerdict& next);
};

StepVerdict judge_tensor(const std::string& name, const Bounded& expected, const Tensor& found);

class StepJudge {
 public:
  // Errors: the program runs on several cores, or its arguments do not fit.
  static Result<StepJudge> make(const Program& program, const Capabilities& declared,
                                KeptStep given, ThreadPool* pool);
  // Runs the step without a trace, from the state and inputs that were given.
  Result<StepVerdict> step(Engine& engine) const;

 private:
  const Program* program_ = nullptr;
  KeptStep given_;
  Replayed expected_;
};

// What an engine of this declaration may do where it compiles a whole program.
FusedArithmetic fused_arithmetic(const Capabilities& declared);

}  // namespace twinrun
