#include "harness/doctor.h"

#include <fmt/format.h>

#include "backends/kernels/kernels.h"
#include "harness/engines.h"
#include "harness/environment.h"
#include "harness/run.h"

namespace twinrun {
namespace {

// y = all_reduce(x . w) on 8 cores with small integers: every precision holds it exactly.
Result<DoctorRow> known_answer(Backend& backend) {
  constexpr int kCores = 8;
  Program p;
  p.sharding.cores = kCores;
  p.batch = 4;
  GraphBuilder b(p.graph);
  const ValueId x = b.parameter("images", {DType::kF32, {4, 16}});
  const ValueId w = b.parameter("w", {DType::kF32, {16, 3}});
  p.inputs = {{"images", x, true}};
  StateVar var;
  var.name = "w";
  var.type = {DType::kF32, {16, 3}};
  var.id = w;
  p.state = {var};
  p.outputs = {{"y", b.all_reduce(b.dot(x, w))}};
  TWINRUN_ASSIGN(const auto engine, backend.prepare(p));
  Tensor weights = Tensor::empty({DType::kF32, {16, 3}});
  for (int i = 0; i < 48; ++i)
    weights.as<float>()[static_cast<size_t>(i)] = static_cast<float>(i % 7 - 3);
  States states(kCores, ReplicaState{{weights}});
  StepInputs inputs(kCores);
  std::vector<int> expected(12, 0);
  for (int core = 0; core < kCores; ++core) {
    Tensor t = Tensor::empty({DType::kF32, {4, 16}});
    for (int i = 0; i < 64; ++i)
      t.as<float>()[static_cast<size_t>(i)] = static_cast<float>((i * 5 + core) % 11 - 5);
    for (int r = 0; r < 4; ++r) {
      for (int c = 0; c < 3; ++c) {
        for (int k = 0; k < 16; ++k)
          expected[static_cast<size_t>(r * 3 + c)] +=
              (((r * 16 + k) * 5 + core) % 11 - 5) * ((k * 3 + c) % 7 - 3);
      }
    }
    inputs[static_cast<size_t>(core)] = {t};
  }
  StepOutputs outputs;
  TWINRUN_RETURN_IF_ERROR(engine->step(0, states, inputs, outputs));
  int wrong = 0;
  for (int core = 0; core < kCores; ++core) {
    const std::vector<double> y = as_doubles(outputs[static_cast<size_t>(core)][0]);
    for (size_t i = 0; i < 12; ++i) wrong += y[i] != expected[i];
  }
  return DoctorRow{"known answer: dot and all-reduce, 8 cores", wrong == 0,
                   fmt::format("{} of 96 numbers wrong", wrong)};
}

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

}  // namespace

Result<std::vector<DoctorRow>> doctor(const std::string& engine) {
  TWINRUN_ASSIGN(const Scenario scenario, load_scenario("digits_mlp", {}));
  TWINRUN_ASSIGN(const auto backend, make_engine(engine, scenario, BackendOptions{}));
  std::vector<DoctorRow> rows;
  if (is_foreign_engine(engine)) rows.push_back({"engine", true, backend->capabilities().settings});
  for (const auto& [key, value] : environment()) rows.push_back({key, true, value});
  const std::string_view refusal = amx_refusal();
  rows.push_back(
      {"amx tiles", true, refusal.empty() ? "used" : fmt::format("not used: {}", refusal)});
  TWINRUN_ASSIGN(DoctorRow known, known_answer(*backend));
  rows.push_back(std::move(known));
  TWINRUN_ASSIGN(DoctorRow same, same_bits(engine));
  rows.push_back(std::move(same));
  return rows;
}

}  // namespace twinrun
