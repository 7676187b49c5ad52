// Weights between twinrun's checkpoints and other frameworks' files: `twinrun convert`.
// foreign file -> checkpoints/interchange -> checkpoint of a scenario, or back; docs/interchange.md.
//
//   auto done = convert({.in = "w.h5", .out = "init.h5", .scenario = scenario});
//   done->conversion.rows;                              // what went where
//   train --init init.h5 begins from it
#pragma once

#include <optional>
#include <string>

#include "checkpoints/interchange/match.h"
#include "scenarios/scenario.h"

namespace twinrun {

struct ConvertOptions {
  std::string in, out;
  std::optional<Scenario> scenario;     // needed where a model must say what its weights are
  std::optional<WeightsFormat> format;  // of `out`; else by its name
  std::optional<std::string> map;       // file: name_map.h
  std::optional<int64_t> step;          // training steps done, of a checkpoint that is written
};

struct Converted {
  std::string from, to;  // "keras3", "twinrun", "twinrun run"
  Conversion conversion;
  std::optional<Checkpoint> checkpoint;  // that was written
};

// Reads all, checks all, then writes `out` atomically: an error leaves what was there.
Result<Converted> convert(const ConvertOptions& options);

// The checkpoint of a checkpoint file, or the last one of a run file; `kind` becomes which of the two.
Result<Checkpoint> read_ours(const std::string& path, std::string& kind);
// All of the checkpoint's names; for Keras formats in the order of its model, which is that of the checkpoint's scenario or, if there is one,
// of options.scenario. options.in is what errors name.
Result<ModelOutline> outline_of(const Checkpoint& checkpoint, const ConvertOptions& options,
                                WeightsFormat format);

}  // namespace twinrun
