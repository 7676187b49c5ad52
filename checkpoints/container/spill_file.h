// Tensors that are kept for later in a file instead of in memory: periodic checkpoints of a long
// run, which are only needed when the run is written. The file has no name, so nothing is left of
// it when the process ends, whatever way it ends.
//
//   SpillFile spill("runs");                  // the folder; nothing is created yet
//   tensor = spill.keep(tensor);              // the same elements, in the file if it has room
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "checkpoints/container/open_file.h"
#include "program/base/tensor.h"

namespace twinrun {

class SpillFile {
 public:
  explicit SpillFile(std::string folder) : folder_(std::move(folder)) {}

  // The elements are written to the file and read from there through a mapping, whose pages the
  // system drops and reads again as it needs memory. They must not be changed. Returns `tensor`
  // itself if it is small, or the file cannot be created or has no room.
  Tensor keep(const Tensor& tensor);

 private:
  std::string folder_;
  Descriptor file_{-1};
  bool failed_ = false;
  uint64_t end_ = 0;
};

}  // namespace twinrun
