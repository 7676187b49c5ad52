// Weights as other frameworks store them: arrays under the file's own names and, where the format
// has layers, which arrays belong to which layer. On the data's path: foreign file -> container/ ->
// ForeignWeights -> match.h -> Checkpoint.
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
// By the ending: .npy, .npz, .safetensors, and .weights.h5 for Keras 3. Nothing for .h5 alone,
// which could be three formats.
std::optional<WeightsFormat> format_of_name(std::string_view path);

// A layer of a Keras file.
struct ForeignLayer {
  std::string name;            // given by the user; "" if the file does not have it
  std::string kind;            // Keras 3: the class in snake case ("conv2d"); "" in legacy files
  std::vector<size_t> arrays;  // indices into ForeignWeights::arrays, in the layer's order
};

struct ForeignWeights {
  WeightsFormat format = WeightsFormat::kNpz;
  std::vector<NamedArray> arrays;
  std::vector<ForeignLayer> layers;   // in the model's order; in Keras 3 within each kind only
  std::vector<NamedArray> optimizer;  // Keras: the optimizer's variables, in its order
  std::string optimizer_name;         // Keras 3: "adam" and so on, unless the user chose a name
  std::optional<int64_t> iterations;  // steps that the optimizer has done
  std::map<std::string, std::string> metadata;
  std::vector<std::string> ignored;  // other content of the file
};

// Detects the format by content. A file of twinrun's own is an error: read_checkpoint reads those.
Result<ForeignWeights> read_foreign_weights(const std::string& path);
// The bytes of a file in `weights.format`; equal weights make equal bytes. Keras formats need
// `layers`.
Result<std::vector<std::byte>> foreign_bytes(const ForeignWeights& weights,
                                             const std::string& where);

// Whether a file is HDF5 with a root attribute `format` that begins with "twinrun ".
Result<bool> is_twinrun_file(const std::string& path);

}  // namespace twinrun
