// Runs a changed program on the state of the requested one: maps variables by name and replays
// private ones.
#include "harness/envelope/script_engine.h"

#include <algorithm>
#include <cmath>

namespace twinrun {
namespace {

// Given a power of beta `was`, computes the same power of beta `is`.
Tensor power_anew(const Tensor& given, double was, double is) {
  const double power = as_doubles(given)[0];
  if (!(was > 0 && was < 1 && power > 0 && power < 1)) return given;
  const auto updates = std::lround(std::log(power) / std::log(was));
  float own = 1;
  for (int64_t k = 0; k < std::min<int64_t>(updates, 100000); ++k) own *= static_cast<float>(is);
  return Tensor::scalar(own);
}

double beta_of(const OptimizerSpec& spec, std::string_view counter) {
  return counter.ends_with("beta1_power")   ? spec.beta1
         : counter.ends_with("beta2_power") ? spec.beta2
                                            : 0;
}

}  // namespace

bool StateMap::hides() const { return std::ranges::find(asked_of_own, -1) != asked_of_own.end(); }

bool StateMap::is_same() const {
  const auto has = [](const std::vector<int>& places, int place) {
    return std::ranges::find(places, place) != places.end();
  };
  return !hides() && !has(own_of_asked, -1) && !has(own_of_output, -1) &&
         std::ranges::is_sorted(asked_of_own) && std::ranges::is_sorted(own_of_output) &&
         own_of_output.back() + 1 == static_cast<int>(own_of_output.size()) &&
         std::ranges::find(starts_otherwise, true) == starts_otherwise.end() &&
         std::ranges::all_of(powers, [](const auto& p) { return p.first == p.second; });
}

std::optional<StateMap> map_states(const Program& asked, const Program& own, uint64_t seed,
                                   bool powers_anew) {
  StateMap map;
  map.own_of_asked.assign(asked.state.size(), -1);
  for (size_t i = 0; i < own.state.size(); ++i) {
    const StateVar& var = own.state[i];
    const int place = asked.state_index(var.name);
    map.asked_of_own.push_back(place);
    map.powers.emplace_back(0, 0);
    map.starts_otherwise.push_back(false);
    if (place < 0) {
      if (var.role == StateRole::kParameter || var.role == StateRole::kStatistic)
        return std::nullopt;
      continue;
    }
    const StateVar& given = asked.state[static_cast<size_t>(place)];
    if (given.type != var.type) return std::nullopt;
    map.own_of_asked[static_cast<size_t>(place)] = static_cast<int>(i);
    map.starts_otherwise.back() = var.role == StateRole::kSlot &&
                                  var.init.kind == Initializer::Kind::kConstant &&
                                  given.init.value != var.init.value;
    const double was = beta_of(asked.optimizer, var.name), is = beta_of(own.optimizer, var.name);
    if (powers_anew && var.role == StateRole::kCounter && was != is) map.powers.back() = {was, is};
  }
  for (size_t i = 0; i < asked.state.size(); ++i) {
    const StateRole role = asked.state[i].role;
    if (map.own_of_asked[i] < 0 && (role == StateRole::kParameter || role == StateRole::kStatistic))
      return std::nullopt;
  }
  for (const Output& output : asked.outputs) {
    const Output* found = own.find_output(output.name);
    const bool fits = found != nullptr && own.graph.type(found->id) == asked.graph.type(output.id);
    map.own_of_output.push_back(fits ? static_cast<int>(found - own.outputs.data()) : -1);
    if (!fits && output.name == "loss") return std::nullopt;
  }
  // Drawing a model's weights takes time, so do it only where they are needed.
  const bool starts = std::ranges::find(map.starts_otherwise, true) != map.starts_otherwise.end();
  if (starts || map.hides()) map.initial = initial_states(own, seed)[0].vars;
  return map;
}

States ScriptEngine::own_states(int64_t step, const States& asked, const Hidden* hidden) const {
  States own(asked.size());
  for (size_t r = 0; r < asked.size(); ++r) {
    for (size_t i = 0; i < map_.asked_of_own.size(); ++i) {
      const int place = map_.asked_of_own[i];
      if (place < 0) {
        own[r].vars.push_back(hidden != nullptr ? (*hidden)[r][i] : map_.initial[i]);
      } else if (step == 0 && map_.starts_otherwise[i]) {
        own[r].vars.push_back(map_.initial[i]);
      } else {
        const Tensor& given = asked[r].vars[static_cast<size_t>(place)];
        const auto& [was, is] = map_.powers[i];
        own[r].vars.push_back(was != is ? power_anew(given, was, is) : given);
      }
    }
  }
  return own;
}

void ScriptEngine::give_back(const States& own, States& asked) const {
  for (size_t r = 0; r < asked.size(); ++r) {
    for (size_t i = 0; i < map_.own_of_asked.size(); ++i) {
      if (map_.own_of_asked[i] >= 0)
        asked[r].vars[i] = own[r].vars[static_cast<size_t>(map_.own_of_asked[i])];
    }
  }
}

Status ScriptEngine::step(int64_t step, States& states, const StepInputs& inputs,
                          StepOutputs& outputs, TraceSink* sink, OpHooks* hooks) {
  const auto hidden = hidden_.find(step);
  States own = own_states(step, states, hidden != hidden_.end() ? &hidden->second : nullptr);
  StepOutputs own_outputs;
  TWINRUN_RETURN_IF_ERROR(inner_->step(step, own, inputs, own_outputs, sink, hooks));
  give_back(own, states);
  outputs.assign(states.size(), {});
  for (size_t r = 0; r < states.size(); ++r) {
    for (size_t o = 0; o < map_.own_of_output.size(); ++o) {
      const int place = map_.own_of_output[o];
      outputs[r].push_back(place >= 0 ? own_outputs[r][static_cast<size_t>(place)]
                                      : Tensor::zeros(asked_.graph.type(asked_.outputs[o].id)));
    }
  }
  return Ok{};
}

Status ScriptEngine::replay(const Experiment& own, const std::vector<ProbedState>& history,
                            const std::vector<ProbedState>& wanted) {
  const int64_t last = std::ranges::max(wanted, {}, &ProbedState::step).step;
  States visible = history.front().states;
  Hidden now(visible.size(), map_.initial);
  StepFeed feed(own, inner_->program());
  // Not a StepLoop: the visible state of a step comes from the history, the hidden one from here.
  for (int64_t step = 0; step <= last; ++step) {
    const auto seen = std::ranges::find(history, step, &ProbedState::step);
    if (seen != history.end()) visible = seen->states;
    if (std::ranges::find(wanted, step, &ProbedState::step) != wanted.end()) hidden_[step] = now;
    if (step == last) break;
    States states = own_states(step, visible, &now);
    TWINRUN_ASSIGN(const StepInputs inputs, feed.inputs(step));
    StepOutputs outputs;
    TWINRUN_RETURN_IF_ERROR(inner_->step(step, states, inputs, outputs));
    give_back(states, visible);
    for (size_t r = 0; r < states.size(); ++r) now[r] = states[r].vars;
  }
  return Ok{};
}

}  // namespace twinrun
