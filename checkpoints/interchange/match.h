// Which of their arrays is which tensor of ours, and the checkpoint that comes of it; and the other
// way. Names are matched by, in this order: the user's map; the same name, where "." for "/" and
// Keras's ":0" do not count; a Keras layer of the same name; a Keras layer's position: legacy files
// among all layers with weights, Keras 3 among those of its class.
//
//   Conversion report;
//   TWINRUN_ASSIGN(Checkpoint c, import_weights(initial, outline, theirs, map, path, report));
//   TWINRUN_ASSIGN(ForeignWeights w, export_weights(c, outline, WeightsFormat::kNpz, map, report));
//   report.rows[0].how;                                       // "layer name"
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoints/checkpoint.h"
#include "checkpoints/interchange/name_map.h"
#include "checkpoints/interchange/weights.h"

namespace twinrun {

// What a model is to its weights. Layers are what stands before the last '/' of a name.
struct ModelOutline {
  std::vector<std::string> names;              // of all state, in the program's order
  std::map<std::string, std::string> classes;  // Keras's class of a layer in snake case: "conv2d"
  std::map<std::string, Dims> keras_dims;      // where Keras gives the same elements another shape
};

struct Conversion {
  struct Row {
    std::string ours, theirs;
    std::string their_type, our_type;  // "float64[3,2]", "f32[3,2]"
    std::string how;                   // by which rule they were matched
    std::string change;  // "float64 to float32, nearest; transposed [1,0]"; "" for none
  };
  std::vector<Row> rows;
  // Ours that theirs lack and that keep the initial value: slots and counters.
  std::vector<std::string> initial;
  struct Unused {
    std::string theirs, nearest;  // the nearest of ours
  };
  std::vector<Unused> unused;
  std::vector<std::string> notes;  // what was not carried or not understood
};

// `initial`: a checkpoint of the model whose tensors say which there are, and of which type. A
// parameter or statistic that is not found, or whose shape differs, is an error that lists them.
Result<Checkpoint> import_weights(Checkpoint initial, const ModelOutline& outline,
                                  ForeignWeights theirs, const NameMap& map,
                                  const std::string& where, Conversion& report);

// All tensors, or for Keras those of the layers. Of tensors with a replica axis: replica 0.
Result<ForeignWeights> export_weights(const Checkpoint& checkpoint, const ModelOutline& outline,
                                      WeightsFormat format, const NameMap& map, Conversion& report);

}  // namespace twinrun
