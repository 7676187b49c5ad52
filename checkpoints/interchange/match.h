// Matches the arrays of a foreign weights file to our tensors and makes a checkpoint of them; and
// the other way round. A tensor is matched by, in this order: the user's map; the same name, where
// "." and "/" are equal and Keras's ":0" is ignored; a Keras layer of the same name; a Keras
// layer's position, which in legacy files is counted among all layers with weights and in Keras 3
// among those of its class.
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

// What matching needs to know of our model. A tensor's layer is its name up to the last '/'.
struct ModelOutline {
  std::vector<std::string> names;              // of all state variables, in the program's order
  std::map<std::string, std::string> classes;  // Keras's class of a layer in snake case: "conv2d"
  std::map<std::string, Dims> keras_dims;      // Keras's shape of a tensor, where it is not ours
};

struct Conversion {
  struct Row {
    std::string ours, theirs;
    std::string their_type, our_type;  // "float64[3,2]", "f32[3,2]"
    std::string how;                   // the rule by which they were matched
    std::string change;  // "float64 to float32, nearest; transposed [1,0]"; "" for none
  };
  std::vector<Row> rows;
  // Slots and counters of ours that the file lacks; they keep their initial values.
  std::vector<std::string> initial;
  struct Unused {
    std::string theirs, nearest;  // nearest: the most similar name of ours
  };
  std::vector<Unused> unused;      // arrays of the file that matched no tensor
  std::vector<std::string> notes;  // what was not converted or not understood
};

// `initial`: a checkpoint of the model; its tensors give the expected names and types, and the
// values of whatever the file lacks. Parameters or statistics that are not found are an error that
// lists them; one whose shape differs is an error, too.
Result<Checkpoint> import_weights(Checkpoint initial, const ModelOutline& outline,
                                  ForeignWeights theirs, const NameMap& map,
                                  const std::string& where, Conversion& report);

// Exports all tensors, or for Keras formats the parameters and statistics of the layers. Of a
// tensor with a replica axis, replica 0 is exported.
Result<ForeignWeights> export_weights(const Checkpoint& checkpoint, const ModelOutline& outline,
                                      WeightsFormat format, const NameMap& map, Conversion& report);

}  // namespace twinrun
