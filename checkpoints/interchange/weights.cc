// Detects the format of a weights file and passes it to its reader; writes each format.
#include "checkpoints/interchange/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include "checkpoints/container/hdf5_file.h"
#include "checkpoints/container/isolated.h"
#include "checkpoints/container/npy.h"
#include "checkpoints/container/safetensors.h"
#include "checkpoints/container/zip.h"
#include "checkpoints/interchange/keras.h"
#include "program/base/names.h"

namespace twinrun {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"twinrun",     "npy",      "npz",
                                                    "safetensors", "keras_h5", "keras3"};
constexpr std::string_view kHdf5Magic = "\x89HDF\r\n\x1a\n";
constexpr std::string_view kKerasWeights = "model.weights.h5";

bool begins_with(const std::vector<std::byte>& bytes, std::string_view magic) {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

Result<ForeignWeights> of_tree(Result<Hdf5Tree> tree, const std::string& path) {
  if (!tree) return tree.error();
  if (is_keras(*tree)) return from_keras(*std::move(tree), path);
  const auto* format = tree->texts("", "format");
  if (format != nullptr && format->size() == 1 && format->front().starts_with("twinrun ")) {
    return Error{fmt::format("is a file of twinrun's own ({})", format->front()), path, ""};
  }
  return Error{"is an HDF5 file without Keras's layers", path,
               "allowed: Keras weights (.h5, .weights.h5, .keras), .npz, .npy, .safetensors"};
}

ForeignWeights of_arrays(WeightsFormat format, ArrayFile file) {
  ForeignWeights out;
  out.format = format;
  out.arrays = std::move(file.arrays);
  out.metadata = std::move(file.metadata);
  out.ignored = std::move(file.ignored);
  return out;
}

// Reads a zip archive: .keras if it holds model.weights.h5, else .npz.
Result<ForeignWeights> of_zip(const std::vector<std::byte>& bytes, const std::string& path) {
  TWINRUN_ASSIGN(auto members, read_zip(bytes, path, [](const std::string& name) {
                   return name == kKerasWeights;
                 }));
  const auto weights = std::ranges::find(members, kKerasWeights, &ZipMember::name);
  if (weights == members.end()) {
    TWINRUN_ASSIGN(ArrayFile file, parse_npz(bytes, path));
    return of_arrays(WeightsFormat::kNpz, std::move(file));
  }
  const std::string where = fmt::format("{}:{}", path, kKerasWeights);
  TWINRUN_ASSIGN(ForeignWeights out, of_tree(parse_hdf5_tree(weights->bytes, where), where));
  for (const ZipMember& member : members) {
    if (member.read || member.name == "config.json" || member.name == "metadata.json") continue;
    out.ignored.push_back(fmt::format("member '{}'", member.name));
  }
  return out;
}

}  // namespace

std::string_view to_string(WeightsFormat format) { return kNames[static_cast<size_t>(format)]; }

std::vector<std::string> weights_format_names() { return {kNames.begin(), kNames.end()}; }

Result<WeightsFormat> parse_weights_format(std::string_view name) {
  const auto* it = std::ranges::find(kNames, name);
  if (it != kNames.end()) return static_cast<WeightsFormat>(it - kNames.begin());
  return Error{
      fmt::format("unknown format '{}' (known: {})", name, join(weights_format_names(), ", ")),
      "--to", did_you_mean(name, weights_format_names())};
}

std::optional<WeightsFormat> format_of_name(std::string_view path) {
  if (path.ends_with(".npy")) return WeightsFormat::kNpy;
  if (path.ends_with(".npz")) return WeightsFormat::kNpz;
  if (path.ends_with(".safetensors")) return WeightsFormat::kSafetensors;
  if (path.ends_with(".weights.h5")) return WeightsFormat::kKeras3;
  return std::nullopt;
}

namespace {

// Names are printed to terminals, where control characters can do harm.
bool printable(const std::string& text) {
  return std::ranges::none_of(
      text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; });
}

Result<ForeignWeights> read_unchecked(const std::string& path) {
  TWINRUN_ASSIGN(auto bytes, read_whole_file(path, kHdf5Magic.size()));
  if (begins_with(bytes, kHdf5Magic)) return of_tree(read_hdf5_tree(path), path);
  TWINRUN_ASSIGN(bytes, read_whole_file(path));
  if (begins_with(bytes, "PK")) return of_zip(bytes, path);
  if (begins_with(bytes, "\x93NUMPY")) {
    TWINRUN_ASSIGN(NamedArray array, read_npy(path));
    ArrayFile file;
    file.arrays.push_back(std::move(array));
    return of_arrays(WeightsFormat::kNpy, std::move(file));
  }
  if (bytes.size() > 8 && bytes[8] == std::byte{'{'}) {
    TWINRUN_ASSIGN(ArrayFile file, parse_safetensors(bytes, path));
    return of_arrays(WeightsFormat::kSafetensors, std::move(file));
  }
  return Error{"is not a weights file of a known format", path,
               "allowed: .npz, .npy, .safetensors, Keras .h5, .weights.h5 and .keras, and "
               "twinrun's checkpoints and runs"};
}

}  // namespace

Result<ForeignWeights> read_foreign_weights(const std::string& path) {
  TWINRUN_ASSIGN(ForeignWeights weights, read_unchecked(path));
  for (const auto* arrays : {&weights.arrays, &weights.optimizer}) {
    for (const NamedArray& array : *arrays) {
      if (printable(array.name)) continue;
      return Error{"holds an array whose name has control characters", path,
                   "do not trust this file"};
    }
  }
  for (std::string& what : weights.ignored) {
    std::ranges::replace_if(
        what, [](char c) { return !printable(std::string(1, c)); }, '?');
  }
  return weights;
}

Result<std::vector<std::byte>> foreign_bytes(const ForeignWeights& weights,
                                             const std::string& where) {
  switch (weights.format) {
    case WeightsFormat::kNpy:
      if (weights.arrays.size() == 1) return to_npy(weights.arrays[0], where);
      return Error{
          fmt::format("a .npy file holds one array; {} are to be written", weights.arrays.size()),
          where, "write .npz"};
    case WeightsFormat::kNpz: {
      auto arrays = weights.arrays;
      for (NamedArray& array : arrays) {
        if (array.type != ElementType::kBF16) continue;
        TWINRUN_ASSIGN(const Tensor wide, to_tensor(array, DType::kF32, where));
        array = to_array(array.name, wide);
      }
      return to_npz(arrays, where);
    }
    case WeightsFormat::kSafetensors:
      return to_safetensors({weights.arrays, weights.metadata, {}}, where);
    case WeightsFormat::kKerasH5:
    case WeightsFormat::kKeras3:
      return keras_bytes(weights, where);
    default:
      return Error{"a checkpoint is not a foreign format", where, ""};
  }
}

Result<bool> is_twinrun_file(const std::string& path) {
  TWINRUN_ASSIGN(const auto magic, read_whole_file(path, kHdf5Magic.size()));
  if (!begins_with(magic, kHdf5Magic)) return false;
  const auto format = [&]() -> Result<std::vector<std::byte>> {
    TWINRUN_ASSIGN(const Hdf5File file, Hdf5File::open(path));
    TWINRUN_ASSIGN(const Hdf5Group root, file.root());
    TWINRUN_ASSIGN(const bool named, root.has_attribute("format"));
    std::optional<std::vector<std::string>> texts;
    if (named) {
      TWINRUN_ASSIGN(texts, root.foreign_texts("format"));
    }
    const bool ours = texts && texts->size() == 1 && texts->front().starts_with("twinrun ");
    return std::vector<std::byte>{std::byte{ours}};
  };
  TWINRUN_ASSIGN(const auto answer, run_isolated(format, 0, path));
  return answer == std::vector<std::byte>{std::byte{1}};
}

}  // namespace twinrun
