// Runs the random ops of a program, and what they depend on, on the CPU engine.
#include "backends/random_feed.h"

#include "backends/registry.h"
#include "program/graph/random_ops.h"

namespace twinrun {

Status RandomFeed::prepare(const Program& program, int threads) {
  ops_ = random_ops(program);
  if (ops_.empty()) return Ok{};
  BackendOptions options;
  options.threads = threads;
  TWINRUN_ASSIGN(const auto cpu, make_backend("cpu", options));
  TWINRUN_ASSIGN(engine_, cpu->prepare(only_random(program)));
  return Ok{};
}

Result<std::vector<std::vector<Tensor>>> RandomFeed::draw(int64_t step, const States& states,
                                                          const StepInputs& inputs) {
  std::vector<std::vector<Tensor>> drawn(ops_.size());
  if (engine_ == nullptr) return drawn;
  States unused = states;
  StepOutputs outputs;
  TWINRUN_RETURN_IF_ERROR(engine_->step(step, unused, inputs, outputs));
  for (size_t o = 0; o < ops_.size(); ++o) {
    for (const auto& replica : outputs) drawn[o].push_back(replica[o]);
  }
  return drawn;
}

}  // namespace twinrun
