// Records the runs of the parity suite, and the ensemble and bounds around them.
#include "tests/parity/corners.h"

#include <cmath>

#include "backends/registry.h"
#include "harness/diagnose/stages.h"
#include "program/base/distributions.h"
#include "tests/parity/rounding_noise.h"

namespace twinrun::parity {
namespace {

constexpr std::string_view kGradient = ".grad";

void record(const Program& program, const StepOutputs& outputs, bool first, bool last, Trace& t) {
  std::vector<double> losses;
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    std::string name = program.outputs[i].name;
    if (name == "loss") {
      for (const auto& replica : outputs) losses.push_back(as_doubles(replica[i])[0]);
    }
    if (!name.ends_with(kGradient)) continue;
    name.resize(name.size() - kGradient.size());
    const std::vector<double> g = as_doubles(outputs[0][i]);
    t.norms[name].push_back(distance(g, std::vector<double>(g.size())));
    if (first) t.first[name] = g;
    if (last) t.last[name] = g;
  }
  t.losses.push_back(std::move(losses));
}

void add(const Values& member, const Values& truth, Values& distances) {
  for (const auto& [name, value] : truth)
    distances[name].push_back(distance(member.at(name), value));
}

}  // namespace

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(squares);
}

double bound_of(const std::vector<double>& members) {
  const double rms =
      distance(members, std::vector<double>(members.size())) / std::sqrt(members.size());
  return std::sqrt(2.0) * rms * student_upper(static_cast<double>(members.size()), kFalseAlarm / 2);
}

Result<Trace> trace(const Experiment& e, const Program& program, Backend& backend,
                    const TraceOptions& options) {
  TWINRUN_ASSIGN(const auto engine, backend.prepare(program));
  Feed feed(e.data->train, e.feed_options(program.batch * program.sharding.cores));
  States states = initial_states(program, e.scenario.seed);
  StepOutputs outputs;
  Trace t;
  for (int64_t step = 0; step < options.steps; ++step) {
    TWINRUN_ASSIGN(const Batch batch, feed.batch(step));
    TWINRUN_ASSIGN(const StepInputs inputs, step_inputs(program, e.scenario, batch, step));
    TWINRUN_RETURN_IF_ERROR(
        engine->step(step, states, inputs, outputs, options.sink, options.hooks));
    record(program, outputs, step == 0, step + 1 == options.steps, t);
  }
  for (size_t i = 0; i < program.state.size(); ++i)
    t.state[program.state[i].name] = as_doubles(states[0].vars[i]);
  return t;
}

Result<Spread> ensemble(const Experiment& e, bool sharded, const Trace& truth, int64_t steps,
                        uint32_t members, int threads) {
  TWINRUN_ASSIGN(const auto cpu, make_backend("cpu", {.threads = threads}));
  ThreadPool pool(threads);
  Spread spread;
  spread.losses.resize(truth.losses.size());
  for (uint32_t member = 0; member < members; ++member) {
    Experiment rounded = e;
    rounded.scenario = with_rounded_settings(e.scenario, member);
    TWINRUN_ASSIGN(Experiment own, with_seed(rounded, e.scenario.seed));
    own.scenario = e.scenario;  // the learning rates come from the unrounded scenario
    RoundingNoise noise(member, sharded ? nullptr : &pool);
    TWINRUN_ASSIGN(const Trace t, trace(own, sharded ? own.sharded(own.sharding) : own.whole(),
                                        *cpu, {.steps = steps, .hooks = &noise}));
    for (size_t s = 0; s < t.losses.size(); ++s) {
      spread.losses[s].push_back(std::fabs(mean(t.losses[s]) - mean(truth.losses[s])));
    }
    add(t.first, truth.first, spread.first);
    add(t.last, truth.last, spread.last);
    add(t.state, truth.state, spread.state);
  }
  return spread;
}

}  // namespace twinrun::parity
