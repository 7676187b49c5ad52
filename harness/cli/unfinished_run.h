// What `train` keeps on disk while it runs, FILE.checkpoint.h5: the run so far, with its losses and
// its last periodic checkpoint. A run that was killed goes on from it.
#pragma once

#include <functional>
#include <future>
#include <optional>
#include <string>

#include "checkpoints/run.h"

namespace twinrun::cli {

std::string unfinished_path(const std::string& run_path);

// The unfinished run that an earlier `train -o run_path` left, or nullopt if there is none.
// `restart`: it is given up. `fits` says why a run cannot be continued, or "". Errors: the file is
// no unfinished run, or one that cannot be continued; nothing is lost of either without `restart`.
Result<std::optional<RunFile>> left_unfinished(
    const std::string& run_path, bool restart,
    const std::function<std::string(const RunFile&)>& fits);

// Writes in the background while training goes on, one file at a time, because HDF5 may be used by
// one thread only. What cannot be written is said, and tried again with the next checkpoint: a full
// disk does not end a run. The tensors being written do not change: the engine updates in place only
// tensors that have no other owner.
class UnfinishedWriter {
 public:
  explicit UnfinishedWriter(const std::string& run_path) : path_(unfinished_path(run_path)) {}
  ~UnfinishedWriter() { finish(); }
  void write(RunFile so_far);  // of its checkpoints, at least one, the last is kept
  void finish();
  // The run is complete elsewhere: removes the file.
  void remove();

 private:
  std::string path_;
  std::future<Status> pending_;
};

}  // namespace twinrun::cli
