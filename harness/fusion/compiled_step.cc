// Compares the results of an untraced step with the replay of the program.
#include "harness/fusion/compiled_step.h"

#include "harness/tensors/pattern.h"

namespace twinrun {
StepVerdict judge_tensor(const std::string& name, const Bounded& expected, const Tensor& found) {
  FoundVerdict one = compare(expected, found);
  StepVerdict verdict{one.elements, one.outside, one.unknown, "", {}};
  if (one.unknown > 0) verdict.why = expected.why;
  if (one.outside > 0) verdict.wrong.push_back({name, found.dims(), std::move(one)});
  return verdict;
}

std::string WrongResult::pattern() const { return element_pattern(dims, verdict.wrong); }

void StepVerdict::add(const StepVerdict& next) {
  elements += next.elements;
  outside += next.outside;
  unknown += next.unknown;
  if (why.empty()) why = next.why;
  wrong.insert(wrong.end(), next.wrong.begin(), next.wrong.end());
}

FusedArithmetic fused_arithmetic(const Capabilities& declared) {
  return {declared.elementary_ulps, declared.flush, declared.precision};
}

Result<StepJudge> StepJudge::make(const Program& program, const Capabilities& declared,
                                  KeptStep given, ThreadPool* pool) {
  StepJudge out;
  out.program_ = &program;
  if (given.before.size() != 1)
    return Error{"the replay of a whole step is of one core", "the untraced module", ""};
  TWINRUN_ASSIGN(out.expected_,
                 replay_with_radii(program, {given.before[0].vars, given.inputs[0], {}, {}},
                                   fused_arithmetic(declared), pool));
  out.given_ = std::move(given);
  return out;
}

Result<StepVerdict> StepJudge::step(Engine& engine) const {
  States after = given_.before;
  StepOutputs outputs;
  TWINRUN_RETURN_IF_ERROR(engine.step(given_.step, after, given_.inputs, outputs));
  StepVerdict verdict;
  for (size_t i = 0; i < program_->state.size(); ++i) {
    if (program_->state[i].next != kNoValue)
      verdict.add(judge_tensor(program_->state[i].name, expected_.next[i], after[0].vars[i]));
  }
  for (size_t o = 0; o < program_->outputs.size(); ++o)
    verdict.add(judge_tensor(program_->outputs[o].name, expected_.outputs[o], outputs[0][o]));
  return verdict;
}

}  // namespace twinrun
