// Which nodes of a TensorFlow graph run on the TPU. Where the graph says so (it was built for TPUs:
// _tpu_replicate, TPUReplicate, TPUPartitionedCall), those; else what the outputs of its signatures
// need and the functions that a SavedModel keeps; in a graph without signatures, all nodes. Saving,
// restoring, input pipelines and what is marked _xla_outside_compilation run on the host.
//
//   const TfStep step = tf_step(graph);
//   step.bodies[0].on_tpu[3];     // whether the fourth node does
#pragma once

#include <span>

#include "harness/check/tf_graph.h"

namespace twinrun {

// The graph itself (its name is ""), or one of its functions.
struct TfBody {
  std::string name;  // as the user called it
  std::span<const TfNode> nodes;
  const TfFunction* function = nullptr;
  std::vector<bool> on_tpu;   // per node
  bool called_first = false;  // by the user, not by another node
};

struct TfStep {
  bool marked = false;  // the graph says what runs on the TPU
  std::vector<TfBody> bodies;
};

// `graph` must outlive the result.
TfStep tf_step(const TfGraph& graph);

// The name of the node that an input is of: "^read", "x:1" and, in a function, "x:out:0" are of
// read and x.
std::string_view node_of(std::string_view input);
// Whether the host runs this op, beside the step, whatever device trains.
bool beside_the_step(std::string_view op);

}  // namespace twinrun
