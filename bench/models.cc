// Prepares engines with random samples.
#include "bench/models.h"

#include <fmt/format.h>

#include <cstdlib>

#include "bench/bench.h"
#include "harness/experiment/engines.h"
#include "program/analysis/fusion.h"
#include "program/graph/liveness.h"
#include "scenarios/model.h"

namespace twinrun {
namespace {

// A tensor with leading dimension `batch`, filled with 0, 1, ..., end - 1 repeatedly.
Tensor counted(Dims dims, int64_t batch, int64_t end) {
  dims.insert(dims.begin(), batch);
  Tensor t = Tensor::empty({DType::kI32, dims});
  int64_t i = 0;
  for (int32_t& v : t.as<int32_t>()) v = static_cast<int32_t>(i++ % end);
  return t;
}

Batch random_batch(const SampleType& sample, int64_t batch) {
  Dims features = sample.features;
  features.insert(features.begin(), batch);
  return {.features = sample.dtype == DType::kI32
                          ? counted(sample.features, batch, sample.vocabulary)
                          : random_tensor({DType::kF32, features}, 1),
          .labels = counted(sample.labels, batch, sample.classes),
          .weights = {},
          .sample_ids = counted({}, batch, batch)};
}

}  // namespace

std::string Model::text() const { return fmt::format("{} b{}", name, batch); }

std::vector<Model> models() {
  const std::string own = TWINRUN_BENCH_DIR "/scenarios/";
  return {{"mnist_tutorial", "mnist_tutorial", 128},
          {"use_tpus", own + "use_tpus.toml", 200},
          {"mlp_bn", own + "mlp_bn.toml", 128},
          {"mlp_bn", own + "mlp_bn.toml", 1024},
          {"resnet20", "resnet20", 128},
          {"gpt", own + "gpt.toml", 16}};
}

void OurStep::run(TraceSink* sink) {
  if (!engine->step(step++, states, inputs, outputs, sink).ok()) std::abort();
}

Result<OurStep> prepare_step(const Model& model, const std::string& engine, int cores,
                             int threads) {
  TWINRUN_ASSIGN(Scenario scenario,
                 load_scenario(model.scenario, {{"train.batch", std::to_string(model.batch)},
                                                {"tpu.cores", std::to_string(cores)}}));
  return prepare_step(std::move(scenario), engine, threads);
}

Result<OurStep> prepare_step(Scenario scenario, const std::string& engine, int threads) {
  OurStep ours;
  ours.scenario = std::move(scenario);
  TWINRUN_ASSIGN(const SampleType sample, sample_on_paper(ours.scenario));
  TWINRUN_ASSIGN(const Experiment experiment, experiment_on_paper(ours.scenario));
  ours.program =
      ours.scenario.tpu.cores > 1 ? experiment.sharded(experiment.sharding) : experiment.whole();
  TWINRUN_ASSIGN(ours.backend, make_engine(engine, ours.scenario, {.threads = threads}));
  TWINRUN_ASSIGN(ours.engine, ours.backend->prepare(ours.program));
  ours.states = initial_states(ours.program, ours.scenario.seed);
  TWINRUN_ASSIGN(ours.inputs, step_inputs(ours.program, ours.scenario,
                                          random_batch(sample, ours.scenario.train.batch), 0));
  return ours;
}

double planned_bytes(const Program& program) {
  const std::vector<bool> constant = constant_values(program);
  const FusionPlan plan = plan_fusion(program, constant);
  const Graph& graph = program.graph;
  double bytes = 0;
  const auto add = [&](ValueId id) { bytes += static_cast<double>(graph.type(id).bytes()); };
  for (const FusionUnit& unit : plan.order) {
    if (unit.group < 0 &&
        (graph.op(unit.op).kind == OpKind::kReshape || constant[static_cast<size_t>(unit.op)]))
      continue;
    for (ValueId id : plan.read(unit, graph)) add(id);
    for (ValueId id : plan.written(unit)) add(id);
  }
  return bytes;
}

}  // namespace twinrun
