// Models the time that the host of a TPU needs to prepare a batch.
#include "harness/profile/input_model.h"

#include <algorithm>

#include "device/machine.h"

namespace twinrun {
namespace {

// Bytes of the whole batch, in the form that the cores get.
double fed_bytes(const Program& step) {
  double bytes = 0;
  for (const Input& input : step.inputs) {
    if (input.per_core) bytes += static_cast<double>(step.graph.type(input.id).bytes());
  }
  return bytes * step.sharding.cores;
}

bool from_files(const std::string& source) {
  return source != "digits" && source != "images32" && source != "text_synthetic" &&
         source != "phrases";
}

// Files hold these sources as bytes, which are converted to floats.
bool stored_as_bytes(const DataSpec& data) {
  return data.source == "idx" || data.source == "cifar10" || data.source == "text" ||
         (data.source == "tfrecord" && data.shape.size() >= 2);
}

}  // namespace

InputAnalysis modelled_input(const Scenario& scenario, const Program& step) {
  const double fed = fed_bytes(step);
  const int cores = step.sharding.cores;
  const int chips = (cores + tpu::kCoresPerChip - 1) / tpu::kCoresPerChip;
  InputAnalysis input;
  const bool files = from_files(scenario.data.source), ahead = scenario.data.prefetch > 0;
  const double stored = stored_as_bytes(scenario.data) ? fed / 4 : fed;
  // A cache in memory reads files only in the first epoch; a cache in a file holds decoded samples.
  const double read = !files || scenario.data.cache == "memory" ? 0
                      : scenario.data.cache == "none"           ? stored
                                                                : fed;
  if (read > 0)
    input.stages.push_back(
        {ahead ? "read ahead" : "read on demand", "bytes out of files", read / kReadRate, read});
  input.stages.push_back(
      {"preprocess", files ? "decode, cast, choose and copy samples" : "draw samples and copy them",
       fed / kPreprocessRate / static_cast<double>(scenario.data.parallel_calls), fed});
  input.stages.push_back(
      {"enqueue", "from the host to each chip", fed / chips / tpu::kHostBandwidth, fed});
  for (const InputStage& stage : input.stages) input.host += stage.seconds;
  input.overlapped = ahead;
  return input;
}

}  // namespace twinrun
