// Runs a program on all replicas with the binary64 values of the oracle.
#include "backends/oracle/f64_engine.h"

#include <algorithm>

#include "backends/oracle/oracle.h"
#include "backends/oracle/replica_walk.h"

namespace twinrun {
namespace {

// binary32 tensors as binary64; integers and predicates, which are exact, unchanged.
Tensor widened(const Tensor& t) {
  if (t.dtype() != DType::kF32) return t;
  Tensor out = Tensor::empty({DType::kF64, t.dims()});
  std::ranges::copy(t.as<const float>(), out.as<double>().begin());
  return out;
}

class F64Engine : public Engine {
 public:
  F64Engine(Program program, Capabilities declared, int threads)
      : program_(std::move(program)),
        declared_(std::move(declared)),
        pool_(threads),
        walk_(program_) {}

  const Program& program() const override { return program_; }

  Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
              TraceSink* sink, OpHooks* hooks) override {
    if (hooks != nullptr)
      return Error{"cpu:f64 does not support faults: it is the oracle", "cpu:f64", ""};
    const auto cores = static_cast<size_t>(program_.sharding.cores);
    std::vector<std::vector<Tensor>> values(
        cores, std::vector<Tensor>(static_cast<size_t>(program_.graph.size())));
    const auto bind = [&](ValueId id, auto&& given) {
      // Keep sharing tensors that replicas share, so that ops on them are computed once.
      for (size_t r = 0; r < cores; ++r) {
        const Tensor& own = given(r);
        Tensor& value = values[r][static_cast<size_t>(id)];
        value = r > 0 && own.raw() == given(0).raw() ? values[0][static_cast<size_t>(id)]
                                                     : widened(own);
      }
    };
    for (size_t i = 0; i < program_.state.size(); ++i)
      bind(program_.state[i].id, [&](size_t r) -> const Tensor& { return states[r].vars[i]; });
    for (size_t i = 0; i < program_.inputs.size(); ++i)
      bind(program_.inputs[i].id, [&](size_t r) -> const Tensor& { return inputs[r][i]; });
    TWINRUN_RETURN_IF_ERROR(walk_.run(
        values,
        [&](const Op& op, std::span<const Tensor> operands) -> Result<Tensor> {
          return eval_value(declared_, op, operands, &pool_);
        },
        [&](ValueId id, const auto& operands, const auto& results) {
          if (sink != nullptr) sink->on_op({step, &program_, id, operands, results});
        }));
    outputs.assign(cores, {});
    for (size_t r = 0; r < cores; ++r) {
      for (const auto& output : program_.outputs)
        outputs[r].push_back(values[r][static_cast<size_t>(output.id)]);
      for (size_t i = 0; i < program_.state.size(); ++i) {
        const StateVar& var = program_.state[i];
        if (var.next != kNoValue) states[r].vars[i] = values[r][static_cast<size_t>(var.next)];
      }
    }
    return Ok{};
  }

 private:
  Program program_;
  Capabilities declared_;
  ThreadPool pool_;
  ReplicaWalk walk_;
};

class F64Backend : public Backend {
 public:
  explicit F64Backend(int threads) : threads_(threads) {}
  Capabilities capabilities() const override {
    Capabilities c;
    c.name = "cpu:f64";
    c.settings = "binary64";
    c.max_cores = 1 << 16;
    return c;
  }
  Result<std::unique_ptr<Engine>> prepare(const Program& program) override {
    return std::unique_ptr<Engine>(std::make_unique<F64Engine>(program, capabilities(), threads_));
  }

 private:
  int threads_;
};

}  // namespace

std::unique_ptr<Backend> make_f64_backend(const BackendOptions& options) {
  return std::make_unique<F64Backend>(options.threads);
}

}  // namespace twinrun
