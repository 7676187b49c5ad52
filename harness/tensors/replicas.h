// A checkpoint in which cores differ, core by core: what each holds, and how far that is from core
// 0. Cores differ where running statistics are each core's own, or where gradients are not reduced.
//
//   for (const ReplicaRow& row : replicas_of(checkpoint)) row.core, row.digest, row.distance;
//   value_of_replica(checkpoint.tensors.at("dense1/kernel"), 3);      // core 3's kernel
#pragma once

#include <string>
#include <vector>

#include "checkpoints/checkpoint.h"

namespace twinrun {

struct ReplicaTensor {
  std::string name;
  std::string digest;   // of this core's value
  double distance = 0;  // |x - x0| / |x0|, x0: core 0's; the size of x - x0 where x0 is 0
};

struct ReplicaRow {
  int64_t core = 0;
  std::string digest;                  // of all its tensors, in the order of their names
  double distance = 0;                 // of all tensors together that differ between cores
  std::vector<ReplicaTensor> tensors;  // those that differ between cores
};

// More than any machine has; a file that says more is not ours.
inline constexpr int64_t kMaxReplicas = 4096;

// One row per core, for the first kMaxReplicas; empty where all cores hold the same.
std::vector<ReplicaRow> replicas_of(const Checkpoint& checkpoint);

// What one core holds of a tensor. A core that the tensor does not have gets the last one's.
Tensor value_of_replica(const CheckpointTensor& tensor, int64_t core);

}  // namespace twinrun
