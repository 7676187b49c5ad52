// Writes the tensors of a checkpoint, core by core.
#include "harness/foreign/export_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "backends/exec/arrays.h"
#include "checkpoints/container/atomic_file.h"
#include "checkpoints/container/safetensors.h"

namespace twinrun {
namespace {

using Json = nlohmann::ordered_json;

std::string dumped(const Json& j) { return j.dump(1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

const Checkpoint* checkpoint_of_cores(const RunFile& run) {
  if (run.checkpoints.empty()) return nullptr;
  for (size_t i = run.checkpoints.size(); i-- > 0;) {
    const auto& tensors = run.checkpoints[i].tensors;
    if (std::ranges::any_of(tensors, [](const auto& t) { return t.second.replica_axis; }))
      return &run.checkpoints[i];
  }
  return &run.checkpoints.back();
}

Json replicas_json(const std::vector<ReplicaRow>& replicas) {
  Json all = Json::array();
  for (const ReplicaRow& row : replicas) {
    Json tensors = Json::object();
    for (const ReplicaTensor& t : row.tensors)
      tensors[t.name] = {{"digest", t.digest}, {"distance", t.distance}};
    all.push_back({{"core", row.core},
                   {"digest", row.digest},
                   {"distance", row.distance},
                   {"tensors", std::move(tensors)}});
  }
  return all;
}

Result<ExportedState> export_state(const std::string& file, const std::string& folder) {
  TWINRUN_ASSIGN(const std::string kind, file_kind(file));
  Checkpoint checkpoint;
  if (kind == "run") {
    TWINRUN_ASSIGN(const RunFile run, read_run(file));
    const Checkpoint* const found = checkpoint_of_cores(run);
    if (found == nullptr) return Error{"the run holds no checkpoint", file, "name another run"};
    checkpoint = *found;
  } else {
    TWINRUN_ASSIGN(checkpoint, read_checkpoint(file));
  }
  ExportedState out;
  out.tensors = checkpoint.tensors.size();
  out.replicas = replicas_of(checkpoint);
  ArrayFile arrays;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    std::vector<Tensor> values;
    const int64_t cores = tensor.replica_axis ? std::max<int64_t>(1, tensor.value.dims()[0]) : 1;
    if (cores > kMaxReplicas)
      return Error{
          fmt::format("'{}' has values of {} cores; allowed: up to {}", name, cores, kMaxReplicas),
          file, "no program has so many cores: the file is damaged, or not ours"};
    for (int64_t core = 0; core < cores; ++core) values.push_back(value_of_replica(tensor, core));
    exec::add_arrays(arrays, name, values);
  }
  const Json j = {{"schema", 1},
                  {"file", file},
                  {"step", checkpoint.step},
                  {"seed", checkpoint.seed},
                  {"cores", checkpoint.cores},
                  {"engine", checkpoint.engine},
                  {"scenario_digest", checkpoint.scenario_digest},
                  {"root_digest", checkpoint.root_digest().hex()},
                  {"replicas", replicas_json(out.replicas)}};
  const std::filesystem::path to(folder);
  std::error_code error;
  std::filesystem::create_directories(to, error);
  if (error)
    return Error{"cannot create the folder: " + error.message(), folder, "choose another with -o"};
  const auto path = [&](const char* name) {
    out.files.push_back((to / name).string());
    return out.files.back();
  };
  TWINRUN_RETURN_IF_ERROR(write_file_atomically(path("state.json"), dumped(j) + "\n"));
  const std::string values = path("state.safetensors");
  TWINRUN_ASSIGN(const std::vector<std::byte> bytes, to_safetensors(arrays, values));
  TWINRUN_RETURN_IF_ERROR(write_file_atomically(values, bytes));
  return out;
}

}  // namespace twinrun
