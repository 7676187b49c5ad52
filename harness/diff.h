// Two runs or two checkpoints: where they part, by how much.
//
//   auto d = diff_files("A.h5", "B.h5");      // both runs, or both checkpoints
//   Of two checkpoints only tensors whose digests differ are read.
//   d->same;  d->first_step;  d->tensors[0].name;
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoints/run.h"
#include "program/base/result.h"

namespace twinrun {

struct TensorDiff {
  std::string name;
  std::string types;  // "f32[10]" or "f32[10] against f32[12]" or "only in A"
  int64_t elements = 0, different = 0;
  int64_t max_ulps = 0;
  double max_abs = 0, relative = 0;  // |a - b| / |b|, Euclidean
  int64_t nans = 0;                  // elements NaN on one side only
  std::string first;                 // index of the first differing element with both values
};

struct Diff {
  std::string kind;                   // "run" | "checkpoint"
  bool same = true;                   // contents; engines and environments may differ
  std::optional<int64_t> first_step;  // runs: the first step after which states differ
  std::optional<int64_t> first_loss;  // runs: the first step whose loss differs
  double max_loss_gap = 0;
  int64_t steps_a = 0, steps_b = 0;
  std::optional<double> eval_loss_a, eval_loss_b, eval_accuracy_a, eval_accuracy_b;
  std::vector<TensorDiff> tensors;  // those that differ, largest relative distance first
  int64_t tensors_compared = 0;
  int64_t tensors_unread = 0;      // of these: the digests in the files are equal
  std::vector<std::string> notes;  // other scenario, other contract, missing steps
};

// verify: read all tensors and check them against their digests.
Result<Diff> diff_files(const std::string& a, const std::string& b, bool verify = false);
Diff diff_checkpoints(const Checkpoint& a, const Checkpoint& b);
Diff diff_runs(const RunFile& a, const RunFile& b);

}  // namespace twinrun
