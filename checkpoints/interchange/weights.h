// Weights as other frameworks store them, between a file and a checkpoint: arrays under the file's
// own names and, where the format has layers, which arrays belong to which.
// On the data's path: foreign file -> container/ -> ForeignWeights -> match.h -> Checkpoint.
//
//   TWINRUN_ASSIGN(ForeignWeights theirs, read_foreign_weights("w.h5"));
//   theirs.arrays[0].name;                                     // "conv1/kernel:0"
//   TWINRUN_ASSIGN(auto bytes, foreign_bytes(theirs, "out.npz"));  // then write_file_atomically
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoints/container/array.h"

namespace twinrun {

enum class WeightsFormat : uint8_t { kTwinrun, kNpy, kNpz, kSafetensors, kKerasH5, kKeras3 };

std::string_view to_string(WeightsFormat format);  // "twinrun", ..., "keras_h5", "keras3"
Result<WeightsFormat> parse_weights_format(std::string_view name);
std::vector<std::string> weights_format_names();
// By the ending: .npy .npz .safetensors, .weights.h5 is Keras 3; .h5 alone could be three things.
std::optional<WeightsFormat> format_of_name(std::string_view path);

// A layer of a Keras file.
struct ForeignLayer {
  std::string name;            // the user's; "" where the file does not say
  std::string kind;            // Keras 3: the class in snake case ("conv2d"); "" in legacy files
  std::vector<size_t> arrays;  // indices into ForeignWeights::arrays, in the layer's order
};

struct ForeignWeights {
  WeightsFormat format = WeightsFormat::kNpz;
  std::vector<NamedArray> arrays;
  std::vector<ForeignLayer> layers;   // in the model's order; Keras 3: of one kind
  std::vector<NamedArray> optimizer;  // Keras: the optimizer's variables, in its order
  std::string optimizer_name;         // Keras 3: "adam" and so on, unless the user named it
  std::optional<int64_t> iterations;  // of the optimizer: steps done
  std::map<std::string, std::string> metadata;
  std::vector<std::string> ignored;  // what else the file holds
};

// Tells the format by content. A twinrun file is an error: read_checkpoint reads those.
Result<ForeignWeights> read_foreign_weights(const std::string& path);
// The file's content; equal weights make equal bytes. Keras formats need `layers`.
Result<std::vector<std::byte>> foreign_bytes(const ForeignWeights& weights,
                                             const std::string& where);

// Whether an HDF5 file's root says that it is one of ours.
Result<bool> is_twinrun_file(const std::string& path);

}  // namespace twinrun
