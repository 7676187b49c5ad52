// Compares two runs, checkpoints, curves or weights: where they diverge, and by how much. It reads
// files and runs nothing; `twinrun diff` prints the result.
//
//   auto d = diff_files("A.h5", "B.h5");                               // two runs or checkpoints
//   auto d = diff_files("train.csv", "run.h5", false, {"loss", ""});   // two curves
//   d->same;  d->first_step;  d->tensors[0].name;
//
// Of two checkpoints, only tensors whose digests differ are read.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoints/run.h"
#include "harness/foreign/curve.h"
#include "program/base/result.h"

namespace twinrun {

struct TensorDiff {
  std::string name;
  std::string types;   // "f32[10]" or "f32[10] against f32[12]" or "only in A"
  bool paired = true;  // both sides have the same type; else no elements can be compared
  int64_t elements = 0, different = 0;
  int64_t max_ulps = 0;
  double max_abs = 0, relative = 0;  // |a - b| / |b|, Euclidean
  int64_t nans = 0;                  // differing elements that are NaN on at least one side
  std::string first;                 // index of the first differing element with both values
};

struct Diff {
  std::string kind;  // "run" | "checkpoint" | "curve" | "weights"
  bool same = true;  // the contents are the same; engines and environments may differ
  // Runs: whether their initial checkpoints are the same; nullopt if a file does not say.
  std::optional<bool> same_start;
  std::optional<int64_t> first_step;  // runs: the first step after which states differ
  std::optional<int64_t> first_loss;  // runs: the first step whose loss differs
  double max_loss_gap = 0;
  // For curves, first_loss is the first step at which the values differ; steps_a and steps_b are
  // the numbers of steps.
  std::string column_a, column_b;  // the columns that were compared
  int64_t steps_compared = 0;      // steps that both have
  double max_relative_gap = 0;     // |a - b| / |b|
  std::string first_values;        // at the first step that differs: "0.25 against 0.2501"
  int64_t steps_a = 0, steps_b = 0;
  std::optional<double> eval_loss_a, eval_loss_b, eval_accuracy_a, eval_accuracy_b;
  std::vector<TensorDiff> tensors;  // those that differ, largest relative distance first
  int64_t tensors_compared = 0;
  int64_t tensors_unread = 0;      // of these, not read: the digests in the files are equal
  std::vector<std::string> notes;  // other scenario, other contract, missing steps
};

// Which curve of each file is compared, as for read_curve (harness/foreign/curves.h). "": the loss.
struct Columns {
  std::string a, b;
};
// Compares two files: runs and checkpoints of twinrun, and curves (harness/foreign/curves.h) or
// weights (checkpoints/interchange) of other frameworks. A curve is compared with a curve or a run,
// weights with weights, a checkpoint or a run's last one. `verify`: read all tensors and check them
// against their digests. If a column is given, two runs are compared as curves.
Result<Diff> diff_files(const std::string& a, const std::string& b, bool verify = false,
                        const Columns& columns = {});
Diff diff_checkpoints(const Checkpoint& a, const Checkpoint& b);
Diff diff_runs(const RunFile& a, const RunFile& b);
// Compares by step number. If one curve holds binary32 numbers, the other's values are rounded to
// binary32 first, since text of nine digits says no more.
Diff diff_curves(const Curve& a, const Curve& b);

}  // namespace twinrun
