// Runs a program on all replicas with the binary64 values of the oracle.
#include "backends/oracle/f64_engine.h"

#include <algorithm>
#include <map>

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

// The values that a program's step starts from.
ReplicaWalk::Values given_values(const Program& program, const States& states,
                                 const StepInputs& inputs,
                                 std::map<const std::byte*, Tensor>& wide) {
  const auto cores = static_cast<size_t>(program.sharding.cores);
  ReplicaWalk::Values values(cores, std::vector<Tensor>(static_cast<size_t>(program.graph.size())));
  // Keep sharing tensors that replicas and programs share, so that ops on them are computed once.
  const auto bind = [&](ValueId id, size_t r, const Tensor& own) {
    Tensor& known = wide[own.raw()];
    if (!known.valid() || known.dims() != own.dims()) known = widened(own);
    values[r][static_cast<size_t>(id)] = known;
  };
  for (size_t r = 0; r < cores; ++r) {
    for (size_t i = 0; i < program.state.size(); ++i)
      bind(program.state[i].id, r, states[r].vars[i]);
    for (size_t i = 0; i < program.inputs.size(); ++i) bind(program.inputs[i].id, r, inputs[r][i]);
  }
  return values;
}

void take_results(const Program& program, const ReplicaWalk::Values& values, States& states,
                  StepOutputs& outputs) {
  outputs.assign(values.size(), {});
  for (size_t r = 0; r < values.size(); ++r) {
    for (const auto& output : program.outputs)
      outputs[r].push_back(values[r][static_cast<size_t>(output.id)]);
    for (size_t i = 0; i < program.state.size(); ++i) {
      const StateVar& var = program.state[i];
      if (var.next != kNoValue) states[r].vars[i] = values[r][static_cast<size_t>(var.next)];
    }
  }
}

Capabilities declared_f64() {
  Capabilities c;
  c.name = "cpu:f64";
  c.settings = "binary64";
  c.max_cores = 1 << 16;
  return c;
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
    std::map<const std::byte*, Tensor> wide;
    ReplicaWalk::Values values = given_values(program_, states, inputs, wide);
    wide.clear();
    TWINRUN_RETURN_IF_ERROR(walk_.run(
        values,
        [&](const Op& op, std::span<const Tensor> operands) -> Result<Tensor> {
          return eval_value(declared_, op, operands, &pool_);
        },
        [&](ValueId id, const auto& operands, const auto& results) {
          if (sink != nullptr) sink->on_op({step, &program_, id, operands, results});
        }));
    take_results(program_, values, states, outputs);
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
  Capabilities capabilities() const override { return declared_f64(); }
  Result<std::unique_ptr<Engine>> prepare(const Program& program) override {
    return std::unique_ptr<Engine>(std::make_unique<F64Engine>(program, capabilities(), threads_));
  }

 private:
  int threads_;
};

}  // namespace

Status f64_steps(std::span<const Program* const> programs, std::span<States> states,
                 std::span<const StepInputs> inputs, std::span<StepOutputs> outputs, int threads) {
  const Capabilities declared = declared_f64();
  ThreadPool pool(threads);
  std::map<const std::byte*, Tensor> wide;
  std::vector<ReplicaWalk::Values> values;
  for (size_t p = 0; p < programs.size(); ++p)
    values.push_back(given_values(*programs[p], states[p], inputs[p], wide));
  wide.clear();
  TWINRUN_RETURN_IF_ERROR(walk_together(
      programs, values,
      [&](const Op& op, std::span<const Tensor> operands) -> Result<Tensor> {
        return eval_value(declared, op, operands, &pool);
      },
      [](size_t, ValueId, const auto&, const auto&) {}));
  for (size_t p = 0; p < programs.size(); ++p)
    take_results(*programs[p], values[p], states[p], outputs[p]);
  return Ok{};
}

std::unique_ptr<Backend> make_f64_backend(const BackendOptions& options) {
  return std::make_unique<F64Backend>(options.threads);
}

}  // namespace twinrun
