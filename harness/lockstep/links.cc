// Checks, bit for bit, that ops read what was written, fed or held, and that replicas agree.
#include "harness/lockstep/links.h"

#include <fmt/format.h>

#include <algorithm>

#include "program/graph/liveness.h"

namespace twinrun {
namespace {

bool same_state(const ReplicaState& a, const ReplicaState& b) {
  return std::ranges::equal(a.vars, b.vars, &Tensor::same_bits);
}

}  // namespace

std::string layer_of(const std::string& op) {
  const size_t slash = op.find('/');
  return slash == std::string::npos ? "" : op.substr(0, slash);
}

Violation violation_at(int64_t step, int replica, ValueId id, const Op& op, Violation::What what) {
  Violation v;
  v.step = step;
  v.replica = replica;
  v.id = id;
  v.op = op.name;
  v.kind = name_of(op.kind);
  v.phase = to_string(op.phase);
  v.layer = layer_of(op.name);
  v.what = what;
  return v;
}

std::vector<bool> uniform_values(const Program& program) {
  const Graph& graph = program.graph;
  std::vector<bool> same_state(static_cast<size_t>(graph.size()), true);
  for (;;) {
    std::vector<bool> uniform(static_cast<size_t>(graph.size()), true);
    for (const Input& input : program.inputs)
      uniform[static_cast<size_t>(input.id)] = !input.per_core;
    for (ValueId id = 0; id < graph.size(); ++id) {
      const Op& op = graph.op(id);
      const auto at = static_cast<size_t>(id);
      if (op.kind == OpKind::kParameter) {
        uniform[at] = uniform[at] && same_state[at];
      } else if (op.kind != OpKind::kAllReduce) {
        uniform[at] = std::ranges::all_of(
            op.operands, [&](ValueId o) { return uniform[static_cast<size_t>(o)]; });
      }
    }
    // Once replicas diverge in a state variable, they stay different in later steps. Repeat until
    // nothing changes.
    bool settled = true;
    for (const StateVar& var : program.state) {
      const auto at = static_cast<size_t>(var.id);
      if (var.next == kNoValue || uniform[static_cast<size_t>(var.next)] || !same_state[at])
        continue;
      same_state[at] = false;
      settled = false;
    }
    if (settled) return uniform;
  }
}

Links::Links(const Program& asked, bool deterministic, Report report)
    : asked_(asked),
      deterministic_(deterministic),
      report_(std::move(report)),
      diverged_(asked.state.size(), false) {}

void Links::broken(int replica, ValueId id, std::string what) {
  ++reported_;
  Violation v = violation_at(step_, replica, id, followed_->graph.op(id), Violation::What::kLink);
  v.link = std::move(what);
  report_(std::move(v));
}

void Links::begin_step(int64_t step, const States& before, const StepInputs& inputs, bool watched) {
  step_ = step;
  watched_ = watched;
  started_ = false;
  reported_ = 0;
  before_ = before;
  if (watched) inputs_ = inputs;
  if (followed_ == nullptr) start(asked_);
  // A step starts from the state that the step before ended with: each replica from its own, or, at
  // the end of a training loop, all from replica 0's.
  const bool carried =
      after_.size() == before.size() && std::ranges::equal(before, after_, same_state);
  const bool restarted = !after_.empty() && std::ranges::all_of(before, [&](const ReplicaState& s) {
    return same_state(s, after_.front());
  });
  if (after_.empty() || carried || restarted) return;
  for (size_t i = 0; i < asked_.state.size(); ++i) {
    for (size_t r = 0; r < before.size() && r < after_.size(); ++r) {
      if (before[r].vars[i].same_bits(after_[r].vars[i])) continue;
      Violation v = violation_at(step, static_cast<int>(r), asked_.state[i].id,
                                 asked_.graph.op(asked_.state[i].id), Violation::What::kLink);
      v.link = "the step starts from a different state than the previous step ended with";
      return report_(std::move(v));
    }
  }
}

void Links::start(const Program& executed) {
  if (followed_ != &executed) {
    followed_ = &executed;
    dead_ = dead_values(executed);
    uniform_ = uniform_values(executed);
    dies_.assign(static_cast<size_t>(executed.graph.size()), {});
    const std::vector<ValueId> last = last_uses(executed);
    for (ValueId id = 0; id < executed.graph.size(); ++id) {
      const ValueId end = last[static_cast<size_t>(id)];
      if (end < executed.graph.size()) dies_[static_cast<size_t>(end)].push_back(id);
    }
  }
  next_ = 0;
  written_.assign(before_.size(), std::vector<Tensor>(static_cast<size_t>(executed.graph.size())));
  if (!watched_) return;
  // State and inputs are matched by name: another program may number them differently.
  for (size_t r = 0; r < before_.size(); ++r) {
    for (const StateVar& var : executed.state) {
      const int i = asked_.state_index(var.name);
      if (i >= 0)
        written_[r][static_cast<size_t>(var.id)] = before_[r].vars[static_cast<size_t>(i)];
    }
    for (const Input& input : executed.inputs) {
      const auto found = std::ranges::find(asked_.inputs, input.name, &Input::name);
      if (found == asked_.inputs.end()) continue;
      written_[r][static_cast<size_t>(input.id)] =
          inputs_[r][static_cast<size_t>(found - asked_.inputs.begin())];
    }
  }
}

// Reports the live ops of [from, to) that were not seen. The values that they would have written
// stay unknown and are not compared.
void Links::missing(ValueId from, ValueId to) {
  for (ValueId id = from; id < to; ++id) {
    const Op& op = followed_->graph.op(id);
    if (op.kind == OpKind::kParameter || dead_[static_cast<size_t>(id)]) continue;
    broken(-1, id, "this op of the program was not executed");
  }
}

void Links::check_order(const OpEvent& event) {
  if (event.id < next_) {
    broken(-1, event.id, "this op ran again, or after an op that comes later in the program");
    return;
  }
  missing(next_, event.id);
  next_ = event.id + 1;
}

void Links::check_operands(const OpEvent& event) {
  const Op& op = event.op();
  for (size_t i = 0; i < op.operands.size(); ++i) {
    // Report once for all replicas: the first one that differs, and how many do.
    int first = -1, cores = 0;
    for (size_t r = 0; r < event.inputs.size(); ++r) {
      const Tensor& wrote = written_[r][static_cast<size_t>(op.operands[i])];
      if (!wrote.valid() || wrote.same_bits(event.inputs[r][i])) continue;
      if (first < 0) first = static_cast<int>(r);
      ++cores;
    }
    if (first < 0) continue;
    const Op& producer = followed_->graph.op(op.operands[i]);
    const bool fed = std::ranges::any_of(
        followed_->inputs, [&](const Input& input) { return input.id == op.operands[i]; });
    const bool state = !fed && producer.kind == OpKind::kParameter;
    Violation v = violation_at(step_, first, event.id, op,
                               fed ? Violation::What::kFeed : Violation::What::kLink);
    v.replicas = cores;
    v.link = fmt::format("operand {} is not what {}{}", i, producer.name,
                         fed     ? " was fed"
                         : state ? " held before the step"
                                 : " wrote");
    if (fed) {
      v.input = producer.name;
      for (const auto& inputs : event.inputs) v.read.push_back(inputs[i]);
    }
    ++reported_;
    report_(std::move(v));
    if (!fed) continue;
    // Report this once; later readers of the input are compared with the value that was read here.
    for (size_t r = 0; r < event.inputs.size(); ++r)
      written_[r][static_cast<size_t>(op.operands[i])] = event.inputs[r][i];
  }
}

// A collective's result must be the same on all replicas.
void Links::check_replicas(const OpEvent& event) {
  if (event.op().kind != OpKind::kAllReduce) return;
  for (size_t r = 1; r < event.outputs.size(); ++r) {
    if (event.outputs[r].same_bits(event.outputs[0])) continue;
    return broken(static_cast<int>(r), event.id,
                  fmt::format("core {}'s result of the collective differs from core 0's", r));
  }
}

void Links::on_op(const OpEvent& event, const Program& executed) {
  if (!started_ || followed_ != &executed) start(executed);
  started_ = true;
  check_order(event);
  check_operands(event);
  check_replicas(event);
  for (size_t r = 0; r < event.outputs.size(); ++r)
    written_[r][static_cast<size_t>(event.id)] = event.outputs[r];
  for (ValueId dead : dies_[static_cast<size_t>(event.id)]) {
    for (auto& values : written_) values[static_cast<size_t>(dead)] = Tensor();
  }
}

// The state after the step is what the update ops wrote; without an update a variable keeps its
// bits.
void Links::check_state(const States& after) {
  for (size_t r = 0; r < after.size(); ++r) {
    for (const StateVar& var : followed_->state) {
      const int i = asked_.state_index(var.name);
      if (i < 0) continue;
      const auto at = static_cast<size_t>(i);
      const Tensor& expected =
          var.next == kNoValue ? before_[r].vars[at] : written_[r][static_cast<size_t>(var.next)];
      if (!expected.valid() || expected.same_bits(after[r].vars[at])) continue;
      broken(static_cast<int>(r), var.next == kNoValue ? var.id : var.next,
             var.next == kNoValue ? "the step changed a variable that has no update"
                                  : "the state after the step is not what this op wrote");
    }
  }
}

void Links::check_divergence(const States& after) {
  for (size_t i = 0; i < asked_.state.size(); ++i) {
    if (diverged_[i]) continue;
    for (size_t r = 1; r < after.size(); ++r) {
      if (after[r].vars[i].same_bits(after[0].vars[i])) continue;
      const StateVar* var = followed_->find_state(asked_.state[i].name);
      const bool must =
          var != nullptr && var->next != kNoValue && uniform_[static_cast<size_t>(var->next)];
      diverged_[i] = true;
      divergences_.push_back({asked_.state[i].name, step_, static_cast<int>(r), must});
      // A violation already found in this step explains the divergence.
      if (must && deterministic_ && reported_ == 0) {
        // If all other cores agree with each other, core 0 is the one that is wrong.
        const bool first = after.size() > 2 && std::ranges::all_of(after, [&](const auto& core) {
                             return &core == &after[0] || core.vars[i].same_bits(after[1].vars[i]);
                           });
        broken(first ? 0 : static_cast<int>(r), var->next,
               fmt::format("core {}'s {} diverges from {}, although the program computes the "
                           "same on all cores",
                           first ? 0 : r, var->name, first ? "all others'" : "core 0's"));
      }
      break;
    }
  }
}

void Links::end_step(const States& after) {
  if (started_) {
    missing(next_, followed_->graph.size());
    check_state(after);
  }
  check_divergence(after);
  written_.clear();
  inputs_.clear();
  before_.clear();
  after_ = after;
}

const Tensor& Links::written(size_t replica, ValueId id) const {
  return written_[replica][static_cast<size_t>(id)];
}

}  // namespace twinrun
