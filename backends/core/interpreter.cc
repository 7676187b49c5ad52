// Executes steps unit by unit, or op by op where they are traced or hooked, and manages the memory
// of values.
#include "backends/core/interpreter.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/core/share_equal.h"
#include "program/graph/liveness.h"
#include "program/ops/op_def.h"

namespace twinrun {

Tensor TensorPool::take(const TensorType& type) {
  const auto it = idle_.find(type.elements() * 8 + static_cast<int64_t>(type.dtype));
  if (it == idle_.end() || it->second.empty()) return Tensor::empty(type);
  Tensor tensor = std::move(it->second.back().tensor);
  it->second.pop_back();
  return tensor.dims() == type.dims ? std::move(tensor) : tensor.reshaped(type.dims);
}

void TensorPool::give(Tensor&& tensor) {
  const Tensor held = std::move(tensor);
  tensor = Tensor();
  // Results are 64-byte aligned; a caller's tensor may not be.
  if (!held.valid() || held.owners() != 1 || reinterpret_cast<uintptr_t>(held.raw()) % 64 != 0)
    return;
  idle_[held.elements() * 8 + static_cast<int64_t>(held.dtype())].push_back({held, steps_});
}

void TensorPool::end_step() {
  ++steps_;
  for (auto& [size, list] : idle_)
    std::erase_if(list, [&](const Idle& i) { return i.since + 2 < steps_; });
}

Interpreter::Interpreter(Program program, Arithmetic arithmetic, const BackendOptions& options)
    : program_(std::move(program)),
      arithmetic_(arithmetic),
      poison_memory_(options.poison_memory),
      own_pool_(options.pool == nullptr ? std::make_unique<ThreadPool>(options.threads) : nullptr),
      pool_(options.pool == nullptr ? *own_pool_ : *options.pool),
      dead_(dead_values(program_)),
      varies_(varying_values(program_)) {
  const Graph& graph = program_.graph;
  const auto n = static_cast<size_t>(graph.size());
  const std::vector<ValueId> last_use = last_uses(program_);
  dies_.resize(n);
  constant_ = constant_values(program_);
  constants_.resize(n);
  small_.assign(n, false);
  // A multiple of the threads, so that none of them waits for the others.
  const auto threads = static_cast<size_t>(pool_.threads());
  block_size_ = (kCoresTogether + threads - 1) / threads * threads;
  const auto together =
      std::min(static_cast<double>(program_.sharding.cores), static_cast<double>(block_size_));
  for (ValueId id = 0; id < graph.size(); ++id) {
    const Op& op = graph.op(id);
    const auto i = static_cast<size_t>(id);
    if (last_use[i] < graph.size()) dies_[static_cast<size_t>(last_use[i])].push_back(id);
    double work = static_cast<double>(op.type.elements()) + flops(graph, id) / 16;
    for (ValueId operand : op.operands) work += static_cast<double>(graph.type(operand).elements());
    small_[i] = work * together < 1 << 15;
  }
  plan_ = plan_fusion(program_, constant_);
  memory_plan_ = plan_memory(program_, plan_, constant_);
  for (const FusionGroup& group : plan_.groups) {
    std::vector<bool> over;
    for (ValueId id : group.stored)
      over.push_back(memory_plan_.takes[static_cast<size_t>(id)] != kNoValue);
    kernels_.emplace_back(graph, group, arithmetic_.flush, over);
  }
  unit_dies_.resize(plan_.order.size());
  for (ValueId id = 0; id < graph.size(); ++id) {
    const int last = plan_.last_use[static_cast<size_t>(id)];
    if (memory_plan_.offset[static_cast<size_t>(id)] >= 0) continue;
    if (last >= 0 && last < static_cast<int>(plan_.order.size()))
      unit_dies_[static_cast<size_t>(last)].push_back(id);
  }
  values_.assign(static_cast<size_t>(program_.sharding.cores), std::vector<Tensor>(n));
  mine_ = {0, values_.size()};
  if (options.ranks != nullptr && options.ranks->ranks() > 1 && values_.size() > 1) {
    split_.emplace(*options.ranks, program_.sharding.cores);
    mine_ = split_->mine();
    shared_.assign(n, false);
  }
  block_ = mine_;
}

Tensor Interpreter::fresh(const TensorType& type) {
  Tensor t = memory_.take(type);
  if (poison_memory_) std::memset(t.raw(), 0xFF, t.bytes());
  return t;
}

// The memory that a result is written to: its planned place in the arena, or a tensor of its own.
Tensor Interpreter::place(size_t replica, ValueId id) {
  const int64_t offset = memory_plan_.offset[static_cast<size_t>(id)];
  if (!in_arena_ || offset < 0) return fresh(program_.graph.type(id));
  const Tensor& arena = memory_plan_.carried[static_cast<size_t>(id)]
                            ? carried_[replica - mine_.first]
                            : arenas_[replica - block_.first];
  Tensor t = arena.at(static_cast<size_t>(offset), program_.graph.type(id));
  if (poison_memory_ && memory_plan_.takes[static_cast<size_t>(id)] == kNoValue)
    std::memset(t.raw(), 0xFF, t.bytes());
  return t;
}

Status Interpreter::check(const States& states, const StepInputs& inputs) const {
  const size_t cores = values_.size();
  if (states.size() != cores || inputs.size() != cores) {
    return Error{"the program has " + std::to_string(cores) + " replicas, got state for " +
                     std::to_string(states.size()) + " and inputs for " +
                     std::to_string(inputs.size()),
                 "engine step", ""};
  }
  const auto fits = [&](ValueId id, const Tensor& value, const std::string& name) -> Status {
    if (value.valid() && value.type() == program_.graph.type(id)) return Ok{};
    return Error{"expected " + to_string(program_.graph.type(id)) + ", got " +
                     (value.valid() ? to_string(value.type()) : "nothing"),
                 name, ""};
  };
  for (size_t r = 0; r < cores; ++r) {
    if (states[r].vars.size() != program_.state.size() ||
        inputs[r].size() != program_.inputs.size()) {
      return Error{"state or inputs of another program", "engine step", ""};
    }
    for (size_t i = 0; i < program_.state.size(); ++i) {
      TWINRUN_RETURN_IF_ERROR(
          fits(program_.state[i].id, states[r].vars[i], program_.state[i].name));
    }
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      TWINRUN_RETURN_IF_ERROR(fits(program_.inputs[i].id, inputs[r][i], program_.inputs[i].name));
    }
  }
  return Ok{};
}

// A state variable that the step replaces is moved in, not copied: without another owner, its
// memory can be written in place.
void Interpreter::bind(States& states, const StepInputs& inputs) {
  if (split_) {
    const auto note = [&](ValueId id, const std::function<const Tensor&(size_t)>& of) {
      shared_[static_cast<size_t>(id)] = true;
      for (size_t r = 1; r < values_.size(); ++r) {
        if (of(r).raw() != of(0).raw()) shared_[static_cast<size_t>(id)] = false;
      }
    };
    for (size_t i = 0; i < program_.state.size(); ++i)
      note(program_.state[i].id, [&](size_t r) -> const Tensor& { return states[r].vars[i]; });
    for (size_t i = 0; i < program_.inputs.size(); ++i)
      note(program_.inputs[i].id, [&](size_t r) -> const Tensor& { return inputs[r][i]; });
  }
  for (size_t r = 0; r < values_.size(); ++r) {
    const bool known = whole_ || (r >= mine_.first && r < mine_.last);
    for (size_t i = 0; i < program_.state.size(); ++i) {
      const StateVar& var = program_.state[i];
      Tensor& given = states[r].vars[i];
      Tensor taken = var.next == kNoValue ? given : std::exchange(given, {});
      if (known) values_[r][static_cast<size_t>(var.id)] = std::move(taken);
    }
    for (size_t i = 0; known && i < program_.inputs.size(); ++i) {
      values_[r][static_cast<size_t>(program_.inputs[i].id)] = inputs[r][i];
    }
  }
}

void Interpreter::run_replica(OpRun& run, int replica) {
  const Op& op = program_.graph.op(run.id);
  const auto r = static_cast<size_t>(replica);
  const KernelContext context{&pool_, arithmetic_};
  Tensor& output = run.outputs[r];
  if (run.hooks == nullptr) {
    run_kernel(context, op, run.inputs[r], output);
    return;
  }
  const OpCompute compute = [&](const std::vector<Tensor>& in, Tensor& out) {
    run_kernel(context, op, in, out);
  };
  const OpSite site{run.step, replica, &program_, run.id, &compute};
  std::vector<Tensor> inputs = run.inputs[r];
  run.hooks->before(site, inputs);
  if (!run.hooks->replace(site, inputs, output)) run_kernel(context, op, inputs, output);
  run.hooks->after(site, inputs, output);
}

void Interpreter::run_collective(OpRun& run) {
  std::vector<Tensor> contributions;
  const ValueId operand = program_.graph.op(run.id).operands[0];
  if (whole_ || !shared_[static_cast<size_t>(operand)]) {
    for (const auto& in : run.inputs) contributions.push_back(in.empty() ? Tensor() : in[0]);
  } else {
    contributions.assign(run.inputs.size(), run.inputs[mine_.first][0]);
  }
  if (split_) shared_[static_cast<size_t>(run.id)] = true;
  // The ring across ranks needs this rank's contributions only; hooks see those of all replicas.
  if (!whole_ && !shared_[static_cast<size_t>(operand)]) {
    if (run.hooks == nullptr) {
      Tensor output = place(mine_.first, run.id);
      const std::span<const Tensor> here(contributions.data() + mine_.first, mine_.size());
      split_->all_reduce_sum({&pool_, arithmetic_}, here, output);
      run.outputs.assign(run.inputs.size(), output);
      return;
    }
    split_->gather({&program_.graph.type(operand), 1},
                   [&](size_t r, size_t) -> Tensor& { return contributions[r]; });
  }
  const OpCompute compute = [&](const std::vector<Tensor>& in, Tensor& out) {
    all_reduce_sum({&pool_, arithmetic_}, in, out);
  };
  OpSite site{run.step, -1, &program_, run.id, &compute};
  Tensor output = place(mine_.first, run.id);
  if (run.hooks != nullptr) run.hooks->before(site, contributions);
  if (run.hooks == nullptr || !run.hooks->replace(site, contributions, output))
    compute(contributions, output);
  if (run.hooks != nullptr) run.hooks->after(site, contributions, output);
  run.outputs.assign(run.inputs.size(), output);
  // Every rank knows all contributions, and therefore the copies of all replicas.
  for (size_t r = 0; run.hooks != nullptr && r < run.outputs.size(); ++r) {
    site.replica = static_cast<int>(r);
    run.hooks->after_copy(site, contributions, run.outputs[r]);
    if (split_ && run.outputs[r].raw() != run.outputs[0].raw())
      shared_[static_cast<size_t>(run.id)] = false;
  }
}

CoreBlock Interpreter::known() const {
  return split_ && whole_ ? CoreBlock{0, values_.size()} : block_;
}

// Replicas that read the same objects have the same result and are one job, unless they are to be
// kept `apart`. Each is compared with the one before it and with the first one: if a single replica
// differs, those behind it are still one job with those before it. All ranks that know the same
// replicas find the same jobs.
void Interpreter::find_jobs(std::span<const ValueId> operands, bool apart) {
  jobs_.clear();
  job_sizes_.clear();
  const auto [from, to] = known();
  job_of_.resize(to);
  for (size_t r = from; r < to; ++r) {
    const auto reads_as = [&, from = from](size_t other) {
      return r != from && !apart && std::ranges::all_of(operands, [&](ValueId id) {
               const auto i = static_cast<size_t>(id);
               return values_[r][i].raw() == values_[other][i].raw();
             });
    };
    job_of_[r] = reads_as(r - 1) ? job_of_[r - 1] : reads_as(from) ? 0 : jobs_.size();
    if (job_of_[r] == jobs_.size()) {
      jobs_.push_back(kElsewhere);
      job_sizes_.push_back(0);
    }
    ++job_sizes_[job_of_[r]];
  }
  computed_.clear();
  for (size_t r = block_.first; r < block_.last; ++r) {
    size_t& computes = jobs_[job_of_[r]];
    if (computes != kElsewhere) continue;
    computes = r;
    computed_.push_back(r);
  }
}

// Gives each replica the result of its job, where that is known.
void Interpreter::share_results(const std::function<Tensor&(size_t replica)>& result) {
  const auto [from, to] = known();
  for (size_t r = from; r < to; ++r) {
    const size_t computes = jobs_[job_of_[r]];
    if (computes != r && computes != kElsewhere) result(r) = result(computes);
  }
}

// Gets the other ranks' results of jobs. Afterwards replicas share results as in one process.
void Interpreter::gather_jobs(std::span<const TensorType> types,
                              const std::function<Tensor&(size_t replica, size_t i)>& result) {
  if (jobs_.size() == 1) return;
  split_->gather(types, result);
  std::ranges::fill(jobs_, kElsewhere);
  for (size_t r = 0; r < values_.size(); ++r) {
    size_t& first = jobs_[job_of_[r]];
    if (first == kElsewhere) first = r;
    for (size_t i = 0; first != r && i < types.size(); ++i) result(r, i) = result(first, i);
  }
}

void Interpreter::run_op(OpRun& run) {
  const Op& op = program_.graph.op(run.id);
  run.inputs.resize(values_.size());
  run.outputs.resize(values_.size());
  run.whole = true;
  const auto [from, to] = known();
  for (size_t r = from; r < to; ++r) {
    run.inputs[r].clear();
    for (ValueId operand : op.operands)
      run.inputs[r].push_back(values_[r][static_cast<size_t>(operand)]);
  }
  if (op.kind == OpKind::kAllReduce) return run_collective(run);
  Tensor& cached = constants_[static_cast<size_t>(run.id)];
  bool constant = constant_[static_cast<size_t>(run.id)] && run.hooks == nullptr;
  // A constant op is computed again if a hook has given one of its operands another value.
  for (size_t i = 0; constant && i < op.operands.size(); ++i) {
    const auto* kept = constants_[static_cast<size_t>(op.operands[i])].raw();
    for (size_t r = from; r < to; ++r) constant = constant && run.inputs[r][i].raw() == kept;
  }
  if (split_) {
    const auto shared = [&](ValueId operand) { return shared_[static_cast<size_t>(operand)]; };
    shared_[static_cast<size_t>(run.id)] =
        run.hooks == nullptr && std::ranges::all_of(op.operands, shared);
  }
  if (constant && cached.valid()) {
    for (size_t r = from; r < to; ++r) run.outputs[r] = cached;
    return;
  }
  // Nothing to compute: the result is the operand's memory under another shape.
  if (op.kind == OpKind::kReshape && run.hooks == nullptr) {
    for (size_t r = from; r < to; ++r) run.outputs[r] = run.inputs[r][0].reshaped(op.type.dims);
    if (constant) cached = run.outputs[from];
    return;
  }
  find_jobs(op.operands, run.hooks != nullptr);
  for (size_t r : computed_) run.outputs[r] = place(r, run.id);
  if (computed_.size() == 1 || small_[static_cast<size_t>(run.id)]) {
    for (size_t r : computed_) run_replica(run, static_cast<int>(r));
  } else {
    pool_.parallel_for(static_cast<int64_t>(computed_.size()), [&](int64_t i) {
      run_replica(run, static_cast<int>(computed_[static_cast<size_t>(i)]));
    });
  }
  share_results([&](size_t r) -> Tensor& { return run.outputs[r]; });
  run.whole = jobs_.size() == 1;
  if (constant) cached = run.outputs[from];
}

void Interpreter::store(OpRun& run) {
  const auto [from, to] = known();
  for (size_t r = from; r < to; ++r) {
    values_[r][static_cast<size_t>(run.id)] = std::exchange(run.outputs[r], {});
    run.inputs[r].clear();  // so that dying values have no other owner
  }
  if (split_) run.outputs.clear();
}

// Gets the other ranks' results of an op, in a step that knows the values of all replicas.
void Interpreter::complete(OpRun& run) {
  if (!split_ || !whole_ || run.whole) return;
  gather_jobs({&program_.graph.type(run.id), 1},
              [&](size_t r, size_t) -> Tensor& { return run.outputs[r]; });
}

// Gets the other ranks' outputs and next states at the end of a step that did not know them.
void Interpreter::complete_results() {
  std::vector<ValueId> ids;
  for (const auto& output : program_.outputs) ids.push_back(output.id);
  for (const StateVar& var : program_.state) {
    if (var.next != kNoValue) ids.push_back(var.next);
  }
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  std::vector<ValueId> differing;
  std::vector<TensorType> types;
  for (ValueId id : ids) {
    const auto i = static_cast<size_t>(id);
    if (!shared_[i]) {
      differing.push_back(id);
      types.push_back(program_.graph.type(id));
      continue;
    }
    for (auto& values : values_) values[i] = values_[mine_.first][i];
  }
  split_->gather(types, [&](size_t r, size_t i) -> Tensor& {
    return values_[r][static_cast<size_t>(differing[i])];
  });
}

// Whether the replicas of this one's job hold the only references to its value and it is 64-byte aligned, so
// that it can be overwritten.
bool Interpreter::held_by_us(ValueId id, size_t replica) const {
  const Tensor& value = values_[replica][static_cast<size_t>(id)];
  return value.owners() == static_cast<long>(job_sizes_[job_of_[replica]]) &&
         reinterpret_cast<uintptr_t>(value.raw()) % 64 == 0;
}

void Interpreter::run_group(int64_t step, size_t index, GroupSink* sink) {
  const FusionGroup& group = plan_.groups[index];
  if (split_) {
    const bool shared = std::ranges::all_of(
        group.sources, [&](ValueId id) { return shared_[static_cast<size_t>(id)]; });
    for (ValueId id : group.stored) shared_[static_cast<size_t>(id)] = shared;
  }
  find_jobs(group.sources, false);
  sources_.clear();
  for (size_t r : computed_) {
    for (ValueId id : group.sources) sources_.push_back(values_[r][static_cast<size_t>(id)].raw());
  }
  stored_.clear();
  for (size_t r : computed_) {
    for (ValueId id : group.stored) {
      const auto i = static_cast<size_t>(id);
      const ValueId source = memory_plan_.takes[i];
      const bool in_place =
          in_place_ && memory_plan_.offset[i] < 0 && source != kNoValue && held_by_us(source, r);
      values_[r][i] = in_place ? values_[r][static_cast<size_t>(source)] : place(r, id);
      stored_.push_back(values_[r][i].raw());
    }
  }
  kernels_[index].run({&pool_, arithmetic_}, static_cast<int64_t>(computed_.size()), sources_,
                      stored_);
  for (ValueId id : group.stored)
    share_results([&](size_t r) -> Tensor& { return values_[r][static_cast<size_t>(id)]; });
  if (sink == nullptr) return;
  if (split_) {
    std::vector<TensorType> types;
    for (ValueId id : group.stored) types.push_back(program_.graph.type(id));
    gather_jobs(types, [&](size_t r, size_t i) -> Tensor& {
      return values_[r][static_cast<size_t>(group.stored[i])];
    });
  }
  const size_t shown = jobs_.size() == 1 ? 1 : values_.size();
  Values inputs(shown), outputs(shown);
  for (size_t r = 0; r < shown; ++r) {
    for (ValueId id : group.sources) inputs[r].push_back(values_[r][static_cast<size_t>(id)]);
    for (ValueId id : group.stored) outputs[r].push_back(values_[r][static_cast<size_t>(id)]);
  }
  sink->on_group({step, &program_, &group, inputs, outputs});
}

void Interpreter::release(const std::vector<ValueId>& dead) {
  for (ValueId id : dead) {
    for (auto& values : values_) memory_.give(std::move(values[static_cast<size_t>(id)]));
  }
}

bool Interpreter::find_watched(int64_t step, OpHooks* hooks) {
  watched_.assign(static_cast<size_t>(program_.graph.size()), false);
  bool any = false;
  for (ValueId id = 0; hooks != nullptr && id < program_.graph.size(); ++id) {
    if (program_.graph.op(id).kind == OpKind::kParameter || dead_[static_cast<size_t>(id)])
      continue;
    if (!hooks->watches(program_, id, step)) continue;
    watched_[static_cast<size_t>(id)] = any = true;
  }
  return any;
}

void Interpreter::step_by_ops(int64_t step, TraceSink* sink, OpHooks* hooks) {
  for (ValueId id = 0; id < program_.graph.size(); ++id) {
    if (program_.graph.op(id).kind == OpKind::kParameter || dead_[static_cast<size_t>(id)])
      continue;
    OpRun run{step, id, watched_[static_cast<size_t>(id)] ? hooks : nullptr};
    run_op(run);
    complete(run);
    if (sink != nullptr) sink->on_op({step, &program_, id, run.inputs, run.outputs});
    store(run);
    release(dies_[static_cast<size_t>(id)]);
  }
}

// The sink that accepts this program's groups, or nullptr.
GroupSink* Interpreter::group_sink(TraceSink* sink) {
  if (sink == nullptr) return nullptr;
  if (shown_dies_.empty()) {
    shown_dies_.resize(plan_.order.size());
    for (ValueId id = 0; id < program_.graph.size(); ++id) {
      const int last = plan_.last_use[static_cast<size_t>(id)];
      if (last >= 0 && last < static_cast<int>(plan_.order.size()))
        shown_dies_[static_cast<size_t>(last)].push_back(id);
    }
  }
  return sink->groups(program_, plan_.groups);
}

void Interpreter::step_by_units(int64_t step, GroupSink* sink) {
  OpRun run;
  run.step = step;
  const size_t units = plan_.order.size();
  if (sink != nullptr) {
    for (size_t i = 0; i < units; ++i) {
      run_unit(run, i, sink);
      sink->on_release(shown_dies_[i]);
      release(shown_dies_[i]);
    }
    return;
  }
  begin_arenas();
  for (size_t i = 0, next = 0; i < units; i = next) {
    while (next < units && memory_plan_.section[next] == memory_plan_.section[i]) ++next;
    run_section(run, i, next);
  }
  in_arena_ = in_place_ = false;
}

// Hands out the outputs and next states, and returns all other memory of the step to the pool.
void Interpreter::collect(States& states, StepOutputs& outputs) {
  const size_t cores = values_.size();
  if (!whole_) complete_results();
  outputs.assign(cores, {});
  Values next(cores);
  for (size_t r = 0; r < cores; ++r) {
    for (const auto& output : program_.outputs)
      outputs[r].push_back(values_[r][static_cast<size_t>(output.id)]);
    for (const StateVar& var : program_.state) {
      next[r].push_back(var.next == kNoValue ? Tensor()
                                             : values_[r][static_cast<size_t>(var.next)]);
    }
  }
  for (auto& values : values_) {
    for (Tensor& value : values) memory_.give(std::move(value));
  }
  for (size_t r = 0; r < cores; ++r) {
    for (size_t i = 0; i < program_.state.size(); ++i) {
      if (next[r][i].valid()) states[r].vars[i] = std::move(next[r][i]);
    }
  }
  share_equal(states);
  memory_.end_step();
}

Status Interpreter::step(int64_t step, States& states, const StepInputs& inputs,
                         StepOutputs& outputs, TraceSink* sink, OpHooks* hooks) {
  TWINRUN_RETURN_IF_ERROR(check(states, inputs));
  whole_ = !split_ || sink != nullptr;
  const bool watched = find_watched(step, hooks);
  GroupSink* const groups = watched ? nullptr : group_sink(sink);
  States before;  // for the case that the step has to run again
  if (groups != nullptr) before = states;
  bind(states, inputs);
  for (auto& replica : outputs) {
    for (Tensor& old : replica)
      // Outputs of the previous step: their memory is reused in this one.
      memory_.give(std::move(old));
  }
  if (groups == nullptr && (watched || sink != nullptr)) {
    step_by_ops(step, sink, hooks);
  } else {
    step_by_units(step, groups);
    if (groups != nullptr && !groups->holds()) {
      for (auto& values : values_) {
        for (Tensor& value : values) memory_.give(std::move(value));
      }
      states = std::move(before);
      bind(states, inputs);
      step_by_ops(step, sink, hooks);
    }
  }
  before.clear();
  collect(states, outputs);
  return Ok{};
}

}  // namespace twinrun
