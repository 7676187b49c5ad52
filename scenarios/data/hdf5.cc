// `hdf5`: data sets of an HDF5 file, by name ("x_train", "held/x"). Only those that the scenario
// names are read, in a process of its own (checkpoints/container/isolated.h). Links other than hard
// ones, chunked and compressed data are errors. arrays.h makes samples of the arrays.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "checkpoints/container/hdf5_file.h"
#include "checkpoints/container/isolated.h"
#include "checkpoints/container/safetensors.h"
#include "program/base/names.h"
#include "scenarios/data/arrays.h"
#include "scenarios/data/source.h"

namespace twinrun::data {
namespace {

constexpr size_t kMaxListed = 50, kMaxGroups = 1000;

// Lists the data sets at and below `group`, for an error. It stops after kMaxListed names or
// kMaxGroups groups: hard links can form cycles.
void list(const Hdf5Group& group, const std::string& prefix, size_t& groups,
          std::vector<std::string>& names) {
  const auto children = group.children();
  if (!children || ++groups > kMaxGroups) return;
  for (const auto& child : *children) {
    if (names.size() >= kMaxListed) return;
    if (!child.is_group) {
      names.push_back(prefix + child.name);
    } else if (const auto inner = group.group(child.name)) {
      list(*inner, prefix + child.name + "/", groups, names);
    }
  }
}

// The data set at `name`, "a/b/c"; nothing if the file does not have it.
Result<std::optional<NamedArray>> find(Hdf5Group group, const std::string& name) {
  size_t at = name.find_first_not_of('/');
  while (at < name.size()) {
    const size_t slash = std::min(name.find('/', at), name.size());
    const std::string part = name.substr(at, slash - at);
    TWINRUN_ASSIGN(const bool there, group.has(part));
    if (part.empty() || !there) return std::optional<NamedArray>();
    if (slash == name.size()) {
      TWINRUN_ASSIGN(const Hdf5Dataset dataset, group.dataset(part));
      TWINRUN_ASSIGN(NamedArray array, dataset.read_foreign());
      array.name = name;
      return std::optional(std::move(array));
    }
    TWINRUN_ASSIGN(group, group.group(part));
    at = slash + 1;
  }
  return std::optional<NamedArray>();
}

// Runs in the other process and returns the arrays as a safetensors file.
Result<std::vector<std::byte>> read(const DataRequest& request, const std::string& path) {
  TWINRUN_ASSIGN(const Hdf5File file, Hdf5File::open(path));
  ArrayFile out;
  std::set<std::string> seen;
  for (const auto& [name, key] : wanted_arrays(request)) {
    if (!seen.insert(name).second) {
      return Error{fmt::format("\"{}\" is named twice, the second time by data.{}", name, key),
                   path, ""};
    }
    TWINRUN_ASSIGN(Hdf5Group root, file.root());
    TWINRUN_ASSIGN(auto array, find(std::move(root), name));
    if (!array) {
      std::vector<std::string> names;
      TWINRUN_ASSIGN(const Hdf5Group top, file.root());
      size_t groups = 0;
      list(top, "", groups, names);
      return Error{
          fmt::format("no data set \"{}\" (data.{}); the file has: {}", name, key,
                      names.empty() ? "none" : join(names, ", ")),
          path,
          names.empty() ? "" : fmt::format("set data.{} = \"{}\"", key, nearest(name, names))};
    }
    out.arrays.push_back(*std::move(array));
  }
  return to_safetensors(out, path);
}

}  // namespace

Result<Pool> hdf5_pool(const DataRequest& request) {
  if (request.files.size() != 1) {
    return Error{fmt::format("data.files names {} files; allowed: 1", request.files.size()),
                 request.where, "set data.files = [\"data.h5\"]"};
  }
  const std::string path = path_of(request, request.files[0]);
  std::error_code code;
  const uint64_t size = std::filesystem::file_size(path, code);
  const auto bytes = run_isolated([&] { return read(request, path); }, code ? 0 : size, path);
  if (!bytes) return placed(request, bytes.error());
  const auto file = parse_safetensors(*bytes, path);
  if (!file) return placed(request, file.error());
  return pool_of_file(request, *file, path);
}

}  // namespace twinrun::data
