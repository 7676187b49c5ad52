// The known-answer program: its inputs, its expected results, and the comparison.
#include "harness/doctor/known_answer.h"

#include <fmt/format.h>

#include <chrono>

namespace twinrun {
namespace {

constexpr int kClasses = 4, kPixels = 28 * 28;
constexpr double kRate = 0.5;

constexpr const char* kScenario = R"(
name = "known_answer"
description = "Small integers: every right engine gives these bits"
seed = 1
[data]
source = "digits"
classes = 4
train = 32
eval = 8
[model]
layers = [{ kind = "flatten" }, { kind = "dense", units = 4 }]
[loss]
kind = "mean_squared_error"
[optimizer]
kind = "sgd"
lr = 0.5
[train]
batch = 32
steps = 2
[tpu]
cores = 8
)";

// Pixel k of a sample of the whole batch. 16 pixels are not 0, so that a sum stays below 2^7.
int pixel(int sample, int k) { return (k * 7 + sample) % 49 == 0 ? 1 + (k + sample) % 3 : 0; }
int label(int sample) { return (sample * 3 + 1) % kClasses; }
int weight(int k, int c) { return (k * 3 + c) % 5 - 2; }
int bias(int c) { return c - 1; }

// The expected results. They are exact: integers times a power of two, the gradient's scale.
struct Expected {
  std::vector<double> kernel_gradient = std::vector<double>(size_t{kPixels} * kClasses, 0);
  std::vector<double> bias_gradient = std::vector<double>(kClasses, 0);
  std::vector<double> loss;  // of each core

  explicit Expected(int cores) {
    const int batch = KnownAnswer::kBatch / cores;
    const double scale = 2.0 / (kClasses * KnownAnswer::kBatch);
    for (int core = 0; core < cores; ++core) {
      int squares = 0;
      for (int sample = core * batch; sample < (core + 1) * batch; ++sample) {
        for (int c = 0; c < kClasses; ++c) {
          int gap = bias(c) - (label(sample) == c ? 1 : 0);
          for (int k = 0; k < kPixels; ++k) gap += pixel(sample, k) * weight(k, c);
          squares += gap * gap;
          bias_gradient[static_cast<size_t>(c)] += scale * gap;
          for (int k = 0; k < kPixels; ++k)
            kernel_gradient[static_cast<size_t>(k * kClasses + c)] +=
                scale * gap * pixel(sample, k);
        }
      }
      loss.push_back(static_cast<double>(squares) / (kClasses * batch));
    }
  }
};

// Counts the numbers that differ and keeps the first one.
struct Comparison {
  int64_t numbers = 0, wrong = 0;
  std::string first;

  void compare(const std::string& name, int core, const Tensor& found,
               const std::vector<double>& expected) {
    const std::vector<double> values = as_doubles(found);
    for (size_t i = 0; i < expected.size(); ++i) {
      ++numbers;
      if (i < values.size() && values[i] == expected[i]) continue;
      if (wrong++ > 0) continue;
      first = fmt::format("{}[{}] on core {}: {}; expected {}", name, i, core,
                          i < values.size() ? fmt::format("{:.9g}", values[i]) : "nothing",
                          expected[i]);
    }
  }
  std::string text() const {
    return wrong == 0 ? ""
                      : fmt::format("{} of {} numbers wrong, first in {}", wrong, numbers, first);
  }
};

}  // namespace

Result<KnownAnswer> KnownAnswer::make() {
  TWINRUN_ASSIGN(const Scenario scenario, parse_scenario(kScenario, "known_answer"));
  TWINRUN_ASSIGN(Experiment experiment, make_experiment(scenario));
  return KnownAnswer(std::move(experiment));
}

Program KnownAnswer::program(const Backend& backend, int cores) const {
  Sharding sharding = experiment_.sharding;
  sharding.cores = cores;
  return as_computed_by(backend.capabilities(),
                        cores == 1 ? experiment_.whole() : experiment_.sharded(sharding));
}

States KnownAnswer::states(const Program& program) const {
  States states = initial_states(program, experiment_.scenario.seed);
  for (ReplicaState& replica : states) {
    for (size_t i = 0; i < program.state.size(); ++i) {
      Tensor value = Tensor::empty(program.state[i].type);
      const bool kernel = program.state[i].name.ends_with("/kernel");
      for (size_t j = 0; j < value.as<float>().size(); ++j) {
        const int at = static_cast<int>(j);
        value.as<float>()[j] =
            static_cast<float>(kernel ? weight(at / kClasses, at % kClasses) : bias(at));
      }
      replica.vars[i] = value;
    }
  }
  return states;
}

Result<StepInputs> KnownAnswer::inputs(const Program& program) const {
  Feed feed(experiment_.data->train, experiment_.feed_options(kBatch));
  TWINRUN_ASSIGN(const Batch batch, feed.batch(0));
  TWINRUN_ASSIGN(StepInputs inputs, step_inputs(program, experiment_.scenario, batch, 0));
  const int each = kBatch / static_cast<int>(inputs.size());
  for (size_t core = 0; core < inputs.size(); ++core) {
    const int first = static_cast<int>(core) * each;
    for (size_t i = 0; i < program.inputs.size(); ++i) {
      const std::string& name = program.inputs[i].name;
      if (name != "images" && name != "labels") continue;
      Tensor value = Tensor::empty(program.graph.type(program.inputs[i].id));
      for (int s = 0; s < each; ++s) {
        if (name == "labels") value.as<int32_t>()[static_cast<size_t>(s)] = label(first + s);
        for (int k = 0; name == "images" && k < kPixels; ++k)
          value.as<float>()[static_cast<size_t>(s * kPixels + k)] =
              static_cast<float>(pixel(first + s, k));
      }
      inputs[core][i] = value;
    }
  }
  return inputs;
}

Result<KnownAnswer::Checked> KnownAnswer::check(Backend& backend, int cores) const {
  const Program asked = program(backend, cores);
  TWINRUN_ASSIGN(const auto engine, backend.prepare(asked));
  TWINRUN_ASSIGN(const StepInputs fed, inputs(asked));
  States state = states(asked);
  StepOutputs outputs;
  const auto begin = std::chrono::steady_clock::now();
  TWINRUN_RETURN_IF_ERROR(engine->step(0, state, fed, outputs));
  Checked checked;
  checked.step_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();

  const Expected expected(cores);
  Comparison comparison;
  for (int core = 0; core < cores; ++core) {
    const auto at = static_cast<size_t>(core);
    for (size_t o = 0; o < asked.outputs.size(); ++o) {
      const std::string& name = asked.outputs[o].name;
      const Tensor& value = outputs[at][o];
      if (name == "loss") comparison.compare(name, core, value, {expected.loss[at]});
      if (name.ends_with("/kernel.grad"))
        comparison.compare(name, core, value, expected.kernel_gradient);
      if (name.ends_with("/bias.grad"))
        comparison.compare(name, core, value, expected.bias_gradient);
    }
    for (size_t i = 0; i < asked.state.size(); ++i) {
      const std::string& name = asked.state[i].name;
      const bool kernel = name.ends_with("/kernel");
      std::vector<double> after = kernel ? expected.kernel_gradient : expected.bias_gradient;
      for (size_t j = 0; j < after.size(); ++j) {
        const int k = static_cast<int>(j);
        after[j] = (kernel ? weight(k / kClasses, k % kClasses) : bias(k)) - kRate * after[j];
      }
      comparison.compare(name + " after the step", core, state[at].vars[i], after);
    }
  }
  checked.numbers = comparison.numbers;
  checked.wrong = comparison.text();
  return checked;
}

Result<std::string> KnownAnswer::check_state(Backend& backend) const {
  const Program asked = program(backend, 1);
  TWINRUN_ASSIGN(const auto engine, backend.prepare(asked));
  TWINRUN_ASSIGN(const StepInputs fed, inputs(asked));
  States kept = states(asked);
  StepOutputs outputs;
  TWINRUN_RETURN_IF_ERROR(engine->step(0, kept, fed, outputs));
  States given = kept;
  TWINRUN_RETURN_IF_ERROR(engine->step(1, kept, fed, outputs));
  TWINRUN_RETURN_IF_ERROR(engine->step(1, given, fed, outputs));
  for (size_t i = 0; i < asked.state.size(); ++i) {
    const Tensor &a = kept[0].vars[i], &b = given[0].vars[i];
    if (!a.same_bits(b))
      return fmt::format("{} differs after one step from the same state, kept and given",
                         asked.state[i].name);
  }
  return std::string();
}

}  // namespace twinrun
