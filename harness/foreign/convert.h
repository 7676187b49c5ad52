// Converts weights between twinrun's checkpoints and other frameworks' files: `twinrun convert`.
// Foreign file -> checkpoints/interchange -> checkpoint of a scenario, or back;
// docs/reference/data.md.
//
//   auto done = convert({.in = "w.h5", .out = "init.h5", .scenario = scenario});
//   done->conversion.rows;                              // which array became which
//   // train --init init.h5 starts from it
#pragma once

#include <optional>
#include <string>

#include "checkpoints/interchange/match.h"
#include "scenarios/scenario.h"

namespace twinrun {

struct ConvertOptions {
  std::string in, out;
  std::optional<Scenario> scenario;  // needed where a model must define the meaning of the weights
  std::optional<WeightsFormat> format;  // of `out`; if unset, derived from its name
  std::optional<std::string> map;       // path of a map file: name_map.h
  std::optional<int64_t> step;          // training steps done, recorded in a written checkpoint
};

struct Converted {
  std::string from, to;  // "keras3", "twinrun", "twinrun run"
  Conversion conversion;
  std::optional<Checkpoint> checkpoint;  // the one that was written
};

// Reads and checks everything, then writes `out` atomically: after an error an existing file is
// unchanged.
Result<Converted> convert(const ConvertOptions& options);

// Reads a checkpoint file, or the last checkpoint of a run file; sets `kind` to which of the two it
// is.
Result<Checkpoint> read_ours(const std::string& path, std::string& kind);
// All of the checkpoint's names. For Keras formats they are in the order of the model of
// options.scenario, or of the checkpoint's own scenario if that is not set. Errors name options.in.
Result<ModelOutline> outline_of(const Checkpoint& checkpoint, const ConvertOptions& options,
                                WeightsFormat format);

}  // namespace twinrun
