// Tensors to protocol arrays and back, with all checks of a result file from an engine.
#include "backends/exec/arrays.h"

#include <sys/stat.h>

#include <algorithm>

#include "backends/exec/exec_backend.h"
#include "backends/exec/messages.h"
#include "backends/exec/session_files.h"
#include "checkpoints/container/hdf5_tree.h"
#include "checkpoints/container/safetensors.h"
#include "program/base/names.h"

namespace twinrun {
namespace {

std::vector<std::string>& hdf5_reader() {
  static std::vector<std::string> command;
  return command;
}

}  // namespace

void read_hdf5_with(std::vector<std::string> command) { hdf5_reader() = std::move(command); }

namespace exec {

void add_arrays(ArrayFile& file, const std::string& name, std::span<const Tensor> replicas) {
  const bool same = std::ranges::all_of(replicas, [&](const Tensor& t) {
    return t.raw() == replicas[0].raw() || t.same_bits(replicas[0]);
  });
  if (same) {
    file.arrays.push_back(to_array(name, replicas[0]));
    return;
  }
  for (size_t r = 0; r < replicas.size(); ++r)
    file.arrays.push_back(to_array(name + "@" + std::to_string(r), replicas[r]));
}

ResultArrays::ResultArrays(ArrayFile file, std::string where)
    : file_(std::move(file)), where_(std::move(where)) {}

const NamedArray* ResultArrays::find(const std::string& name) const {
  const auto found = std::ranges::find(file_.arrays, name, &NamedArray::name);
  return found == file_.arrays.end() ? nullptr : &*found;
}

Result<std::vector<Tensor>> ResultArrays::take(const std::string& name, const TensorType& type,
                                               size_t replicas) const {
  const auto tensor = [&](const NamedArray& array) -> Result<Tensor> {
    if (array.type != element_type(type.dtype) || array.dims != type.dims) {
      return Error{"is " + describe(array) + "; expected " + to_string(type),
                   where_ + ": " + array.name, ""};
    }
    return to_tensor(array, type.dtype, where_);
  };
  if (const NamedArray* one = find(name)) {
    TWINRUN_ASSIGN(const Tensor t, tensor(*one));
    return std::vector<Tensor>(replicas, t);
  }
  std::vector<Tensor> out;
  for (size_t r = 0; r < replicas; ++r) {
    const std::string own = name + "@" + std::to_string(r);
    const NamedArray* array = find(own);
    if (array == nullptr) {
      std::vector<std::string> names;
      for (const NamedArray& a : file_.arrays) names.push_back(a.name);
      return Error{"the array '" + (r == 0 ? name : own) + "' is missing", where_,
                   names.empty() ? "the file has none"
                                 : "the nearest is '" + std::string(nearest(name, names)) + "'"};
    }
    TWINRUN_ASSIGN(Tensor t, tensor(*array));
    out.push_back(std::move(t));
  }
  return out;
}

bool ResultArrays::has(const std::string& name) const {
  return find(name) != nullptr || std::ranges::any_of(file_.arrays, [&](const NamedArray& array) {
           return array.name.starts_with(name + "@");
         });
}

Status ResultArrays::only(const std::string& prefix, const std::vector<std::string>& names) const {
  for (const NamedArray& array : file_.arrays) {
    const std::string name = array.name.substr(0, array.name.find('@'));
    if (!name.starts_with(prefix) || std::ranges::find(names, name) != names.end()) continue;
    return Error{"the program has no " + shown(name), where_,
                 "the nearest is '" + std::string(nearest(name, names)) + "'"};
  }
  return Ok{};
}

Result<ArrayFile> read_result(const std::string& folder, const std::string& name, uint64_t most,
                              const std::string& where) {
  TWINRUN_ASSIGN(const Descriptor file, open_session_file(folder, name, where));
  const bool hdf5 = name.ends_with(".h5");
  if (!hdf5 && !name.ends_with(".safetensors"))
    return Error{"has an unknown format", where, "results are .safetensors or .h5 files"};
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return Error{"cannot be read", where, ""};
  if (static_cast<uint64_t>(status.st_size) > most) {
    return Error{"has " + std::to_string(status.st_size) + " bytes; at most " +
                     std::to_string(most) + " are expected",
                 where, ""};
  }
  if (!hdf5) {
    TWINRUN_ASSIGN(const std::vector<std::byte> bytes, read_open_file(file.get(), most, where));
    return parse_safetensors(bytes, where);
  }
  if (hdf5_reader().empty())
    return Error{"this program cannot read HDF5 results", where, "write safetensors"};
  TWINRUN_ASSIGN(Hdf5Tree tree, read_hdf5_tree(hdf5_reader(), file.get(), most, where));
  return ArrayFile{std::move(tree.arrays), {}, std::move(tree.ignored)};
}

}  // namespace exec
}  // namespace twinrun
