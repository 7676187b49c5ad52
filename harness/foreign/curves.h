// Curves from what people have: our run files, TensorBoard's event files, CSV, JSON lines.
//
//   TWINRUN_ASSIGN(CurveFile f, read_curve("train.csv", ""));          // "": the loss, under any of its usual names
//   f.curve.steps;  f.notes;                                           // "no column of steps: rows are counted from 0"
#pragma once

#include "checkpoints/run.h"
#include "harness/foreign/curve.h"

namespace twinrun {

// loss, loss_replica0, learning_rate, gradient_norm per step; held_out/loss and held_out/accuracy, after so many steps, where something was
// held out. Steps are those of the run.
std::vector<Curve> curves_of(const RunFile& run);

struct CurveFile {
  Curve curve;
  std::vector<std::string> notes;  // what was assumed, what was replaced
};

// Can read_curve read it: by what it is (a run file, a folder of event files) or by its name (.csv, .tsv, .jsonl, .ndjson, .json).
bool is_curve_path(const std::string& path);

// `column`: the title, key or tag; "": the loss. CSV: a line of titles, then numbers between commas, semicolons or tabs; steps in a
// column `step` (also global_step, iteration, iter, epoch), else rows are counted. JSON lines: an object a line. An empty cell, null and a line
// without the key have no value. Of values of one step the last counts.
// Errors name file, line and column, what was found and what is allowed; for an unknown column the nearest.
Result<CurveFile> read_curve(const std::string& path, const std::string& column);

}  // namespace twinrun
