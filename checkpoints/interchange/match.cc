// Matching by map, name, layer and position; import and export of checkpoints on top of it.
#include "checkpoints/interchange/match.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "checkpoints/interchange/keras.h"
#include "checkpoints/interchange/keras_adam.h"
#include "program/base/names.h"

namespace twinrun {
namespace {

constexpr size_t kMaxListed = 8;  // missing tensors named in one message

bool is_weight(const CheckpointTensor& tensor) {
  return tensor.role == "parameter" || tensor.role == "statistic";
}

// "conv1/kernel" -> "conv1", "kernel".
std::pair<std::string, std::string> split(const std::string& name) {
  const size_t slash = name.rfind('/');
  if (slash == std::string::npos) return {"", name};
  return {name.substr(0, slash), name.substr(slash + 1)};
}

// The name without Keras's ":0" and with "/" for ".": layer.kernel and layer/kernel are the same.
std::string plain(std::string name) {
  if (name.ends_with(":0")) name.resize(name.size() - 2);
  std::ranges::replace(name, '.', '/');
  return name;
}

struct OurLayer {
  std::string name;
  std::vector<std::string> variables;  // full names, parameters before statistics
};

std::vector<OurLayer> layers_of(const Checkpoint& checkpoint, const ModelOutline& outline,
                                const std::set<std::string>& without) {
  std::vector<OurLayer> layers;
  std::map<std::string, size_t> index;
  for (const char* role : {"parameter", "statistic"}) {
    for (const std::string& name : outline.names) {
      const auto it = checkpoint.tensors.find(name);
      if (it == checkpoint.tensors.end() || it->second.role != role) continue;
      const std::string layer = split(name).first;
      const auto [at, fresh] = index.emplace(layer, layers.size());
      if (fresh) layers.push_back({layer, {}});
      layers[at->second].variables.push_back(name);
    }
  }
  std::erase_if(layers, [&](const OurLayer& layer) {
    return std::ranges::any_of(layer.variables,
                               [&](const std::string& name) { return without.contains(name); });
  });
  return layers;
}

class Identifier {
 public:
  Identifier(const Checkpoint& initial, const ModelOutline& outline, const ForeignWeights& theirs,
             const NameMap& map, const std::string& where)
      : initial_(initial), outline_(outline), theirs_(theirs), map_(map), where_(where) {
    used_.resize(theirs.arrays.size(), false);
  }

  struct Found {
    size_t array = 0;
    std::string how;
  };

  Result<std::map<std::string, Found>> match() {
    TWINRUN_RETURN_IF_ERROR(by_map());
    by_name();
    if (!theirs_.layers.empty()) TWINRUN_RETURN_IF_ERROR(by_layer());
    TWINRUN_RETURN_IF_ERROR(check_missing());
    return found_;
  }
  std::vector<size_t> unused() const {
    std::vector<size_t> out;
    for (size_t i = 0; i < used_.size(); ++i) {
      if (!used_[i]) out.push_back(i);
    }
    return out;
  }

 private:
  void take(const std::string& ours, size_t array, std::string how) {
    found_[ours] = {array, std::move(how)};
    used_[array] = true;
  }

  std::vector<std::string> their_names(bool only_unused) const {
    std::vector<std::string> names;
    for (size_t i = 0; i < used_.size(); ++i) {
      if (!only_unused || !used_[i]) names.push_back(theirs_.arrays[i].name);
    }
    return names;
  }

  Status by_map() {
    for (const auto& [ours, entry] : map_.entries) {
      const std::string place = fmt::format("{}: \"{}\"", map_.file, ours);
      if (!initial_.tensors.contains(ours)) {
        return Error{"the model has no such tensor", place, did_you_mean(ours, outline_.names)};
      }
      const auto it = std::ranges::find(theirs_.arrays, entry.theirs, &NamedArray::name);
      if (it == theirs_.arrays.end()) {
        return Error{fmt::format("{} has no array '{}'", where_, entry.theirs), place,
                     did_you_mean(entry.theirs, their_names(false))};
      }
      take(ours, static_cast<size_t>(it - theirs_.arrays.begin()), "map");
    }
    return Ok{};
  }

  void by_name() {
    std::map<std::string, std::vector<size_t>> index;
    for (size_t i = 0; i < used_.size(); ++i) {
      if (!used_[i]) index[plain(theirs_.arrays[i].name)].push_back(i);
    }
    for (const auto& known : initial_.tensors) {
      const std::string& ours = known.first;
      const auto it = index.find(plain(ours));
      if (found_.contains(ours) || it == index.end()) continue;
      const auto exact = std::ranges::find_if(
          it->second, [&](size_t i) { return theirs_.arrays[i].name == ours; });
      if (exact == it->second.end() && it->second.size() > 1) continue;  // ambiguous
      take(ours, exact != it->second.end() ? *exact : it->second.front(), "same name");
    }
  }

  // The file's layers of the class `kind` ("": of any) of which no array is matched yet.
  std::vector<const ForeignLayer*> free_layers(const std::string& kind) const {
    std::vector<const ForeignLayer*> out;
    for (const ForeignLayer& layer : theirs_.layers) {
      if (!kind.empty() && layer.kind != kind) continue;
      if (std::ranges::none_of(layer.arrays, [&](size_t i) { return used_[i]; })) {
        out.push_back(&layer);
      }
    }
    return out;
  }

  Status by_layer() {
    std::set<std::string> done;
    for (const auto& [name, found] : found_) done.insert(name);
    const auto ours = layers_of(initial_, outline_, done);
    std::map<std::string, const ForeignLayer*> named;
    for (const ForeignLayer* layer : free_layers("")) named.emplace(layer->name, layer);
    // Layer names count only if all of ours are there: names that Keras generated can agree with
    // some of ours by chance.
    if (std::ranges::all_of(ours, [&](const OurLayer& l) { return named.contains(l.name); })) {
      for (const OurLayer& layer : ours) {
        TWINRUN_RETURN_IF_ERROR(pair(layer, *named.at(layer.name), "layer name"));
      }
      return Ok{};
    }
    return theirs_.format == WeightsFormat::kKeras3 ? by_class(ours) : by_position(ours);
  }

  Status by_position(const std::vector<OurLayer>& ours) {
    const auto layers = free_layers("");
    if (layers.size() != ours.size()) return count_error("", layers.size(), ours.size());
    for (size_t i = 0; i < ours.size(); ++i) {
      TWINRUN_RETURN_IF_ERROR(pair(ours[i], *layers[i], "layer position"));
    }
    return Ok{};
  }

  Status by_class(const std::vector<OurLayer>& ours) {
    std::map<std::string, std::vector<const OurLayer*>> classes;
    for (const OurLayer& layer : ours) {
      const auto it = outline_.classes.find(layer.name);
      if (it == outline_.classes.end()) continue;  // check_missing reports it
      classes[it->second].push_back(&layer);
    }
    for (const auto& [kind, members] : classes) {
      const auto layers = free_layers(kind);
      if (layers.size() != members.size()) return count_error(kind, layers.size(), members.size());
      for (size_t i = 0; i < members.size(); ++i) {
        TWINRUN_RETURN_IF_ERROR(pair(*members[i], *layers[i], "position in its class"));
      }
    }
    return Ok{};
  }

  Error count_error(const std::string& kind, size_t theirs, size_t ours) const {
    return {
        fmt::format(
            "has {} layers with weights{}; the model has {}, so they cannot be matched by position",
            theirs, kind.empty() ? "" : " of the class " + kind, ours),
        where_, "give a --map, or name its layers as the scenario does"};
  }

  Status pair(const OurLayer& ours, const ForeignLayer& theirs, const char* how) {
    if (ours.variables.size() != theirs.arrays.size()) {
      return Error{fmt::format("its layer '{}' has {} weights; the model's '{}' has {}",
                               theirs.name, theirs.arrays.size(), ours.name, ours.variables.size()),
                   where_, "give a --map, or the scenario that it belongs to"};
    }
    // By their own names if every variable of our layer is among them, else in order.
    std::map<std::string, size_t> named;
    for (const size_t i : theirs.arrays) named[split(plain(theirs_.arrays[i].name)).second] = i;
    const bool all = std::ranges::all_of(ours.variables, [&](const std::string& name) {
      return named.contains(split(name).second);
    });
    for (size_t i = 0; i < ours.variables.size(); ++i) {
      const std::string& name = ours.variables[i];
      take(name, all ? named.at(split(name).second) : theirs.arrays[i], how);
    }
    return Ok{};
  }

  Status check_missing() const {
    std::vector<std::string> lines;
    size_t missing = 0;
    const auto left = their_names(true);
    for (const std::string& name : outline_.names) {
      const auto it = initial_.tensors.find(name);
      if (it == initial_.tensors.end() || !is_weight(it->second) || found_.contains(name)) continue;
      if (++missing > kMaxListed) continue;
      lines.push_back(fmt::format(
          "'{}' {}{}", name, to_string(it->second.value.type()),
          left.empty() ? "" : fmt::format(" (nearest in the file: '{}')", nearest(name, left))));
    }
    if (missing == 0) return Ok{};
    if (missing > kMaxListed) lines.push_back(fmt::format("{} more", missing - kMaxListed));
    return Error{fmt::format("lacks {} of the model's weights: {}", missing, join(lines, ", ")),
                 where_, "name them in a --map, or give the scenario that the file belongs to"};
  }

  const Checkpoint& initial_;
  const ModelOutline& outline_;
  const ForeignWeights& theirs_;
  const NameMap& map_;
  const std::string& where_;
  std::vector<bool> used_;
  std::map<std::string, Found> found_;
};

// The fix for a wrong shape: if a transpose would give ours, the line for the map.
std::string shape_fix(const Dims& theirs, const Dims& ours, const std::string& name,
                      const std::string& their_name) {
  std::vector<int64_t> perm(ours.size());
  std::iota(perm.begin(), perm.end(), 0);
  constexpr size_t kMaxRank = 6;
  if (ours.size() == theirs.size() && ours.size() <= kMaxRank) {
    do {
      bool fits = true;
      for (size_t d = 0; d < perm.size(); ++d)
        fits &= theirs[static_cast<size_t>(perm[d])] == ours[d];
      if (fits) {
        return fmt::format(
            "a transpose would fit; if it is the right one, write in a --map: "
            "\"{}\" = {{ name = \"{}\", transpose = {} }}",
            name, their_name, to_string(perm));
      }
    } while (std::ranges::next_permutation(perm).found);
  }
  return "give the scenario that the file belongs to, or a --map";
}

std::string change_of(const NameMapEntry* entry, const std::string& conversion) {
  std::vector<std::string> parts;
  if (!conversion.empty()) parts.push_back(conversion);
  if (entry != nullptr && !entry->reshape.empty()) {
    parts.push_back("reshaped " + to_string(entry->reshape));
  }
  if (entry != nullptr && !entry->transpose.empty()) {
    parts.push_back("transposed " + to_string(entry->transpose));
  }
  return join(parts, ", ");
}

void note_optimizer(const ForeignWeights& theirs, Conversion& report) {
  if (theirs.optimizer.empty()) return;
  std::vector<std::string> names;
  for (const NamedArray& array : theirs.optimizer) {
    names.push_back(fmt::format("'{}' {}", array.name, describe(array)));
  }
  report.notes.push_back(fmt::format(
      "not converted: Keras's {} optimizer variables ({}); slots keep their initial values",
      names.size(), join(names, ", ")));
}

}  // namespace

Result<Checkpoint> import_weights(Checkpoint initial, const ModelOutline& outline,
                                  ForeignWeights theirs, const NameMap& map,
                                  const std::string& where, Conversion& report) {
  Identifier matcher(initial, outline, theirs, map, where);
  TWINRUN_ASSIGN(const auto found, matcher.match());
  for (const std::string& name : outline.names) {
    CheckpointTensor& tensor = initial.tensors.at(name);
    const auto it = found.find(name);
    if (it == found.end()) {
      report.initial.push_back(name);
      continue;
    }
    NamedArray array = std::move(theirs.arrays[it->second.array]);
    theirs.arrays[it->second.array].name = array.name;
    const TensorType type = tensor.value.type();
    const NameMapEntry* entry = map.find(name);
    Conversion::Row row{name, array.name, describe(array), to_string(type), it->second.how, ""};
    row.change = change_of(entry, conversion(array.type, type.dtype));
    if (entry != nullptr && entry->moves()) {
      TWINRUN_ASSIGN(array, to_our_layout(std::move(array), *entry, type.dims, where));
    }
    const auto keras = outline.keras_dims.find(name);
    if (!theirs.layers.empty() && keras != outline.keras_dims.end() &&
        array.dims == keras->second) {
      array.dims = type.dims;
      row.change += (row.change.empty() ? "" : ", ") + ("reshaped " + to_string(type.dims));
    }
    if (array.dims != type.dims) {
      return Error{fmt::format("'{}' is {} in the file; '{}' is {} in the model", array.name,
                               describe(array), name, to_string(type)),
                   where, shape_fix(array.dims, type.dims, name, array.name)};
    }
    TWINRUN_ASSIGN(tensor.value, to_tensor(array, type.dtype, where));
    report.rows.push_back(std::move(row));
  }
  for (const size_t i : matcher.unused()) {
    report.unused.push_back({theirs.arrays[i].name, nearest(theirs.arrays[i].name, outline.names)});
  }
  if (!map.entries.empty() || !import_adam(initial, outline, theirs, report)) {
    note_optimizer(theirs, report);
  }
  for (const std::string& what : theirs.ignored) report.notes.push_back("not understood: " + what);
  return initial;
}

Result<ForeignWeights> export_weights(const Checkpoint& checkpoint, const ModelOutline& outline,
                                      WeightsFormat format, const NameMap& map,
                                      Conversion& report) {
  const bool keras = format == WeightsFormat::kKerasH5 || format == WeightsFormat::kKeras3;
  if (keras && !map.entries.empty()) {
    return Error{
        "a map names tensors of .npz and .safetensors files; names in a Keras file follow from its "
        "layers",
        map.file, "leave out --map, or write .npz"};
  }
  for (const auto& [ours, entry] : map.entries) {
    if (checkpoint.tensors.contains(ours)) continue;
    return Error{"the checkpoint has no such tensor", fmt::format("{}: \"{}\"", map.file, ours),
                 did_you_mean(ours, outline.names)};
  }
  ForeignWeights out;
  out.format = format;
  std::vector<std::string> left_out;
  const auto add = [&](const std::string& name) -> Status {
    const CheckpointTensor& tensor = checkpoint.tensors.at(name);
    Tensor value = tensor.value;
    std::string change;
    if (tensor.replica_axis && !value.dims().empty() && value.dims()[0] > 0) {
      const Dims dims(value.dims().begin() + 1, value.dims().end());
      change = fmt::format("replica 0 of {}", value.dims()[0]);
      value = value.rows(0, 1).reshaped(dims);
    }
    NamedArray array = to_array(name, value);
    const std::string from = to_string(value.type());
    if (const NameMapEntry* entry = map.find(name)) {
      TWINRUN_ASSIGN(array, to_their_layout(std::move(array), *entry, map.file));
      const std::string moved = change_of(entry, "");
      change += (change.empty() || moved.empty() ? "" : ", ") + moved;
    }
    const auto other = outline.keras_dims.find(name);
    if (keras && other != outline.keras_dims.end()) {
      array.dims = other->second;
      change += (change.empty() ? "" : ", ") + ("reshaped " + to_string(array.dims));
    }
    if (array.type == ElementType::kBF16 && format != WeightsFormat::kSafetensors) {
      change += std::string(change.empty() ? "" : ", ") + "bfloat16 to float32, exact";
    }
    report.rows.push_back(
        {name, "", describe(array), from, map.find(name) ? "map" : "same name", std::move(change)});
    out.arrays.push_back(std::move(array));
    return Ok{};
  };
  if (!keras) {
    for (const std::string& name : outline.names) TWINRUN_RETURN_IF_ERROR(add(name));
  } else {
    for (const OurLayer& layer : layers_of(checkpoint, outline, {})) {
      const auto kind = outline.classes.find(layer.name);
      ForeignLayer theirs{layer.name, kind == outline.classes.end() ? "" : kind->second, {}};
      for (const std::string& name : layer.variables) {
        theirs.arrays.push_back(out.arrays.size());
        TWINRUN_RETURN_IF_ERROR(add(name));
        report.rows.back().how = "layer";
      }
      out.layers.push_back(std::move(theirs));
    }
    TWINRUN_RETURN_IF_ERROR(set_keras_names(out, "--to " + std::string(to_string(format))));
    for (const std::string& name : outline.names) {
      if (!is_weight(checkpoint.tensors.at(name))) left_out.push_back("'" + name + "'");
    }
  }
  for (size_t i = 0; i < out.arrays.size(); ++i) report.rows[i].theirs = out.arrays[i].name;
  if (!left_out.empty()) {
    report.notes.push_back(
        fmt::format("not converted: {} tensors of the optimizer, for which a Keras weights file "
                    "has no name ({})",
                    left_out.size(), join(left_out, ", ")));
  }
  return out;
}

}  // namespace twinrun
