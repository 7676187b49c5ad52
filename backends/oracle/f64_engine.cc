#include "backends/oracle/f64_engine.h"

#include <algorithm>

#include "backends/oracle.h"
#include "program/analysis/liveness.h"

namespace twinrun {
namespace {

// Floats widened; what is exact (integers, predicates) as it is.
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
        last_use_(last_uses(program_)),
        dead_(dead_values(program_)) {}

  const Program& program() const override { return program_; }

  Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
              TraceSink* sink, OpHooks* hooks) override {
    if (hooks != nullptr) return Error{"cpu:f64 takes no faults: it is the oracle", "cpu:f64", ""};
    const auto cores = static_cast<size_t>(program_.sharding.cores);
    std::vector<std::vector<Tensor>> values(
        cores, std::vector<Tensor>(static_cast<size_t>(program_.graph.size())));
    const auto bind = [&](ValueId id, auto&& given) {
      // What replicas share stays shared.
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
    for (ValueId id = 0; id < program_.graph.size(); ++id) run_op(step, id, values, sink);
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
  void run_op(int64_t step, ValueId id, std::vector<std::vector<Tensor>>& values, TraceSink* sink) {
    const Op& op = program_.graph.op(id);
    if (op.kind == OpKind::kParameter || dead_[static_cast<size_t>(id)]) return;
    std::vector<std::vector<Tensor>> inputs(values.size());
    std::vector<Tensor> outputs(values.size()), contributions;
    for (size_t r = 0; r < values.size(); ++r) {
      for (ValueId operand : op.operands)
        inputs[r].push_back(values[r][static_cast<size_t>(operand)]);
      if (op.kind == OpKind::kAllReduce) contributions.push_back(inputs[r][0]);
    }
    for (size_t r = 0; r < values.size(); ++r) {
      bool same = r > 0;
      for (size_t i = 0; same && i < inputs[r].size(); ++i)
        same = inputs[r][i].raw() == inputs[0][i].raw();
      if (r > 0 && (same || op.kind == OpKind::kAllReduce)) {
        outputs[r] = outputs[0];
      } else {
        outputs[r] =
            eval_value(declared_, op, contributions.empty() ? inputs[r] : contributions, &pool_);
      }
    }
    if (sink != nullptr) sink->on_op({step, &program_, id, inputs, outputs});
    for (size_t r = 0; r < values.size(); ++r) {
      values[r][static_cast<size_t>(id)] = outputs[r];
      for (ValueId operand : op.operands) {
        if (last_use_[static_cast<size_t>(operand)] == id)
          values[r][static_cast<size_t>(operand)] = Tensor();
      }
    }
  }

  Program program_;
  Capabilities declared_;
  ThreadPool pool_;
  std::vector<ValueId> last_use_;
  std::vector<bool> dead_;
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
