// Compares the cores of a checkpoint.
#include "harness/tensors/replicas.h"

#include <algorithm>
#include <cmath>

#include "harness/experiment/experiment.h"
#include "harness/tensors/distance.h"

namespace twinrun {
namespace {

int64_t cores_of(const CheckpointTensor& t) {
  return t.replica_axis && !t.value.dims().empty() ? t.value.dims()[0] : 0;
}

double distance_from(const std::vector<double>& x, const std::vector<double>& first) {
  RelativeDistance d;
  d.add(x, first);
  const double absolute = std::sqrt(squared_distance(x, first));
  const bool zero = std::ranges::all_of(first, [](double v) { return v == 0; });
  return zero ? absolute : d.value();
}

}  // namespace

Tensor value_of_replica(const CheckpointTensor& tensor, int64_t core) {
  const int64_t cores = cores_of(tensor);
  if (cores == 0) return tensor.value;
  core = std::clamp<int64_t>(core, 0, cores - 1);
  const Dims& dims = tensor.value.dims();
  return tensor.value.rows(core, core + 1).reshaped(Dims(dims.begin() + 1, dims.end()));
}

std::vector<ReplicaRow> replicas_of(const Checkpoint& checkpoint) {
  int64_t cores = 0;
  for (const auto& [name, tensor] : checkpoint.tensors)
    cores = std::max(cores, std::min(kMaxReplicas, cores_of(tensor)));
  std::vector<ReplicaRow> rows(static_cast<size_t>(cores));
  std::vector<DigestBuilder> digests(rows.size());
  std::vector<RelativeDistance> distances(rows.size());
  for (const auto& [name, tensor] : checkpoint.tensors) {
    const bool differs = cores_of(tensor) > 0;
    const Digest shared = differs ? Digest{} : digest(tensor.value);
    const std::vector<double> first =
        differs ? as_doubles(value_of_replica(tensor, 0)) : std::vector<double>{};
    for (size_t i = 0; i < rows.size(); ++i) {
      digests[i].add(name);
      if (!differs) {
        digests[i].add(shared);
        continue;
      }
      const Tensor own = value_of_replica(tensor, static_cast<int64_t>(i));
      const Digest of_own = digest(own);
      digests[i].add(of_own);
      const std::vector<double> values = as_doubles(own);
      distances[i].add(values, first);
      rows[i].tensors.push_back({name, of_own.hex(), distance_from(values, first)});
    }
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].core = static_cast<int64_t>(i);
    rows[i].digest = digests[i].finish().hex();
    rows[i].distance = distances[i].value();
  }
  return rows;
}

}  // namespace twinrun
