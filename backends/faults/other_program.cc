// Builds and runs the program of another sharding in place of the requested one, and maps inputs
// and outputs by name between the two.
#include "backends/faults/other_program.h"

#include <utility>

#include "backends/core/wrapped.h"
#include "program/graph/shard_plan.h"

namespace twinrun {
namespace {

class OtherEngine : public WrappedEngine {
 public:
  OtherEngine(std::unique_ptr<Engine> conforming, const Program& asked, Program fed)
      : WrappedEngine(std::move(conforming)), asked_(asked), fed_(std::move(fed)) {}

  Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
              TraceSink* sink, OpHooks* hooks) override {
    StepInputs own(inputs.size());
    for (size_t core = 0; core < inputs.size(); ++core) {
      for (const Input& input : fed_.inputs) {
        Tensor t;
        for (size_t i = 0; i < asked_.inputs.size(); ++i) {
          if (asked_.inputs[i].name == input.name) t = inputs[core][i];
        }
        if (input.name == "replica_id") t = Tensor::scalar_i32(static_cast<int32_t>(core));
        if (!t.valid()) return Error{"nothing feeds the input '" + input.name + "'", "program", ""};
        own[core].push_back(std::move(t));
      }
    }
    misfeed(fed_, own);
    StepOutputs all;
    TWINRUN_RETURN_IF_ERROR(inner_->step(step, states, own, all, sink, hooks));
    // Return the outputs in the order of the requested program.
    outputs.assign(all.size(), {});
    for (size_t core = 0; core < all.size(); ++core) {
      for (const Output& output : asked_.outputs) {
        for (size_t o = 0; o < fed_.outputs.size(); ++o) {
          if (fed_.outputs[o].name == output.name) outputs[core].push_back(all[core][o]);
        }
      }
    }
    return Ok{};
  }

 private:
  // asked_: the requested program. fed_: the executed one, with the misfeeding that is still to be
  // applied to its inputs in sharding.feeding.
  Program asked_, fed_;
};

class OtherBackend : public WrappedBackend {
 public:
  OtherBackend(std::unique_ptr<Backend> conforming, std::function<Sharding(Sharding)> change)
      : WrappedBackend(std::move(conforming)), change_(std::move(change)) {}

  Result<std::unique_ptr<Engine>> prepare(const Program& program) override {
    if (program.sharding.cores == 1 || program.recipe == nullptr) return inner_->prepare(program);
    const Sharding other = change_(program.sharding);
    if (program.sharding.feeding != Feeding{} && program.sharding.feeding != other.feeding)
      return Error{"the requested program is already fed wrongly", "with_other_program", ""};
    Program executed;
    try {
      executed = reshard(program, other);
    } catch (const GraphError& error) {
      return Error{error.what(), "with_other_program", ""};
    }
    Program fed = executed;
    if (program.sharding.feeding == other.feeding) fed.sharding.feeding = {};
    executed.sharding.feeding = program.sharding.feeding;
    return wrap<OtherEngine>(executed, program, std::move(fed));
  }

 private:
  std::function<Sharding(Sharding)> change_;
};

}  // namespace

std::unique_ptr<Backend> with_other_program(std::unique_ptr<Backend> conforming,
                                            std::function<Sharding(Sharding)> change) {
  return std::make_unique<OtherBackend>(std::move(conforming), std::move(change));
}

}  // namespace twinrun
