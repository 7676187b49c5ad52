// Writes a training step as StableHLO, with its arguments and results.
#include "harness/foreign/export_step.h"

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "backends/exec/arrays.h"
#include "backends/random_feed.h"
#include "backends/registry.h"
#include "checkpoints/container/atomic_file.h"
#include "checkpoints/container/safetensors.h"
#include "harness/experiment/engines.h"
#include "harness/run/one_step.h"
#include "program/text/stablehlo.h"

namespace twinrun {
namespace {

// Keeps the values of all ops.
class KeepValues : public TraceSink {
 public:
  void on_op(const OpEvent& event) override {
    values[event.id].assign(event.outputs.begin(), event.outputs.end());
  }
  std::map<ValueId, std::vector<Tensor>> values;
};

nlohmann::ordered_json listed(const std::vector<StableHlo::Value>& values) {
  auto list = nlohmann::ordered_json::array();
  for (const StableHlo::Value& v : values)
    list.push_back({{"name", v.name}, {"dtype", to_string(v.type.dtype)}, {"shape", v.type.dims}});
  return list;
}

std::vector<Tensor> of_replicas(const States& states, size_t var) {
  std::vector<Tensor> out;
  for (const ReplicaState& replica : states) out.push_back(replica.vars[var]);
  return out;
}

}  // namespace

Result<ExportedStep> export_step(const Experiment& e, const Program& program,
                                 const ExportOptions& options) {
  const BackendOptions o = backend_options(e.scenario, options.threads);
  const std::string precision = stablehlo_precision(e.scenario.tpu.precision);
  StableHlo module;
  try {
    module = to_stablehlo(program, {.precision = precision, .values = options.values});
  } catch (const GraphError& error) {
    return Error{error.what(), "export", ""};
  }

  // Run the first step on the reference.
  TWINRUN_ASSIGN(const auto cpu, make_backend("cpu", o));
  TWINRUN_ASSIGN(const auto engine, cpu->prepare(program));
  const States before = initial_states(e, program);
  StepFeed feed(e, program);
  TWINRUN_ASSIGN(const StepInputs inputs, feed.inputs(0));
  KeepValues kept;
  States after = before;
  StepOutputs outputs;
  TWINRUN_RETURN_IF_ERROR(
      engine->step(0, after, inputs, outputs, options.values ? &kept : nullptr));
  RandomFeed random;
  TWINRUN_RETURN_IF_ERROR(random.prepare(program, options.threads));
  TWINRUN_ASSIGN(const auto drawn, random.draw(0, before, inputs));

  ArrayFile arguments, results;
  size_t at = 0;
  for (size_t i = 0; i < program.state.size(); ++i)
    exec::add_arrays(arguments, module.arguments[at++].name, of_replicas(before, i));
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    std::vector<Tensor> replicas;
    for (const auto& replica : inputs) replicas.push_back(replica[i]);
    exec::add_arrays(arguments, module.arguments[at++].name, replicas);
  }
  for (const auto& op : drawn) exec::add_arrays(arguments, module.arguments[at++].name, op);
  at = 0;
  for (size_t i = 0; i < program.state.size(); ++i) {
    if (program.state[i].next != kNoValue)
      exec::add_arrays(results, module.results[at++].name, of_replicas(after, i));
  }
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    std::vector<Tensor> replicas;
    for (const auto& replica : outputs) replicas.push_back(replica[i]);
    exec::add_arrays(results, module.results[at++].name, replicas);
  }
  for (; at < module.results.size(); ++at)
    exec::add_arrays(results, module.results[at].name, kept.values[module.results[at].id]);

  const nlohmann::ordered_json j = {{"schema", 1},
                                    {"scenario", e.scenario.name},
                                    {"scenario_digest", scenario_digest(e.scenario).hex()},
                                    {"program_digest", digest(program).hex()},
                                    {"cores", program.sharding.cores},
                                    {"batch", program.batch},
                                    {"precision", precision},
                                    {"arguments", listed(module.arguments)},
                                    {"results", listed(module.results)}};
  const std::filesystem::path folder(options.folder);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    return Error{"cannot create the folder: " + error.message(), options.folder,
                 "choose another with -o"};
  ExportedStep out;
  out.ops = static_cast<size_t>(program.graph.size());
  out.arguments = module.arguments.size();
  out.results = module.results.size();
  const auto path = [&](const char* name) {
    out.files.push_back((folder / name).string());
    return out.files.back();
  };
  TWINRUN_RETURN_IF_ERROR(write_file_atomically(path("step.mlir"), module.text));
  TWINRUN_RETURN_IF_ERROR(write_file_atomically(path("step.json"), j.dump(1) + "\n"));
  for (const auto& [name, file] : {std::pair{"arguments.safetensors", &arguments},
                                   std::pair{"results.safetensors", &results}}) {
    const std::string to = path(name);
    TWINRUN_ASSIGN(const std::vector<std::byte> bytes, to_safetensors(*file, to));
    TWINRUN_RETURN_IF_ERROR(write_file_atomically(to, bytes));
  }
  return out;
}

}  // namespace twinrun
