#include "backends/interpreter.h"

#include <cstring>

#include "program/analysis/liveness.h"

namespace twinrun {

struct Interpreter::OpRun {
  int64_t step;
  ValueId id;
  OpHooks* hooks;  // nullptr unless they watch this op
  std::vector<std::vector<Tensor>> inputs;
  std::vector<Tensor> outputs;
};

Interpreter::Interpreter(Program program, Arithmetic arithmetic, const BackendOptions& options)
    : program_(std::move(program)),
      arithmetic_(arithmetic),
      poison_memory_(options.poison_memory),
      pool_(options.threads),
      last_use_(last_uses(program_)) {
  const auto n = static_cast<size_t>(program_.graph.size());
  dies_.resize(n);
  constant_.assign(n, false);
  constants_.resize(n);
  for (ValueId id = 0; id < program_.graph.size(); ++id) {
    const Op& op = program_.graph.op(id);
    const auto i = static_cast<size_t>(id);
    if (last_use_[i] < program_.graph.size()) dies_[static_cast<size_t>(last_use_[i])].push_back(id);
    if (op.kind == OpKind::kParameter || op.kind == OpKind::kRngUniform || op.kind == OpKind::kAllReduce) continue;
    constant_[i] = true;
    for (ValueId operand : op.operands) constant_[i] = constant_[i] && constant_[static_cast<size_t>(operand)];
  }
}

Tensor Interpreter::fresh(const TensorType& type) const {
  Tensor t = Tensor::empty(type);
  if (poison_memory_) std::memset(t.raw(), 0xFF, t.bytes());
  return t;
}

Status Interpreter::bind(const States& states, const StepInputs& inputs) {
  const auto cores = static_cast<size_t>(program_.sharding.cores);
  if (states.size() != cores || inputs.size() != cores) {
    return Error{"the program has " + std::to_string(cores) + " replicas, got state for " +
                     std::to_string(states.size()) + " and inputs for " + std::to_string(inputs.size()),
                 "engine step", ""};
  }
  values_.assign(cores, std::vector<Tensor>(static_cast<size_t>(program_.graph.size())));
  const auto put = [&](size_t replica, ValueId id, const Tensor& value, const std::string& name) -> Status {
    if (!value.valid() || value.type() != program_.graph.type(id)) {
      return Error{"expected " + to_string(program_.graph.type(id)) + ", got " +
                       (value.valid() ? to_string(value.type()) : "nothing"),
                   name, ""};
    }
    values_[replica][static_cast<size_t>(id)] = value;
    return Ok{};
  };
  for (size_t r = 0; r < cores; ++r) {
    if (states[r].vars.size() != program_.state.size() || inputs[r].size() != program_.inputs.size()) {
      return Error{"state or inputs of another program", "engine step", ""};
    }
    for (size_t i = 0; i < program_.state.size(); ++i) {
      TWINRUN_RETURN_IF_ERROR(put(r, program_.state[i].id, states[r].vars[i], program_.state[i].name));
    }
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      TWINRUN_RETURN_IF_ERROR(put(r, program_.inputs[i].id, inputs[r][i], program_.inputs[i].name));
    }
  }
  return Ok{};
}

void Interpreter::run_replica(OpRun& run, int replica) {
  const Op& op = program_.graph.op(run.id);
  const auto r = static_cast<size_t>(replica);
  const KernelContext context{&pool_, arithmetic_};
  Tensor output = fresh(op.type);
  if (run.hooks == nullptr) {
    run_kernel(context, op, run.inputs[r], output);
  } else {
    const OpSite site{run.step, replica, &program_, run.id};
    std::vector<Tensor> inputs = run.inputs[r];
    run.hooks->before(site, inputs);
    if (!run.hooks->replace(site, inputs, output)) run_kernel(context, op, inputs, output);
    run.hooks->after(site, inputs, output);
  }
  run.outputs[r] = std::move(output);
}

void Interpreter::run_collective(OpRun& run) {
  const Op& op = program_.graph.op(run.id);
  std::vector<Tensor> contributions;
  for (const auto& in : run.inputs) contributions.push_back(in[0]);
  const OpSite site{run.step, -1, &program_, run.id};
  Tensor output = fresh(op.type);
  if (run.hooks != nullptr) run.hooks->before(site, contributions);
  if (run.hooks == nullptr || !run.hooks->replace(site, contributions, output)) {
    all_reduce_sum({&pool_, arithmetic_}, contributions, output);
  }
  if (run.hooks != nullptr) run.hooks->after(site, contributions, output);
  run.outputs.assign(run.inputs.size(), output);
}

void Interpreter::run_op(OpRun& run) {
  const Op& op = program_.graph.op(run.id);
  const size_t cores = values_.size();
  run.inputs.assign(cores, {});
  run.outputs.assign(cores, {});
  bool uniform = true;
  for (size_t r = 0; r < cores; ++r) {
    for (ValueId operand : op.operands) {
      run.inputs[r].push_back(values_[r][static_cast<size_t>(operand)]);
      uniform = uniform && run.inputs[r].back().raw() == run.inputs[0][run.inputs[r].size() - 1].raw();
    }
  }
  if (op.kind == OpKind::kAllReduce) {
    run_collective(run);
  } else if (constant_[static_cast<size_t>(run.id)] && run.hooks == nullptr) {
    Tensor& cached = constants_[static_cast<size_t>(run.id)];
    if (!cached.valid()) {
      run_replica(run, 0);
      cached = run.outputs[0];
    }
    run.outputs.assign(cores, cached);
  } else if (uniform && run.hooks == nullptr) {
    run_replica(run, 0);
    run.outputs.assign(cores, run.outputs[0]);
  } else if (cores == 1) {
    run_replica(run, 0);
  } else {
    pool_.parallel_for(static_cast<int64_t>(cores), [&](int64_t r) { run_replica(run, static_cast<int>(r)); });
  }
}

void Interpreter::release(ValueId at) {
  for (ValueId id : dies_[static_cast<size_t>(at)]) {
    for (auto& values : values_) values[static_cast<size_t>(id)] = Tensor();
  }
}

Status Interpreter::step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
                         TraceSink* sink, OpHooks* hooks) {
  TWINRUN_RETURN_IF_ERROR(bind(states, inputs));
  for (ValueId id = 0; id < program_.graph.size(); ++id) {
    const Op& op = program_.graph.op(id);
    if (op.kind == OpKind::kParameter) continue;
    OpRun run{step, id, hooks != nullptr && hooks->watches(program_, id, step) ? hooks : nullptr, {}, {}};
    run_op(run);
    if (sink != nullptr) sink->on_op({step, &program_, id, run.inputs, run.outputs});
    for (size_t r = 0; r < values_.size(); ++r) values_[r][static_cast<size_t>(id)] = std::move(run.outputs[r]);
    release(id);
  }
  outputs.assign(values_.size(), {});
  for (size_t r = 0; r < values_.size(); ++r) {
    for (const auto& output : program_.outputs) outputs[r].push_back(values_[r][static_cast<size_t>(output.id)]);
    for (size_t i = 0; i < program_.state.size(); ++i) {
      const ValueId next = program_.state[i].next;
      if (next != kNoValue) states[r].vars[i] = values_[r][static_cast<size_t>(next)];
    }
  }
  values_.clear();
  return Ok{};
}

}  // namespace twinrun
