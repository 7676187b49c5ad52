// Writing, reading and verifying checkpoints, as files and as groups of a run file; their digests.
#include "checkpoints/checkpoint.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>

#include "checkpoints/checkpoint_group.h"
#include "program/base/os_error.h"

namespace twinrun {

Digest CheckpointHeader::root_digest() const {
  DigestBuilder builder;
  for (const auto& [name, tensor] : tensors) {
    builder.add(name);
    builder.add(to_string(tensor.type));
    const uint8_t axis = tensor.replica_axis ? 1 : 0;
    builder.add_bytes(&axis, 1);
    builder.add(tensor.digest);
  }
  checkpoint_format::add_int(builder, step);
  builder.add_bytes(&seed, sizeof seed);
  return builder.finish();
}

CheckpointHeader Checkpoint::outline() const {
  CheckpointHeader h{*this, {}};
  for (const auto& [name, tensor] : tensors) {
    h.tensors[name] = {tensor.value.type(), tensor.role, tensor.replica_axis, {}};
  }
  return h;
}

CheckpointHeader Checkpoint::header() const {
  CheckpointHeader h = outline();
  for (auto& [name, entry] : h.tensors) entry.digest = digest(tensors.at(name).value);
  return h;
}

namespace checkpoint_format {
namespace {

// Digest of the fields that the root digest leaves out because they are not part of the state's
// identity.
Digest header_digest(const CheckpointHeader& header) {
  DigestBuilder builder;
  builder.add(header.scenario);
  builder.add(header.scenario_digest);
  builder.add(header.engine);
  add_int(builder, header.cores);
  add_int(builder, header.contract);
  for (const auto& [name, tensor] : header.tensors) {
    builder.add(name);
    builder.add(tensor.role);
  }
  return builder.finish();
}

// The tensor "conv1/kernel" is the dataset `kernel` in the group `conv1`. A dataset cannot contain
// others, so no tensor name may be a path prefix of another.
Status check_names(const Checkpoint& checkpoint, const std::string& where) {
  for (const auto& [name, tensor] : checkpoint.tensors) {
    for (size_t slash = name.find('/'); slash != std::string::npos;
         slash = name.find('/', slash + 1)) {
      const std::string prefix = name.substr(0, slash);
      if (!checkpoint.tensors.contains(prefix)) continue;
      return Error{fmt::format("'{}' is a tensor, so '{}' cannot be inside it", prefix, name),
                   where, fmt::format("name it '{}.{}'", prefix, name.substr(slash + 1))};
    }
    if (!tensor.value.valid()) return Error{"the tensor has no value", name, ""};
    if (tensor.replica_axis && tensor.value.dims().empty()) {
      return Error{"a scalar has no replica axis", name, ""};
    }
  }
  return Ok{};
}

Status write_tensor(Hdf5Group& group, std::string_view name, const Tensor& value,
                    const CheckpointHeader::Entry& entry) {
  const size_t slash = name.find('/');
  const std::string first(name.substr(0, slash));
  if (slash != std::string_view::npos) {
    TWINRUN_ASSIGN(const bool exists, group.has(first));
    TWINRUN_ASSIGN(Hdf5Group below, exists ? group.group(first) : group.create_group(first));
    return write_tensor(below, name.substr(slash + 1), value, entry);
  }
  TWINRUN_ASSIGN(Hdf5Dataset dataset, group.write_tensor(first, value));
  TWINRUN_RETURN_IF_ERROR(dataset.set_text("xxh3_128", entry.digest.hex()));
  TWINRUN_RETURN_IF_ERROR(dataset.set_text("role", entry.role));
  return dataset.set_int("replica_axis", entry.replica_axis ? 1 : 0);
}

// Lists the tensors at and below one group of /state. `seen` holds the addresses of the groups that
// were visited: a group that can be reached twice is an error, and so are cycles.
Status list_state(const Hdf5Group& group, const std::string& prefix, std::set<uint64_t>& seen,
                  std::map<std::string, CheckpointHeader::Entry>& tensors) {
  constexpr size_t kLongestName = 4096;
  if (prefix.size() > kLongestName) {
    return Error{"groups are nested too deeply", group.where(), kDamagedFix};
  }
  TWINRUN_ASSIGN(const uint64_t address, group.address());
  if (!seen.insert(address).second) {
    return Error{"is linked from two places", group.where(), kDamagedFix};
  }
  TWINRUN_ASSIGN(const auto children, group.children());
  for (const auto& child : children) {
    const std::string name = prefix + child.name;
    if (child.is_group) {
      TWINRUN_ASSIGN(const Hdf5Group below, group.group(child.name));
      TWINRUN_RETURN_IF_ERROR(list_state(below, name + "/", seen, tensors));
      continue;
    }
    TWINRUN_ASSIGN(const Hdf5Dataset dataset, group.dataset(child.name));
    CheckpointHeader::Entry tensor;
    TWINRUN_ASSIGN(tensor.type, dataset.tensor_type());
    TWINRUN_ASSIGN(tensor.digest, read_digest(dataset, "xxh3_128"));
    TWINRUN_ASSIGN(tensor.role, dataset.text("role"));
    TWINRUN_ASSIGN(const int axis, read_int(dataset, "replica_axis", 0));
    tensor.replica_axis = axis != 0;
    if (axis > 1 || (tensor.replica_axis && tensor.type.dims.empty())) {
      return Error{fmt::format("replica_axis is {}; expected 0 or (except for scalars) 1", axis),
                   dataset.where(), kDamagedFix};
    }
    tensors.emplace(name, std::move(tensor));
  }
  return Ok{};
}

Result<CheckpointHeader> read_header(const Hdf5Group& group) {
  CheckpointHeader header;
  TWINRUN_ASSIGN(header.contract, read_preamble(group, kCheckpointFormat, kCheckpointSchema));
  TWINRUN_ASSIGN(header.step, group.integer("step"));
  TWINRUN_ASSIGN(header.seed, group.unsigned_integer("seed"));
  TWINRUN_ASSIGN(header.scenario, group.text("scenario"));
  TWINRUN_ASSIGN(header.scenario_digest, group.text("scenario_digest"));
  TWINRUN_ASSIGN(header.engine, group.text("engine"));
  TWINRUN_ASSIGN(header.cores, read_int(group, "cores", 1));
  TWINRUN_ASSIGN(const Digest root, read_digest(group, "root_digest"));
  TWINRUN_ASSIGN(const Digest own, read_digest(group, "header_digest"));
  TWINRUN_ASSIGN(const Hdf5Group state, group.group("state"));
  std::set<uint64_t> seen;
  TWINRUN_RETURN_IF_ERROR(list_state(state, "", seen, header.tensors));
  TWINRUN_RETURN_IF_ERROR(check_digest(root, header.root_digest(), "root_digest", group.where()));
  TWINRUN_RETURN_IF_ERROR(check_digest(own, header_digest(header), "header_digest", group.where()));
  return header;
}

// The dataset of the tensor `name` below `group`.
Result<Hdf5Dataset> dataset_of(const Hdf5Group& group, std::string_view name) {
  const size_t slash = name.find('/');
  if (slash == std::string_view::npos) return group.dataset(std::string(name));
  TWINRUN_ASSIGN(const Hdf5Group below, group.group(std::string(name.substr(0, slash))));
  return dataset_of(below, name.substr(slash + 1));
}

Result<Tensor> read_entry(const Hdf5Group& group, const std::string& name,
                          const CheckpointHeader::Entry& entry) {
  TWINRUN_ASSIGN(const Hdf5Dataset dataset, dataset_of(group, name));
  TWINRUN_ASSIGN(Tensor value, dataset.read_tensor(entry.type));
  TWINRUN_RETURN_IF_ERROR(check_digest(entry.digest, digest(value), name, dataset.where()));
  return value;
}

}  // namespace

Status write_preamble(Hdf5Group& group, std::string_view format, int schema, int contract) {
  TWINRUN_RETURN_IF_ERROR(group.set_text("format", format));
  TWINRUN_RETURN_IF_ERROR(group.set_int("schema", schema));
  return group.set_int("contract", contract);
}

Result<int> read_preamble(const Hdf5Group& group, std::string_view format, int schema) {
  TWINRUN_ASSIGN(const std::string found_format, group.text("format"));
  if (found_format != format) {
    return Error{fmt::format("its format is '{}'; expected '{}'", found_format, format),
                 group.where(), "name a file of that kind, or see: twinrun inspect FILE"};
  }
  TWINRUN_ASSIGN(const int found_schema, read_int(group, "schema", 0));
  if (found_schema != schema) {
    return Error{fmt::format("found schema {}; expected schema {}", found_schema, schema),
                 group.where(),
                 "write the file again with this twinrun, or read it with the one that wrote it"};
  }
  TWINRUN_ASSIGN(const int contract, read_int(group, "contract", 0));
  if (contract != kContractVersion) {
    return Error{
        fmt::format("found numeric contract {}; expected contract {}", contract, kContractVersion),
        group.where(),
        "write the file again with this twinrun, or read it with the one that wrote it"};
  }
  return contract;
}

Result<int> read_int(const Hdf5Node& node, const std::string& name, int least) {
  TWINRUN_ASSIGN(const int64_t value, node.integer(name));
  if (value >= least && value <= std::numeric_limits<int>::max()) return static_cast<int>(value);
  return Error{
      fmt::format("the attribute '{}' is {}; expected an int of at least {}", name, value, least),
      node.where(), kDamagedFix};
}

Result<Digest> read_digest(const Hdf5Node& node, const std::string& name) {
  TWINRUN_ASSIGN(const std::string hex, node.text(name));
  if (const auto digest = Digest::parse(hex)) return *digest;
  return Error{fmt::format("the attribute '{}' is '{}'; expected 32 hex digits", name, hex),
               node.where(), kDamagedFix};
}

std::string brief(const Digest& digest) { return digest.hex().substr(0, 8) + ".."; }

Status check_digest(const Digest& stored, const Digest& found, std::string_view what,
                    const std::string& where) {
  if (stored == found) return Ok{};
  return Error{
      fmt::format("{}: digest {} does not match the stored {}", what, brief(found), brief(stored)),
      where, kDamagedFix};
}

Status write_group(Hdf5Group& group, const Checkpoint& checkpoint) {
  TWINRUN_RETURN_IF_ERROR(check_names(checkpoint, group.where()));
  TWINRUN_RETURN_IF_ERROR(
      write_preamble(group, kCheckpointFormat, kCheckpointSchema, checkpoint.contract));
  TWINRUN_RETURN_IF_ERROR(group.set_int("step", checkpoint.step));
  TWINRUN_RETURN_IF_ERROR(group.set_uint("seed", checkpoint.seed));
  TWINRUN_RETURN_IF_ERROR(group.set_text("scenario", checkpoint.scenario));
  TWINRUN_RETURN_IF_ERROR(group.set_text("scenario_digest", checkpoint.scenario_digest));
  TWINRUN_RETURN_IF_ERROR(group.set_text("engine", checkpoint.engine));
  TWINRUN_RETURN_IF_ERROR(group.set_int("cores", checkpoint.cores));
  const CheckpointHeader header = checkpoint.header();
  TWINRUN_RETURN_IF_ERROR(group.set_text("root_digest", header.root_digest().hex()));
  TWINRUN_RETURN_IF_ERROR(group.set_text("header_digest", header_digest(header).hex()));
  TWINRUN_ASSIGN(Hdf5Group state, group.create_group("state"));
  for (const auto& [name, entry] : header.tensors) {
    TWINRUN_RETURN_IF_ERROR(write_tensor(state, name, checkpoint.tensors.at(name).value, entry));
  }
  return Ok{};
}

Result<Checkpoint> read_group(const Hdf5Group& group) {
  TWINRUN_ASSIGN(const CheckpointHeader h, read_header(group));
  Checkpoint checkpoint{h, {}};
  TWINRUN_ASSIGN(const Hdf5Group state, group.group("state"));
  for (const auto& [name, entry] : h.tensors) {
    TWINRUN_ASSIGN(Tensor value, read_entry(state, name, entry));
    checkpoint.tensors[name] = {std::move(value), entry.role, entry.replica_axis};
  }
  return checkpoint;
}

}  // namespace checkpoint_format

Status write_checkpoint(const std::string& path, const Checkpoint& checkpoint) {
  return checkpoint_format::guarded(path, [&]() -> Status {
    TWINRUN_ASSIGN(Hdf5File file, Hdf5File::create(path));
    TWINRUN_ASSIGN(Hdf5Group root, file.root());
    TWINRUN_RETURN_IF_ERROR(checkpoint_format::write_group(root, checkpoint));
    return std::move(file).save();
  });
}

Result<Checkpoint> read_checkpoint(const std::string& path) {
  return checkpoint_format::guarded(path, [&]() -> Result<Checkpoint> {
    TWINRUN_ASSIGN(const Hdf5File file, Hdf5File::open(path));
    TWINRUN_ASSIGN(const Hdf5Group root, file.root());
    return checkpoint_format::read_group(root);
  });
}

struct CheckpointFile::Impl {
  std::string path;
  Hdf5File file;
  Hdf5Group state;
  CheckpointHeader header;
};

CheckpointFile::CheckpointFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointFile::~CheckpointFile() = default;
CheckpointFile::CheckpointFile(CheckpointFile&&) noexcept = default;
CheckpointFile& CheckpointFile::operator=(CheckpointFile&&) noexcept = default;

Result<CheckpointFile> CheckpointFile::open(const std::string& path) {
  return checkpoint_format::guarded(path, [&]() -> Result<CheckpointFile> {
    TWINRUN_ASSIGN(Hdf5File file, Hdf5File::open(path));
    TWINRUN_ASSIGN(const Hdf5Group root, file.root());
    TWINRUN_ASSIGN(CheckpointHeader header, checkpoint_format::read_header(root));
    TWINRUN_ASSIGN(Hdf5Group state, root.group("state"));
    return CheckpointFile(std::unique_ptr<Impl>(
        new Impl{path, std::move(file), std::move(state), std::move(header)}));
  });
}

const CheckpointHeader& CheckpointFile::header() const { return impl_->header; }

Result<Tensor> CheckpointFile::read(const std::string& name) const {
  return checkpoint_format::guarded(impl_->path, [&]() -> Result<Tensor> {
    return checkpoint_format::read_entry(impl_->state, name, impl_->header.tensors.at(name));
  });
}

Result<TensorReader> CheckpointFile::reader(const std::string& name) const {
  return checkpoint_format::guarded(impl_->path, [&]() -> Result<TensorReader> {
    const CheckpointHeader::Entry& entry = impl_->header.tensors.at(name);
    TWINRUN_ASSIGN(const Hdf5Dataset dataset, checkpoint_format::dataset_of(impl_->state, name));
    const auto stored = dataset.stored_bytes(entry.type);
    Tensor whole;
    if (!stored) {
      TWINRUN_ASSIGN(whole, dataset.read_tensor(entry.type));
    }
    TensorReader reader(std::move(whole));
    reader.type_ = entry.type;
    reader.name_ = name;
    reader.where_ = dataset.where();
    reader.digest_ = entry.digest;
    if (stored) reader.file_ = stored->file, reader.begin_ = stored->begin;
    return reader;
  });
}

Status TensorReader::read(int64_t begin, int64_t count, std::byte* to) const {
  const size_t size = size_of(type_.dtype), at = static_cast<size_t>(begin) * size;
  size_t left = static_cast<size_t>(count) * size;
  if (file_ < 0) {
    std::memcpy(to, whole_.raw() + at, left);
    return Ok{};
  }
  for (uint64_t from = begin_ + at; left > 0;) {
    const ssize_t n = ::pread(file_, to, left, static_cast<off_t>(from));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      return Error{fmt::format("cannot read: {}", std::strerror(errno)), where_, "",
                   kind_of_failure(errno)};
    if (n == 0) return Error{"the file has become shorter", where_, "do not change it meanwhile"};
    to += n, from += static_cast<uint64_t>(n), left -= static_cast<size_t>(n);
  }
  return Ok{};
}

Status TensorReader::check(const Digest& found) const {
  return digest_ ? checkpoint_format::check_digest(*digest_, found, name_, where_) : Ok{};
}

namespace {

bool fits(const CheckpointTensor& tensor, const TensorType& expected) {
  TensorType found = tensor.value.type();
  if (found == expected) return true;
  if (!tensor.replica_axis || found.dims.empty()) return false;
  found.dims.erase(found.dims.begin());  // the shape of one replica
  return found == expected;
}

}  // namespace

Status check_same_model(const Checkpoint& checkpoint,
                        const std::map<std::string, TensorType>& expected) {
  const std::string fix =
      checkpoint.scenario_digest.empty()
          ? "make one for this scenario: twinrun train SCENARIO --snapshot -o init.h5"
          : fmt::format(
                "it belongs to the scenario with digest {}; make one for this scenario: "
                "twinrun train SCENARIO --snapshot -o init.h5",
                checkpoint.scenario_digest);
  for (const auto& [name, type] : expected) {
    const auto found = checkpoint.tensors.find(name);
    if (found == checkpoint.tensors.end()) {
      return Error{
          fmt::format("the checkpoint lacks this tensor; the model has it as {}", to_string(type)),
          name, fix};
    }
    if (!fits(found->second, type)) {
      return Error{
          fmt::format("the checkpoint has {}{}; the model has {}",
                      to_string(found->second.value.type()),
                      found->second.replica_axis ? " (replicas outermost)" : "", to_string(type)),
          name, fix};
    }
  }
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (expected.contains(name)) continue;
    return Error{fmt::format("the checkpoint has this tensor ({}); the model does not",
                             to_string(tensor.value.type())),
                 name, fix};
  }
  return Ok{};
}

}  // namespace twinrun
