// Runs members of a class: forward and backward pass as the class rounds them, and the update of
// the subject's own gradients.
#include "harness/envelope/members.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "backends/core/wrapped.h"
#include "backends/exec/messages.h"
#include "backends/registry.h"
#include "backends/variants/variant.h"
#include "harness/experiment/engines.h"

namespace twinrun {
namespace {

// The gradients that a step reports: value in the graph -> name.
std::map<ValueId, std::string> shown_gradients(const Program& program) {
  std::map<ValueId, std::string> out;
  for (const Output& output : program.outputs) {
    if (!output.of_layer && exec::is_asked_for(output) && output.name.ends_with(".grad"))
      out.emplace(output.id, output.name);
  }
  return out;
}

// Every fourth member of a program with batch norm adds up in one chain and uses the closed formula
// of the gradient, as PyTorch does with channels last in memory (cuDNN and XLA use that formula,
// too). The closed formula passes on the error of the mean, which the gradient by definition
// corrects. Members that draw such a chain by themselves keep the definition. Returns the number of
// the variant that such a member is drawn from; nullopt for any other member.
std::optional<uint64_t> holds_mean(uint64_t number, const Capabilities& declared,
                                   const Program& program) {
  constexpr uint64_t kApart = 4096;
  if (declared.ours || !has_batch_norm(program) || number % 4 != 3) return std::nullopt;
  for (uint64_t drawn = number;; drawn += kApart) {
    const variants::Order order = variant_within(drawn, declared).reduction;
    if (order.segment == 0 && order.block == 0 && order.lanes == 1) return drawn;
  }
}

Program with_mean_held(const Program& step) {
  Program out = with_variance(step, Sharding::Variance::kMeanHeld);
  const bool layers = std::ranges::any_of(step.outputs, &Output::of_layer);
  return layers ? with_layers_shown(out) : out;
}

class UpdateAlone : public WrappedEngine, public OpHooks {
 public:
  UpdateAlone(std::unique_ptr<Engine> engine, const Program& asked,
              const std::vector<ProbedState>& steps)
      : WrappedEngine(std::move(engine)), steps_(steps) {
    const Program& program = inner_->program();
    const auto n = static_cast<size_t>(program.graph.size());
    shown_.assign(n, kNotShown);
    needed_.assign(n, false);
    for (const auto& [id, name] : shown_gradients(program)) {
      const auto found = std::ranges::find(asked.outputs, name, &Output::name);
      if (found != asked.outputs.end())
        shown_[static_cast<size_t>(id)] = static_cast<size_t>(found - asked.outputs.begin());
    }
    const std::vector<bool> follows = follows_from_gradients(program);
    for (size_t i = 0; i < program.state.size(); ++i) {
      if (follows[i]) needed_[static_cast<size_t>(program.state[i].next)] = true;
    }
    // Operands precede the ops that read them, so one pass backwards is enough.
    for (ValueId id = program.graph.size() - 1; id >= 0; --id) {
      if (!needed_[static_cast<size_t>(id)] || is_shown(id)) continue;
      for (const ValueId operand : program.graph.op(id).operands)
        needed_[static_cast<size_t>(operand)] = true;
    }
  }
  Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
              TraceSink* sink, OpHooks*) override {
    now_ = &*std::ranges::find(steps_, step, &ProbedState::step);
    return inner_->step(step, states, inputs, outputs, sink, this);
  }

  bool watches(const Program& program, ValueId id, int64_t) override {
    return is_shown(id) || (!needed_[static_cast<size_t>(id)] &&
                            class_of(program.graph.op(id).kind) != OpClass::kSource);
  }
  // Ops whose results the update does not read are skipped; their outputs stay as they are.
  bool replace(const OpSite& site, const std::vector<Tensor>&, Tensor& output) override {
    if (is_shown(site.id)) give(site, output);
    return true;
  }
  // Of a collective, each replica's own copy is replaced.
  void after_copy(const OpSite& site, const std::vector<Tensor>&, Tensor& copy) override {
    if (!is_shown(site.id)) return;
    copy = copy.clone();
    give(site, copy);
  }

 private:
  static constexpr size_t kNotShown = ~size_t{0};
  bool is_shown(ValueId id) const { return shown_[static_cast<size_t>(id)] != kNotShown; }
  void give(const OpSite& site, Tensor& output) const {
    const auto replica = static_cast<size_t>(std::max(0, site.replica));
    const std::span<const float> shown =
        now_->outputs[replica][shown_[static_cast<size_t>(site.id)]].as<float>();
    std::ranges::copy(shown, output.as<float>().begin());
  }

  const std::vector<ProbedState>& steps_;
  const ProbedState* now_ = nullptr;
  std::vector<size_t> shown_;  // by value: the index of the subject's output, or kNotShown
  std::vector<bool> needed_;   // by value: whether the update reads it
};

}  // namespace

std::vector<bool> follows_from_gradients(const Program& program) {
  const std::map<ValueId, std::string> shown = shown_gradients(program);
  std::vector<bool> follows;
  for (ValueId id = 0; id < program.graph.size(); ++id) {
    const Op& op = program.graph.op(id);
    const bool given = class_of(op.kind) == OpClass::kSource || shown.contains(id);
    const bool updates = op.phase == Phase::kUpdate || op.phase == Phase::kCollective;
    follows.push_back(given || (updates && std::ranges::all_of(op.operands, [&](ValueId operand) {
                                  return static_cast<bool>(follows[static_cast<size_t>(operand)]);
                                })));
  }
  std::vector<bool> out;
  for (const StateVar& var : program.state)
    out.push_back(var.next != kNoValue && follows[static_cast<size_t>(var.next)]);
  return out;
}

std::unique_ptr<Engine> update_alone(std::unique_ptr<Engine> engine, const Program& asked,
                                     const std::vector<ProbedState>& steps) {
  return std::make_unique<UpdateAlone>(std::move(engine), asked, steps);
}

Result<Observed> ConformingMembers::member(const PrecisionClass& of, uint64_t number,
                                           const Run& run) const {
  const BackendOptions options = backend_options(experiment.scenario, threads);
  const PrecisionClass whole;
  const auto held = holds_mean(number, declared, run.program);
  const uint64_t drawn = held.value_or(number);
  const auto passes = member_of(of, drawn, declared, options),
             update = member_of(whole, drawn, declared, options);
  if (!held) return observed(of, *passes, *update, number, run);
  const Program program = with_mean_held(run.program);
  return observed(
      of, *passes, *update, number,
      {program, run.states, run.experiment, run.further, run.own_update, run.map, run.history});
}

Result<Observed> ConformingMembers::exact(const PrecisionClass& of, const Run& run) const {
  BackendOptions options;
  options.threads = threads;
  TWINRUN_ASSIGN(const auto backend, make_backend("cpu:f64", options));
  // For given gradients, an update in binary32 is as good as one in binary64.
  const auto update = member_of(PrecisionClass{}, 2, declared, options);
  return observed(of, *backend, *update, 0, run);
}

Result<Observed> ConformingMembers::reference(const Run& run) const {
  BackendOptions options;
  options.threads = threads;
  TWINRUN_ASSIGN(const auto backend, make_backend("cpu", options));
  return observed(PrecisionClass{}, *backend, *backend, 0, run);
}

Result<Observed> ConformingMembers::observed(const PrecisionClass& of, Backend& passes,
                                             Backend& update, uint64_t number,
                                             const Run& run) const {
  const Experiment& feed = run.experiment != nullptr ? *run.experiment : experiment;
  const auto observe_on = [&](Engine& engine, const PrecisionClass& moved_as) {
    return observe(feed, &engine, asked, tensors, run.states, number,
                   run.further * weight_move(asked, moved_as));
  };
  // Wraps an engine so that it works on the state of the requested program.
  const bool mapped = run.map != nullptr && !run.map->is_same();
  const bool replays = mapped && run.map->hides() && run.history != nullptr;
  const auto behind = [&](std::unique_ptr<Engine> inner) -> Result<std::unique_ptr<Engine>> {
    if (!mapped) return inner;
    auto script = std::make_unique<ScriptEngine>(std::move(inner), asked, *run.map);
    if (replays) TWINRUN_RETURN_IF_ERROR(script->replay(feed, *run.history, run.states));
    return std::unique_ptr<Engine>(std::move(script));
  };
  TWINRUN_ASSIGN(auto inner, passes.prepare(run.program));
  TWINRUN_ASSIGN(const auto engine, behind(std::move(inner)));
  TWINRUN_ASSIGN(Observed out, observe_on(*engine, of));
  // A replay takes whole steps, and the subject did not report the gradients of all of them. For
  // some states its gradients are not known either.
  const bool shown = std::ranges::all_of(run.states, [&](const ProbedState& state) {
    const auto at = std::ranges::find(steps, state.step, &ProbedState::step);
    return at != steps.end() && !at->outputs.empty();
  });
  if (of.tight || !run.own_update || replays || !shown) return out;
  TWINRUN_ASSIGN(auto updating, update.prepare(run.program));
  TWINRUN_ASSIGN(updating, behind(update_alone(std::move(updating), asked, steps)));
  TWINRUN_ASSIGN(const Observed updated, observe_on(*updating, PrecisionClass{}));
  const std::vector<bool> follows = follows_from_gradients(mapped ? asked : run.program);
  for (size_t v = 0; v < out.values.size(); ++v) {
    const Compared& c = tensors[v / out.replicas % tensors.size()];
    if (c.is_state && follows[c.index]) out.values[v] = updated.values[v];
  }
  return out;
}

}  // namespace twinrun
