// Exports the tensors of a checkpoint, or of a checkpoint of a run, with one array for each core
// where cores differ.
//
//   TWINRUN_ASSIGN(const ExportedState state, export_state("T.h5", "out"));
//
// state.safetensors   "dense1/kernel", or "dense1/kernel@0", "dense1/kernel@1", .. where cores
//                     differ: the layout of docs/reference/engine-protocol.md
// state.json          step, cores, and of each core its digest and distance from core 0; schema 1
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "checkpoints/run.h"
#include "harness/tensors/replicas.h"

namespace twinrun {

struct ExportedState {
  std::vector<std::string> files;
  size_t tensors = 0;                // of the checkpoint
  std::vector<ReplicaRow> replicas;  // empty where all cores hold the same
};

// Of a run the last checkpoint in which cores differ, else the last: at the end of a loop all cores
// get core 0's variables (harness/run/loop.h). nullptr: the run has none.
const Checkpoint* checkpoint_of_cores(const RunFile& run);

// Errors: the file is neither, or a run without a checkpoint; a folder or file that cannot be
// written.
Result<ExportedState> export_state(const std::string& file, const std::string& folder);

// The rows as the `replicas` of a JSON document: core, digest, distance, tensors.
nlohmann::ordered_json replicas_json(const std::vector<ReplicaRow>& replicas);

}  // namespace twinrun
