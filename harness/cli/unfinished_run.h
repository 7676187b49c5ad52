// What `train` keeps on disk while it runs, FILE.checkpoint.h5: the run so far, with its losses and
// its last periodic checkpoint; what that file was at the checkpoint of step N, before a later one
// replaced it, stays as FILE.checkpoint.h5.N. A run that was killed goes on from them, to the file
// that it would have written.
#pragma once

#include <functional>
#include <future>
#include <optional>
#include <string>

#include "checkpoints/run.h"

namespace twinrun::cli {

std::string unfinished_path(const std::string& run_path);

// The run in `path`, with the earlier checkpoints beside it if it is unfinished.
Result<RunFile> read_with_earlier(const std::string& path);
// Whether the state of a checkpoint is one that the run had, at the same step after its first one.
bool went_through(const RunFile& run, const Checkpoint& checkpoint);
// Gives the run those of the checkpoints that it went through.
void add_earlier(std::vector<Checkpoint> checkpoints, RunFile& run);

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
  // `step`: that of the last checkpoint of an unfinished run that goes on.
  explicit UnfinishedWriter(const std::string& run_path, std::optional<int64_t> step)
      : path_(unfinished_path(run_path)), written_(step.value_or(-1)) {}
  ~UnfinishedWriter() { finish(); }
  void write(RunFile so_far);  // which has at least one checkpoint
  void finish();
  // The run is complete elsewhere: removes the files.
  void remove();

 private:
  std::string path_;
  int64_t written_;  // the step of the last checkpoint in the file; -1: none of this run
  std::future<Status> pending_;
};

}  // namespace twinrun::cli
