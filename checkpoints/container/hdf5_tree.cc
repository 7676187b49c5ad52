// Reads a foreign HDF5 file in a separate process and brings its tree back; writes trees.
#include "checkpoints/container/hdf5_tree.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoints/container/hdf5_file.h"
#include "checkpoints/container/isolated.h"
#include "checkpoints/container/open_file.h"
#include "checkpoints/container/safetensors.h"

namespace twinrun {
namespace {

constexpr size_t kLongestPath = 4096;

Status read_attributes(const Hdf5Node& node, const std::string& path, Hdf5Tree& tree) {
  TWINRUN_ASSIGN(const auto names, node.attributes());
  auto& attributes = tree.attributes[path];
  for (const std::string& name : names) {
    TWINRUN_ASSIGN(auto texts, node.foreign_texts(name));
    if (texts) {
      attributes[name] = std::move(*texts);
    } else {
      tree.ignored.push_back(fmt::format("attribute '{}' of '/{}'", name, path));
    }
  }
  return Ok{};
}

Status read_group(const Hdf5Group& group, const std::string& path, std::set<uint64_t>& seen,
                  Hdf5Tree& tree) {
  if (path.size() > kLongestPath) return Error{"groups are nested too deeply", group.where(), ""};
  TWINRUN_ASSIGN(const uint64_t address, group.address());
  if (!seen.insert(address).second) {
    return Error{"is linked from two places", group.where(), "copy it instead"};
  }
  TWINRUN_RETURN_IF_ERROR(read_attributes(group, path, tree));
  TWINRUN_ASSIGN(const auto children, group.children());
  for (const auto& child : children) {
    const std::string below = path.empty() ? child.name : path + "/" + child.name;
    if (child.is_group) {
      TWINRUN_ASSIGN(const Hdf5Group inner, group.group(child.name));
      TWINRUN_RETURN_IF_ERROR(read_group(inner, below, seen, tree));
      continue;
    }
    TWINRUN_ASSIGN(const Hdf5Dataset dataset, group.dataset(child.name));
    TWINRUN_ASSIGN(const uint64_t place, dataset.address());
    if (!seen.insert(place).second) {
      return Error{"is linked from two places", dataset.where(), "copy it instead"};
    }
    TWINRUN_ASSIGN(NamedArray array, dataset.read_foreign());
    array.name = below;
    tree.arrays.push_back(std::move(array));
  }
  return Ok{};
}

// packed and unpacked turn the tree into bytes and back, to carry it between processes: a
// safetensors file whose metadata hold the attributes.
Result<std::vector<std::byte>> packed(const Result<Hdf5File>& file, const std::string& where) {
  if (!file) return file.error();
  TWINRUN_ASSIGN(const Hdf5Group root, file->root());
  Hdf5Tree tree;
  std::set<uint64_t> seen;
  TWINRUN_RETURN_IF_ERROR(read_group(root, "", seen, tree));
  const auto replace = nlohmann::json::error_handler_t::replace;
  ArrayFile out{std::move(tree.arrays), {}, {}};
  out.metadata["attributes"] = nlohmann::json(tree.attributes).dump(-1, ' ', false, replace);
  out.metadata["ignored"] = nlohmann::json(tree.ignored).dump(-1, ' ', false, replace);
  return to_safetensors(out, where);
}

Result<Hdf5Tree> unpacked(const std::vector<std::byte>& bytes, const std::string& where) {
  TWINRUN_ASSIGN(ArrayFile file, parse_safetensors(bytes, where));
  Hdf5Tree tree;
  tree.arrays = std::move(file.arrays);
  std::ranges::sort(tree.arrays, {}, &NamedArray::name);
  const auto meta = [&](const char* key) {
    return nlohmann::json::parse(file.metadata[key], nullptr, /*allow_exceptions=*/false);
  };
  try {
    tree.attributes = meta("attributes").get<decltype(tree.attributes)>();
    tree.ignored = meta("ignored").get<decltype(tree.ignored)>();
  } catch (const nlohmann::json::exception&) {
    return Error{"the library that reads it returned inconsistent results", where,
                 "the file is damaged"};
  }
  return tree;
}

// Writes everything at and below `path` into `group`.
Status write_below(Hdf5Group& group, const std::string& path, const Hdf5Tree& tree,
                   const std::vector<std::string>& scalars) {
  if (const auto it = tree.attributes.find(path); it != tree.attributes.end()) {
    for (const auto& [name, values] : it->second) {
      const bool scalar = values.size() == 1 && std::ranges::count(scalars, name) != 0;
      TWINRUN_RETURN_IF_ERROR(scalar ? group.set_text(name, values[0])
                                     : group.set_texts(name, values));
    }
  }
  const std::string prefix = path.empty() ? "" : path + "/";
  std::set<std::string> groups;
  std::vector<const NamedArray*> datasets;
  for (const auto& [name, values] : tree.attributes) {
    if (name.size() <= prefix.size() || !name.starts_with(prefix)) continue;
    groups.insert(name.substr(prefix.size(), name.find('/', prefix.size()) - prefix.size()));
  }
  for (const NamedArray& array : tree.arrays) {
    if (!array.name.starts_with(prefix)) continue;
    const size_t slash = array.name.find('/', prefix.size());
    if (slash == std::string::npos) {
      datasets.push_back(&array);
    } else {
      groups.insert(array.name.substr(prefix.size(), slash - prefix.size()));
    }
  }
  for (const std::string& name : groups) {
    TWINRUN_ASSIGN(Hdf5Group below, group.create_group(name));
    TWINRUN_RETURN_IF_ERROR(write_below(below, prefix + name, tree, scalars));
  }
  for (const NamedArray* array : datasets) {
    TWINRUN_ASSIGN(const auto written,
                   group.write_foreign(array->name.substr(prefix.size()), *array));
    (void)written;
  }
  return Ok{};
}

}  // namespace

const std::vector<std::string>* Hdf5Tree::texts(const std::string& path,
                                                const std::string& name) const {
  const auto group = attributes.find(path);
  if (group == attributes.end()) return nullptr;
  const auto it = group->second.find(name);
  return it == group->second.end() ? nullptr : &it->second;
}

Result<Hdf5Tree> read_hdf5_tree(const std::string& path) {
  std::error_code code;
  const uint64_t size = std::filesystem::file_size(path, code);
  TWINRUN_ASSIGN(const auto bytes, run_isolated([&] { return packed(Hdf5File::open(path), path); },
                                                code ? 0 : size, path));
  return unpacked(bytes, path);
}

Result<Hdf5Tree> parse_hdf5_tree(std::span<const std::byte> bytes, const std::string& where) {
  TWINRUN_ASSIGN(const auto answer,
                 run_isolated([&] { return packed(Hdf5File::open_image(bytes, where), where); },
                              bytes.size(), where));
  return unpacked(answer, where);
}

Result<Hdf5Tree> read_hdf5_tree(const std::vector<std::string>& reader, int file, uint64_t most,
                                const std::string& where) {
  std::vector<std::string> command = reader;
  command.push_back(std::to_string(most));
  // The reader's CPU time limit is lower. This limit is for a reader that blocks.
  const double seconds = 120 + static_cast<double>(most) * 1e-7;
  const auto bytes = run_isolated(command, file, seconds, where);
  if (bytes) return unpacked(*bytes, where);
  Error error = bytes.error();
  // The reader does not know the file's name and leaves it out of its errors.
  if (!error.where.starts_with(where)) error.where = where + error.where;
  return error;
}

int serve_hdf5_tree(uint64_t most) {
  return serve_isolated(
      [&]() -> Result<std::vector<std::byte>> {
        TWINRUN_ASSIGN(const auto bytes, read_open_file(STDIN_FILENO, most, ""));
        return packed(Hdf5File::open_image(bytes, "", most), "");
      },
      most);
}

Result<std::vector<std::byte>> to_hdf5(const Hdf5Tree& tree,
                                       const std::vector<std::string>& scalars,
                                       const std::string& where) {
  TWINRUN_ASSIGN(const Hdf5File file, Hdf5File::create(where));
  TWINRUN_ASSIGN(Hdf5Group root, file.root());
  TWINRUN_RETURN_IF_ERROR(write_below(root, "", tree, scalars));
  return file.image();
}

}  // namespace twinrun
