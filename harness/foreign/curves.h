// Reads curves from our run files, TensorBoard's event files, CSV and JSON lines.
//
//   TWINRUN_ASSIGN(CurveFile f, read_curve("train.csv", ""));  // "": the loss, by any usual name
//   f.curve.steps;  f.notes;                    // "no column of steps: rows are counted from 0"
#pragma once

#include "checkpoints/run.h"
#include "harness/foreign/curve.h"

namespace twinrun {

// Per step: loss, loss_replica0, learning_rate, gradient_norm. After the evaluated steps:
// held_out/loss and held_out/accuracy, where something was held out. Step numbers are the run's.
std::vector<Curve> curves_of(const RunFile& run);

struct CurveFile {
  Curve curve;
  std::vector<std::string> notes;  // assumptions, and values that were replaced
};

// Whether a path names a curve other than a run file: a name that ends in .csv, .tsv, .jsonl,
// .ndjson or .json, an event file, or a folder of event files.
bool is_curve_path(const std::string& path);

// `column`: the title, key or tag; "": the loss. CSV: a line of titles, then numbers separated by
// commas, semicolons or tabs; steps in a column `step` (also steps, global_step, iteration, iter,
// epoch), otherwise rows are counted. JSON lines: one object per line. An empty cell, null and a
// line without the key have no value. The last of several values for one step counts. Any other
// path is read as a run file. Errors name file, line and column, what was found and what is
// allowed; for an unknown column also the nearest known one.
Result<CurveFile> read_curve(const std::string& path, const std::string& column);

}  // namespace twinrun
