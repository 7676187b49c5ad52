// Verifies a golden run: opens it, checks that the data, the engine's declaration and the initial
// state are unchanged, trains again, and compares the result bit for bit or with the noise of
// conforming engines.
#include "harness/gate/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "harness/experiment/engines.h"
#include "harness/experiment/imported.h"
#include "harness/gate/divergence.h"
#include "harness/gate/golden.h"
#include "harness/host/environment.h"
#include "harness/run/run.h"
#include "reports/text.h"

namespace twinrun {
namespace {

class Verification {
 public:
  Verification(std::string path, const VerifyOptions& options)
      : path_(std::move(path)), options_(options) {}

  Result<Gate> run() {
    const auto begin = std::chrono::steady_clock::now();
    gate_.golden = path_;
    TWINRUN_ASSIGN(golden_, read_run(path_));
    TWINRUN_ASSIGN(facts_, golden_facts(golden_, path_));
    TWINRUN_RETURN_IF_ERROR(open());
    TWINRUN_RETURN_IF_ERROR(judge());
    if (options_.update &&
        (gate_.outcome == GateOutcome::kDiverged || gate_.outcome == GateOutcome::kInside))
      TWINRUN_RETURN_IF_ERROR(update());
    gate_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return std::move(gate_);
  }

 private:
  // Opens the scenario, its data and the engine.
  Status open() {
    TWINRUN_ASSIGN(const Scenario stored, parse_scenario(golden_.scenario, path_));
    TWINRUN_ASSIGN(Scenario scenario, parse_scenario(golden_.scenario, path_, options_.overrides));
    if (scenario.data.cache == stored.data.cache) forget_cache_file(scenario);
    TWINRUN_RETURN_IF_ERROR(find_program(options_.program, golden_.environment, scenario));
    if (scenario_digest(scenario) != scenario_digest(stored))
      return Error{
          "changes a setting of the golden run", "--set",
          "set only keys that do not affect bits, such as data.dir; otherwise: twinrun record"};
    if (static_cast<int64_t>(golden_.steps.size()) != scenario.train.steps)
      return Error{fmt::format("it has {} steps, its scenario {}", golden_.steps.size(),
                               scenario.train.steps),
                   path_, "record it again: twinrun record"};
    if (scenario_digest(scenario).hex() != golden_.scenario_digest)
      gate_.notes.push_back(
          "this twinrun knows keys that the golden run's scenario does not have: "
          "they are at their defaults");
    gate_.scenario = scenario.name;
    TWINRUN_ASSIGN(auto experiment, make_experiment(scenario));
    experiment_.emplace(std::move(experiment));

    spec_.engine = options_.engine.value_or(facts_.engine);
    spec_.cores = golden_.cores;
    spec_.threads = options_.threads;
    spec_.faults = options_.faults;
    TWINRUN_ASSIGN(setup_, set_up(*experiment_, spec_, options_.progress));
    declared_ = setup_.backend->capabilities();
    gate_.engine = declared_.name;
    gate_.settings = fmt::format("cores={} batch={} {}", golden_.cores,
                                 setup_.program.batch * golden_.cores, declared_.settings);
    same_engine_ = declared_.name == golden_.engine &&
                   is_foreign_engine(spec_.engine) == is_foreign_engine(facts_.engine);
    using Decides = VerifyOptions::Decides;
    const bool defined = same_engine_ && has_defined_bits(spec_.engine, declared_);
    bits_decide_ =
        options_.decides == Decides::kBits || (options_.decides == Decides::kDefault && defined);
    gate_.decides = bits_decide_ ? "bits" : "noise";
    list_changes();
    return Ok{};
  }

  // Lists environment and settings that changed since the golden run; none of them decides.
  void list_changes() {
    std::map<std::string, std::string> now = environment();
    now["engine"] = gate_.engine;
    now["settings"] = gate_.settings;
    std::map<std::string, std::string> was = golden_.environment;
    was["engine"] = golden_.engine;
    was["settings"] = golden_.engine_settings;
    for (const auto& [key, value] : now) {
      if (was[key] != value)
        gate_.changed.push_back(fmt::format("{}: {}, now {}", key, was[key], value));
    }
  }

  void diverged_before_training(const std::string& what, std::string was, std::string now,
                                const std::string& headline) {
    gate_.outcome = GateOutcome::kDiverged;
    gate_.divergence = GateSite{{}, what, {}, std::move(was), std::move(now)};
    gate_.headline = headline;
  }

  // Whether data, declaration or initial state differ from those of the golden run, so that nothing
  // needs to run.
  bool diverged_before() {
    const std::string data = experiment_->data->digest.hex();
    if (const std::string& was = golden_.environment["data"]; was != data) {
      diverged_before_training("data", was, data,
                               "The samples differ from those of the golden run: nothing was run.");
      return true;
    }
    if (same_engine_ && declaration(declared_) != facts_.declares) {
      diverged_before_training(
          "declaration", facts_.declares, declaration(declared_),
          "The engine declares different arithmetic than in the golden run: nothing was run.");
      return true;
    }
    const Checkpoint now = to_checkpoint(
        setup_.program, initial_states(*experiment_, setup_.program), experiment_->scenario, 0);
    const CheckpointHeader is = now.header(), was = golden_.checkpoints.front().header();
    for (const auto& [name, entry] : is.tensors) {
      const auto at = was.tensors.find(name);
      if (at == was.tensors.end() || at->second.digest == entry.digest) continue;
      diverged_before_training(
          name + ", initial value", at->second.digest.hex(), entry.digest.hex(),
          "The seed gives a different initial state than in the golden run: nothing was run.");
      return true;
    }
    return false;
  }

  Result<RunFile> train_from_golden(int64_t steps, bool evaluate) {
    std::vector<int64_t> kept;
    for (const Checkpoint& c : golden_.checkpoints) {
      if (c.step < static_cast<int64_t>(golden_.steps.size())) kept.push_back(c.step);
    }
    StepRecorder recorder(setup_.program, kept, traces_ops(spec_.engine, declared_));
    RunOptions run;
    run.name = fmt::format("{}: {}, {}", experiment_->scenario.name, gate_.engine,
                           text::plural(golden_.cores, "core"));
    run.steps = steps;
    run.threads = options_.threads;
    run.observer = &recorder;
    run.progress = options_.progress;
    run.stop = options_.stop;
    run.evaluate = evaluate;
    TWINRUN_ASSIGN(run.start, state_of(golden_.checkpoints.front()));
    TWINRUN_ASSIGN(RunResult result, train(*experiment_, setup_.program, *setup_.backend, run));
    result.file.trace = std::move(recorder.rows);
    return std::move(result.file);
  }

  Result<States> state_of(const Checkpoint& checkpoint) const {
    auto states = from_checkpoint(checkpoint, setup_.program);
    if (states) return states;
    Error error = states.error();
    error.where = path_ + ": " + error.where;
    return error;
  }

  Status judge() {
    if (diverged_before()) return Ok{};
    TWINRUN_ASSIGN(const RunFile now, train_from_golden(0, true));
    if (now.ended.interrupted()) return interrupted();
    gate_.divergence = first_divergence(golden_, now, same_engine_);
    if (!gate_.divergence) {
      gate_.outcome = GateOutcome::kSame;
      gate_.headline = fmt::format(
          "The same bits: {} states and losses{}.", golden_.steps.size(),
          same_engine_ ? ", " + text::plural(static_cast<int64_t>(now.trace.size()), "traced value")
                       : "");
      return Ok{};
    }
    if (!now.ended.completed()) gate_.notes.push_back("the run now " + to_string(now.ended));
    TWINRUN_RETURN_IF_ERROR(look_at_noise());
    if (same_engine_) TWINRUN_RETURN_IF_ERROR(look_for_repeats(now));
    decide();
    if (!bits_decide_ && gate_.outcome == GateOutcome::kDiverged) return first_outside();
    return Ok{};
  }

  Status interrupted() {
    gate_.outcome = GateOutcome::kInterrupted;
    gate_.headline = "Interrupted: not decided.";
    return Ok{};
  }

  // What the engine computes in the steps `looked` of a run from the state before step `at`; nullopt
  // if it was interrupted.
  Result<std::optional<std::vector<ProbedState>>> steps_from(const States& from, int64_t at,
                                                             const std::vector<int64_t>& looked) {
    StepRecorder recorder(setup_.program, looked, false);
    RunOptions run;
    run.name = fmt::format("steps {} to {}: where it first leaves the noise", at, looked.back());
    run.start = from;
    run.first_step = at;
    run.steps = looked.back() + 1;
    run.threads = options_.threads;
    run.observer = &recorder;
    run.progress = options_.progress;
    run.stop = options_.stop;
    run.evaluate = run.digest_states = false;
    TWINRUN_ASSIGN(const RunResult result,
                   train(*experiment_, setup_.program, *setup_.backend, run));
    if (result.file.ended.interrupted()) return std::optional<std::vector<ProbedState>>();
    return std::optional(std::move(recorder.states));
  }

  // Adds the step in which the bits part: the state before it is that of the golden run.
  Status add_parting_step(std::vector<ProbedState>& states) {
    if (!gate_.divergence->step || states.empty()) return Ok{};
    const int64_t step = *gate_.divergence->step;
    const auto after = std::ranges::upper_bound(states, step, {}, &ProbedState::step);
    if (after == states.begin() || (after - 1)->step == step) return Ok{};
    TWINRUN_ASSIGN(auto own, steps_from((after - 1)->states, (after - 1)->step, {step}));
    if (own && own->size() == 1) states.insert(after, std::move(own->front()));
    return Ok{};
  }

  Status look_at_noise() {
    if (same_engine_ && !facts_.noise.empty()) {
      gate_.noise = Gate::Noise{.unusable = facts_.noise};
      return Ok{};
    }
    std::vector<ProbedState> states;
    for (const Checkpoint& c : golden_.checkpoints) {
      if (c.step >= static_cast<int64_t>(golden_.steps.size())) continue;
      TWINRUN_ASSIGN(States at, state_of(c));
      states.push_back({c.step, std::move(at)});
    }
    TWINRUN_RETURN_IF_ERROR(add_parting_step(states));
    judged_ = static_cast<int64_t>(states.size());
    if (options_.progress != nullptr)
      options_.progress->begin(
          "bits differ: one step from each recorded state, among conforming engines", 1);
    TWINRUN_ASSIGN(gate_.noise, noise_of(*experiment_, setup_.program, *setup_.backend, states,
                                         options_.threads));
    if (options_.progress != nullptr)
      options_.progress->end(!gate_.noise->unusable.empty() ? gate_.noise->unusable
                             : gate_.noise->inside          ? "inside"
                                                            : "outside");
    return Ok{};
  }

  // Notes whether two runs of the engine differ, which alone may explain any difference.
  Status look_for_repeats(const RunFile& now) {
    const int64_t to = gate_.divergence->step.value_or(0) + 1;
    TWINRUN_ASSIGN(const RunFile again, train_from_golden(to, false));
    const auto parts = first_difference(again, now);
    if (parts && *parts < to) {
      gate_.notes.push_back(fmt::format(
          "the engine does not repeat its own bits: two runs from the same state diverge "
          "after step {}",
          *parts));
      stopped_repeating_ = facts_.repeats && options_.decides != VerifyOptions::Decides::kNoise;
    } else if (!facts_.repeats) {
      gate_.notes.push_back("the engine did not repeat its own bits when the golden run was made");
    }
    return Ok{};
  }

  void decide() {
    if (stopped_repeating_) {
      bits_decide_ = true;
      gate_.decides = "bits";
      gate_.outcome = GateOutcome::kDiverged;
      gate_.headline =
          "The engine repeated its own bits when the golden run was made, and no longer does: a "
          "race, or memory that it reads before it writes it.";
      return;
    }
    const bool usable = gate_.noise->unusable.empty();
    if (!usable) {
      bits_decide_ = true;
      gate_.decides = "bits";
    }
    const bool inside = usable && gate_.noise->inside;
    if (inside && !bits_decide_) {
      gate_.outcome = GateOutcome::kInside;
      gate_.headline = fmt::format(
          "Bits differ; the {} of {} that were judged lie inside the noise of "
          "conforming engines.",
          text::count(judged_), text::plural(golden_.steps.size(), "step"));
      return;
    }
    gate_.outcome = GateOutcome::kDiverged;
    if (bits_decide_) {
      gate_.headline = fmt::format(
          "Bits differ, first in {}{}{}.", gate_.divergence->tensor,
          gate_.divergence->step ? fmt::format(" at step {}", *gate_.divergence->step) : "",
          !usable ? ""
          : inside
              ? fmt::format("; the {} steps that were judged lie inside the noise of conforming "
                            "engines, as another order of summation does",
                            judged_)
              : "; outside the noise of conforming engines");
      return;
    }
    gate_.notes.push_back(
        fmt::format("bits diverge at step {}", gate_.divergence->step.value_or(0)));
    gate_.divergence = gate_.noise->outside;
    gate_.noise->outside.reset();
  }

  // Finds the first step outside the noise. A recorded state showed a step outside, and the one
  // before it a step inside; the engine trains on between them, and its own steps are checked.
  Status first_outside() {
    constexpr int64_t kAtOnce = 16;
    int64_t bad = *gate_.divergence->step, at = -1;
    States from;
    for (const Checkpoint& c : golden_.checkpoints) {
      if (c.step >= bad) break;
      at = c.step;
      TWINRUN_ASSIGN(from, state_of(c));
    }
    while (at >= 0 && bad - at > 1) {
      const int64_t n = std::min(kAtOnce, bad - at);
      std::vector<int64_t> looked;
      for (int64_t i = 1; i <= n; ++i) looked.push_back(at + i * (bad - at) / n);
      TWINRUN_ASSIGN(const auto steps, steps_from(from, at, looked));
      if (!steps) return interrupted();
      TWINRUN_ASSIGN(const Gate::Noise own, noise_of(*experiment_, setup_.program, *setup_.backend,
                                                     *steps, options_.threads));
      if (own.inside || !own.outside) break;  // keep the result from the recorded state
      gate_.divergence = own.outside;
      bad = *own.outside->step;
      for (const ProbedState& state : *steps) {
        if (state.step >= bad) break;
        at = state.step;
        from = state.states;
      }
    }
    gate_.headline = fmt::format("Outside the noise of conforming engines, first in {} at step {}.",
                                 gate_.divergence->tensor, *gate_.divergence->step);
    return Ok{};
  }

  Status update() {
    GoldenOptions o;
    o.spec = spec_;
    o.states = static_cast<int>(golden_.checkpoints.size()) - 1;
    o.progress = options_.progress;
    o.stop = options_.stop;
    TWINRUN_ASSIGN(const RunFile anew, record_golden(*experiment_, o));
    if (anew.ended.interrupted()) return interrupted();
    if (!anew.ended.completed())
      return Error{"cannot be recorded again: the run " + to_string(anew.ended), path_,
                   "keep the old one"};
    TWINRUN_RETURN_IF_ERROR(write_run(path_, anew));
    gate_.updated = true;
    return Ok{};
  }

  std::string path_;
  const VerifyOptions& options_;
  Gate gate_;
  RunFile golden_;
  GoldenFacts facts_;
  std::optional<Experiment> experiment_;
  EngineSpec spec_;
  EngineSetup setup_;
  Capabilities declared_;
  bool same_engine_ = true, bits_decide_ = true, stopped_repeating_ = false;
  int64_t judged_ = 0;  // steps that were held against conforming engines
};

}  // namespace

Result<Gate> verify_golden(const std::string& path, const VerifyOptions& options) {
  return Verification(path, options).run();
}

}  // namespace twinrun
