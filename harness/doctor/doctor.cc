// Collects facts of the machine and examines an engine step by step until a check fails.
#include "harness/doctor/doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "backends/kernels/kernels.h"
#include "harness/doctor/known_answer.h"
#include "harness/experiment/engines.h"
#include "harness/host/environment.h"
#include "harness/run/run.h"

namespace twinrun {
namespace {

Result<DoctorRow> same_bits(const std::string& engine) {
  TWINRUN_ASSIGN(const Scenario scenario,
                 load_scenario("digits_mlp",
                               {{"train.steps", "3"}, {"data.train", "512"}, {"data.eval", "64"}}));
  TWINRUN_ASSIGN(const Experiment experiment, make_experiment(scenario));
  std::string digests[2];
  for (int i = 0; i < 2; ++i) {
    BackendOptions options;
    options.threads = i + 1;
    options.poison_memory = i == 1;
    TWINRUN_ASSIGN(const auto backend, make_engine(engine, scenario, options));
    RunOptions run;
    run.evaluate = false;
    TWINRUN_ASSIGN(const RunResult result,
                   train(experiment, experiment.sharded(experiment.sharding), *backend, run));
    digests[i] = result.file.state_digests.back().hex();
  }
  return DoctorRow{"1 thread = 2 threads, poisoned memory", digests[0] == digests[1], digests[0]};
}

std::string declaration(const Capabilities& c) {
  return fmt::format("{}{}{}, {}, up to {} core{}", c.name, c.settings.empty() ? "" : " ",
                     c.settings,
                     c.declares_arithmetic ? fmt::format("precision {}", declared_word(c))
                                           : "precision not declared",
                     c.max_cores, c.max_cores == 1 ? "" : "s");
}

// Examines one engine until a check fails.
class Examination {
 public:
  Examination(const std::string& engine, Progress* progress)
      : engine_(engine), progress_(progress) {}

  Status run(Doctor& doctor) {
    TWINRUN_ASSIGN(const KnownAnswer program, KnownAnswer::make());
    const bool others = is_foreign_engine(engine_);
    const auto begin = std::chrono::steady_clock::now();
    auto backend = make_engine(engine_, program.scenario(), {}, progress_);
    if (!backend && !others) return backend.error();
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const auto failed = [&](const std::string& name, const Error& error, std::string answer) {
      // An engine that is made for one model may refuse another.
      const bool refused = error.kind == Error::Kind::kRefusal;
      doctor.checks.push_back({name, refused, (refused ? "skipped: " : "") + error.message()});
      doctor.answer = std::move(answer);
      return Ok{};
    };
    if (!backend) {
      return failed("starts", backend.error(),
                    "The engine does not start: no model and no data were touched yet.");
    }
    const Capabilities declared = (*backend)->capabilities();
    doctor.checks.push_back(
        {"starts", true, fmt::format("{}; {:.2f} s", declaration(declared), seconds)});

    doctor.devices = (*backend)->devices();
    // Devices after these are listed, but no replica runs on them.
    const auto used = std::min(std::ssize(doctor.devices), std::ptrdiff_t{declared.max_cores});
    const auto broken =
        std::count_if(doctor.devices.begin(), doctor.devices.begin() + used,
                      [](const DeviceFacts& device) { return !device.trouble.empty(); });
    if (used > 0) {
      doctor.checks.push_back({"devices", broken == 0,
                               broken == 0 ? fmt::format("{} usable", used)
                                           : fmt::format("{} of {} cannot be used", broken, used)});
    }
    if (broken > 0) {
      doctor.answer =
          "A device that the engine runs on cannot be used: it is the machine, or another process "
          "that holds the device, not a model or data.";
      return Ok{};
    }

    std::vector<int> cores = {1};
    for (const int several : {8, 4, 2}) {
      if (several <= declared.max_cores && cores.size() == 1) cores.push_back(several);
    }
    for (const int n : cores) {
      const std::string name = fmt::format("known answer, {} core{}", n, n == 1 ? "" : "s");
      const auto checked = program.check(**backend, n);
      if (!checked) {
        const bool refuses = checked.error().kind == Error::Kind::kRefusal;
        return failed(name, checked.error(),
                      refuses
                          ? "The engine refuses the known-answer program (one dense layer, mean "
                            "squared error, SGD): if it is made for another model only, this says "
                            "nothing; otherwise it is the engine, not a model or data."
                          : "The engine fails on a program of one dense layer and small "
                            "integers: it is the engine, not a model or data.");
      }
      if (!checked->wrong.empty()) {
        doctor.checks.push_back({name, false, checked->wrong});
        doctor.answer =
            n == 1
                ? "The engine is wrong on small integers, which every precision holds exactly: it "
                  "is the engine, not a model or data."
                : fmt::format(
                      "The engine is right on one core and wrong on {}, on small integers "
                      "that every precision holds exactly: it is how the engine works across cores "
                      "(all-reduce, which core gets which samples).",
                      n);
        return Ok{};
      }
      doctor.checks.push_back({name, true,
                               fmt::format("all {} numbers right; first step {:.0f} ms",
                                           checked->numbers, checked->step_seconds * 1e3)});
    }
    const auto state = program.check_state(**backend);
    const std::string name = "state kept = state given";
    if (!state)
      return failed(name, state.error(),
                    "The engine fails when it is given a state a second time.");
    // These integers have exact sums, so even an engine whose order of summation varies must give
    // the same bits.
    doctor.checks.push_back({name, state->empty(), state->empty() ? "same bits" : *state});
    if (!state->empty()) {
      doctor.answer =
          "The engine keeps something that is not in its state: its later steps depend on more "
          "than what it is given. It is the engine, not a model or data.";
      return Ok{};
    }
    if (!others && declared.deterministic) {
      TWINRUN_ASSIGN(DoctorRow same, same_bits(engine_));
      doctor.checks.push_back(std::move(same));
      if (!doctor.checks.back().passed) {
        doctor.answer =
            "The engine's bits depend on threads or on memory: it is the engine or the "
            "machine, not a model or data.";
        return Ok{};
      }
    }
    doctor.answer = fmt::format(
        "The engine computes what it should. If a training goes wrong on it, suspect the model, "
        "the "
        "data or how it is fed next: twinrun diagnose SCENARIO --subject '{}'",
        engine_);
    return Ok{};
  }

 private:
  const std::string& engine_;
  Progress* progress_;
};

}  // namespace

bool Doctor::good() const { return std::ranges::all_of(checks, &DoctorRow::passed); }

Result<Doctor> doctor(const std::string& engine, Progress* progress) {
  Doctor d;
  for (const auto& [key, value] : environment()) d.machine.push_back({key, true, value});
  const auto used_unless = [&](const char* what, std::string_view refusal) {
    d.machine.push_back(
        {what, true, refusal.empty() ? "used" : fmt::format("not used: {}", refusal)});
  };
  used_unless("amx tiles", amx_refusal());
  used_unless("vdpbf16ps", avx512bf16_refusal());
  TWINRUN_RETURN_IF_ERROR(Examination(engine, progress).run(d));
  return d;
}

}  // namespace twinrun
