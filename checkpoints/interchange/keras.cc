// Reads and writes the layers of Keras's legacy and Keras 3 weight files.
#include "checkpoints/interchange/keras.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <tuple>

#include "program/base/names.h"

namespace twinrun {
namespace {

// Written as attributes: Keras's loaders decide by them whether to convert layouts.
constexpr std::string_view kBackend = "tensorflow", kKerasVersion = "2.15.0";
constexpr size_t kAttributeBytes = 64512;  // Keras's HDF5_OBJECT_HEADER_LIMIT
constexpr const char* kKnownAttributes[] = {"layer_names",   "weight_names", "backend",
                                            "keras_version", "model_config", "training_config",
                                            "name",          "dtype"};

// Reads a list attribute. Keras splits a long one into name0, name1, ...
std::optional<std::vector<std::string>> list_of(const Hdf5Tree& tree, const std::string& path,
                                                const std::string& name) {
  if (const auto* whole = tree.texts(path, name)) return *whole;
  std::optional<std::vector<std::string>> all;
  for (int i = 0;; ++i) {
    const auto* part = tree.texts(path, name + std::to_string(i));
    if (part == nullptr) return all;
    if (!all) all.emplace();
    all->insert(all->end(), part->begin(), part->end());
  }
}

std::string below(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "/" + name;
}

void report_attributes(const Hdf5Tree& tree, ForeignWeights& out) {
  for (const auto& [path, attributes] : tree.attributes) {
    for (const auto& [name, values] : attributes) {
      const std::string stem = name.substr(0, name.find_last_not_of("0123456789") + 1);
      if (std::ranges::find(kKnownAttributes, stem) != std::end(kKnownAttributes)) continue;
      out.ignored.push_back(fmt::format("attribute '{}' of '/{}'", name, path));
    }
  }
}

Result<ForeignWeights> from_legacy(Hdf5Tree tree, const std::string& base,
                                   const std::string& where) {
  ForeignWeights out;
  out.format = WeightsFormat::kKerasH5;
  std::map<std::string, NamedArray*> by_path;
  for (NamedArray& array : tree.arrays) by_path[array.name] = &array;
  auto layers = list_of(tree, base, "layer_names").value_or(std::vector<std::string>());
  layers.emplace_back("top_level_model_weights");
  std::set<std::string> claimed;
  std::vector<std::string> paths;
  for (const std::string& layer : layers) {
    const std::string group = below(base, layer);
    if (!tree.has_group(group)) {
      if (layer == layers.back()) continue;  // older files lack it
      return Error{fmt::format("names the layer '{}', which it does not hold", layer), where,
                   "the file is damaged: write it again"};
    }
    ForeignLayer found{layer, "", {}};
    for (const std::string& weight :
         list_of(tree, group, "weight_names").value_or(std::vector<std::string>())) {
      const std::string path = below(group, weight);
      const auto it = by_path.find(path);
      if (it == by_path.end() || !claimed.insert(path).second) {
        return Error{fmt::format("names the weight '{}' of layer '{}' {}", weight, layer,
                                 it == by_path.end() ? "and does not hold it" : "twice"),
                     where, "the file is damaged: write it again"};
      }
      found.arrays.push_back(out.arrays.size());
      out.arrays.push_back(std::move(*it->second));
      out.arrays.back().name = weight;
      paths.push_back(below(layer, weight));
    }
    if (!found.arrays.empty()) out.layers.push_back(std::move(found));
  }
  // Weight names need not be unique: each layer may have a "kernel:0". Then all arrays are named by
  // their paths.
  std::set<std::string> names;
  for (const NamedArray& array : out.arrays) names.insert(array.name);
  if (names.size() != out.arrays.size()) {
    for (size_t i = 0; i < paths.size(); ++i) out.arrays[i].name = paths[i];
  }
  for (auto& [path, array] : by_path) {
    if (claimed.contains(path)) continue;
    if (path.starts_with("optimizer_weights/")) {
      out.optimizer.push_back(std::move(*array));
    } else {
      out.ignored.push_back(fmt::format("dataset '{}'", path));
    }
  }
  report_attributes(tree, out);
  return out;
}

// "conv2d_12" is number 12 (from 0) of the class "conv2d".
std::pair<std::string, int> class_and_count(std::string_view component) {
  const size_t underscore = component.rfind('_');
  int count = 0;
  if (underscore != std::string_view::npos && underscore + 1 < component.size()) {
    const char* end = component.data() + component.size();
    const auto [at, code] = std::from_chars(component.data() + underscore + 1, end, count);
    if (code == std::errc() && at == end) {
      return {std::string(component.substr(0, underscore)), count};
    }
  }
  return {std::string(component), 0};
}

// A sort key: the path's components by class and number, so that dense_10 comes after dense_9.
std::vector<std::pair<std::string, int>> order_of(const std::string& path) {
  std::vector<std::pair<std::string, int>> key;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    key.push_back(class_and_count(std::string_view(path).substr(begin, end - begin)));
    begin = end + 1;
  }
  return key;
}

std::optional<size_t> index_of(const std::string& text) {
  size_t value = 0;
  const auto [at, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || at != text.data() + text.size()) return std::nullopt;
  return value;
}

// The value of Keras's first optimizer variable, if it is a non-negative integer scalar.
std::optional<int64_t> iterations_of(const NamedArray& array) {
  if (!array.dims.empty()) return std::nullopt;
  const auto value = to_tensor(array, DType::kI32, "");
  if (!value || value->as<int32_t>()[0] < 0) return std::nullopt;
  return value->as<int32_t>()[0];
}

Result<ForeignWeights> from_keras3(Hdf5Tree tree, const std::string& where) {
  ForeignWeights out;
  out.format = WeightsFormat::kKeras3;
  std::map<std::vector<std::pair<std::string, int>>,
           std::pair<std::string, std::vector<NamedArray*>>>
      groups;  // owner's path and its variables, by the sort key of that path
  for (NamedArray& array : tree.arrays) {
    const size_t slash = array.name.rfind('/');
    const std::string group = slash == std::string::npos ? "" : array.name.substr(0, slash);
    if (group != "vars" && !group.ends_with("/vars")) {
      out.ignored.push_back(fmt::format("dataset '{}'", array.name));
      continue;
    }
    const std::string owner = group == "vars" ? "" : group.substr(0, group.size() - 5);
    auto& [path, arrays] = groups[order_of(owner)];
    path = owner;
    arrays.push_back(&array);
  }
  for (auto& [key, found] : groups) {
    auto& [path, arrays] = found;
    std::vector<NamedArray*> ordered(arrays.size(), nullptr);
    for (NamedArray* array : arrays) {
      const auto index = index_of(array->name.substr(array->name.rfind('/') + 1));
      if (!index || *index >= ordered.size() || ordered[*index] != nullptr) {
        return Error{
            fmt::format("'{}' is not a position among {} variables", array->name, arrays.size()),
            where, "Keras 3 numbers them 0, 1, ...: write the file again"};
      }
      ordered[*index] = array;
    }
    if (path == "optimizer" || path.starts_with("optimizer/")) {
      for (NamedArray* array : ordered) out.optimizer.push_back(std::move(*array));
      const auto* name = tree.texts(below(path, "vars"), "name");
      if (name != nullptr && name->size() == 1) out.optimizer_name = name->front();
      out.iterations = iterations_of(out.optimizer.front());
      continue;
    }
    const auto* name = tree.texts(below(path, "vars"), "name");
    ForeignLayer layer{
        name != nullptr && name->size() == 1 ? name->front() : "", key.back().first, {}};
    for (NamedArray* array : ordered) {
      layer.arrays.push_back(out.arrays.size());
      out.arrays.push_back(std::move(*array));
    }
    out.layers.push_back(std::move(layer));
  }
  report_attributes(tree, out);
  return out;
}

NamedArray widened(const NamedArray& array, std::string name) {
  NamedArray out{std::move(name), array.type, array.dims, array.bytes};
  if (array.type != ElementType::kBF16) return out;
  const auto tensor = to_tensor(array, DType::kF32, "");
  return tensor ? to_array(std::move(out.name), *tensor) : out;
}

void set_list(Hdf5Tree& tree, const std::string& path, const std::string& name,
              const std::vector<std::string>& values) {
  size_t width = 1;
  for (const std::string& value : values) width = std::max(width, value.size());
  const size_t most = std::max<size_t>(1, kAttributeBytes / width);
  if (values.size() <= most) {
    tree.attributes[path][name] = values;
    return;
  }
  for (size_t i = 0, part = 0; i < values.size(); i += most, ++part) {
    const size_t end = std::min(values.size(), i + most);
    tree.attributes[path][name + std::to_string(part)] = {
        values.begin() + static_cast<std::ptrdiff_t>(i),
        values.begin() + static_cast<std::ptrdiff_t>(end)};
  }
}

Hdf5Tree legacy_tree(const ForeignWeights& weights) {
  Hdf5Tree tree;
  std::vector<std::string> names;
  for (const ForeignLayer& layer : weights.layers) {
    names.push_back(layer.name);
    std::vector<std::string> variables;
    for (const size_t i : layer.arrays) {
      variables.push_back(weights.arrays[i].name);
      tree.arrays.push_back(widened(weights.arrays[i], layer.name + "/" + variables.back()));
    }
    set_list(tree, layer.name, "weight_names", variables);
  }
  set_list(tree, "", "layer_names", names);
  tree.attributes[""]["backend"] = {std::string(kBackend)};
  tree.attributes[""]["keras_version"] = {std::string(kKerasVersion)};
  return tree;
}

Hdf5Tree keras3_tree(const ForeignWeights& weights) {
  Hdf5Tree tree;
  for (const ForeignLayer& layer : weights.layers) {
    for (const size_t i : layer.arrays) {
      const std::string& name = weights.arrays[i].name;
      tree.attributes[name.substr(0, name.rfind('/'))]["name"] = {layer.name};
      tree.arrays.push_back(widened(weights.arrays[i], name));
    }
  }
  return tree;
}

}  // namespace

bool is_keras(const Hdf5Tree& tree) {
  return list_of(tree, "", "layer_names") || list_of(tree, "model_weights", "layer_names") ||
         tree.has_group("layers") || tree.has_group("_layer_checkpoint_dependencies");
}

Result<ForeignWeights> from_keras(Hdf5Tree tree, const std::string& where) {
  for (const char* base : {"", "model_weights"}) {
    if (list_of(tree, base, "layer_names")) {
      auto ignored = tree.ignored;
      auto weights = from_legacy(std::move(tree), base, where);
      if (weights) weights->ignored.insert(weights->ignored.end(), ignored.begin(), ignored.end());
      return weights;
    }
  }
  auto ignored = tree.ignored;
  auto weights = from_keras3(std::move(tree), where);
  if (weights) weights->ignored.insert(weights->ignored.end(), ignored.begin(), ignored.end());
  return weights;
}

Status set_keras_names(ForeignWeights& weights, const std::string& where) {
  std::map<std::string, int> used;
  for (const ForeignLayer& layer : weights.layers) {
    if (weights.format == WeightsFormat::kKerasH5) {
      for (const size_t i : layer.arrays) weights.arrays[i].name += ":0";
      continue;
    }
    if (layer.kind.empty()) {
      return Error{
          fmt::format("layer '{}' cannot be written to a Keras 3 file: its class is not known",
                      layer.name),
          where, "write .npz or .safetensors"};
    }
    const int count = used[layer.kind]++;
    const std::string suffix = count == 0 ? "" : "_" + std::to_string(count);
    for (size_t i = 0; i < layer.arrays.size(); ++i) {
      weights.arrays[layer.arrays[i]].name =
          fmt::format("layers/{}{}/vars/{}", layer.kind, suffix, i);
    }
  }
  return Ok{};
}

Result<std::vector<std::byte>> keras_bytes(const ForeignWeights& weights,
                                           const std::string& where) {
  if (weights.format == WeightsFormat::kKerasH5) {
    return to_hdf5(legacy_tree(weights), {"backend", "keras_version"}, where);
  }
  return to_hdf5(keras3_tree(weights), {"name"}, where);
}

}  // namespace twinrun
