// Compiles a module, and runs it: copies arguments to the devices and results back.
#include <algorithm>
#include <map>
#include <optional>

#include "backends/pjrt/plugin.h"

namespace twinrun::pjrt {
namespace {

// The wire format of protocol buffers: a field's number and wire type, then a varint, or a length
// and bytes.
void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}
void put_number(std::string& out, int field, int64_t value) {
  put_varint(out, static_cast<uint64_t>(field) << 3);
  put_varint(out, static_cast<uint64_t>(value));
}
void put_bytes(std::string& out, int field, const std::string& bytes) {
  put_varint(out, static_cast<uint64_t>(field) << 3 | 2);
  put_varint(out, bytes.size());
  out += bytes;
}

ElementType element_type(DType dtype) {
  switch (dtype) {
    case DType::kPred:
      return ElementType::kPred;
    case DType::kI32:
      return ElementType::kS32;
    case DType::kBF16:
      return ElementType::kBF16;
    case DType::kF64:
      return ElementType::kF64;
    default:
      return ElementType::kF32;
  }
}

// Elements of a type that tensors do not have, and how they are converted.
struct ForeignType {
  ElementType type;
  size_t size;
  void (*from_tensor)(const Tensor&, std::byte*);
  void (*to_tensor)(const std::byte*, Tensor&);
};

// Calls f with the elements of a tensor. TensorLike is Tensor or const Tensor.
template <typename TensorLike, typename F>
void with_elements(TensorLike& tensor, F f) {
  const auto give = [&]<typename T>(T) {
    f(tensor.template as<std::conditional_t<std::is_const_v<TensorLike>, const T, T>>());
  };
  switch (tensor.dtype()) {
    case DType::kI32:
      return give(int32_t{});
    case DType::kPred:
      return give(uint8_t{});
    case DType::kF64:
      return give(double{});
    default:
      return give(float{});
  }
}

template <typename T>
ForeignType foreign(ElementType type) {
  return {type, sizeof(T),
          [](const Tensor& tensor, std::byte* to) {
            with_elements(tensor, [&](auto elements) {
              std::ranges::transform(elements, reinterpret_cast<T*>(to),
                                     [](auto e) { return static_cast<T>(e); });
            });
          },
          [](const std::byte* from, Tensor& tensor) {
            with_elements(tensor, [&](auto elements) {
              const T* at = reinterpret_cast<const T*>(from);
              for (auto& e : elements) e = static_cast<std::remove_reference_t<decltype(e)>>(*at++);
            });
          }};
}

// How the elements of a tensor become those of an array of `dtype`; nothing where they are the same.
std::optional<ForeignType> conversion(const std::vector<std::string>& dtypes, size_t i) {
  static const std::map<std::string_view, ForeignType> types = {
      {"s8", foreign<int8_t>(ElementType::kS8)},     {"u8", foreign<uint8_t>(ElementType::kU8)},
      {"s16", foreign<int16_t>(ElementType::kS16)},  {"u16", foreign<uint16_t>(ElementType::kU16)},
      {"u32", foreign<uint32_t>(ElementType::kU32)}, {"s64", foreign<int64_t>(ElementType::kS64)},
      {"u64", foreign<uint64_t>(ElementType::kU64)}, {"f64", foreign<double>(ElementType::kF64)}};
  if (i >= dtypes.size()) return std::nullopt;
  const auto found = types.find(dtypes[i]);
  return found == types.end() ? std::nullopt : std::optional(found->second);
}

// Arrays on devices, destroyed with this object.
class Buffers {
 public:
  Buffers(const Plugin& plugin, size_t devices, size_t each)
      : plugin_(plugin), lists_(devices, std::vector<Buffer*>(each, nullptr)) {
    for (auto& list : lists_) pointers_.push_back(list.data());
  }
  ~Buffers() {
    for (const auto& list : lists_) {
      for (Buffer* buffer : list) {
        if (buffer == nullptr) continue;
        BufferDestroy destroy;
        destroy.buffer = buffer;
        plugin_.drop(Slot::kBufferDestroy, destroy);
      }
    }
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  Buffer*& at(size_t device, size_t i) { return lists_[device][i]; }
  Buffer** const* lists() const { return pointers_.data(); }

 private:
  const Plugin& plugin_;
  std::vector<std::vector<Buffer*>> lists_;
  std::vector<Buffer**> pointers_;
};

Status put(const Client& client, Device* device, const Tensor& tensor,
           const std::optional<ForeignType>& as, Buffer*& buffer) {
  BufferFromHostBuffer from;
  from.client = client.handle();
  from.data = tensor.raw();
  from.type = element_type(tensor.dtype());
  std::vector<std::byte> converted;
  if (as) {
    converted.resize(static_cast<size_t>(tensor.elements()) * as->size);
    as->from_tensor(tensor, converted.data());
    from.data = converted.data();
    from.type = as->type;
  }
  from.dims = tensor.dims().data();
  from.rank = tensor.dims().size();
  from.device = device;
  TWINRUN_RETURN_IF_ERROR(
      client.plugin().call(Slot::kClientBufferFromHostBuffer, from, "take an argument"));
  buffer = from.buffer;
  return client.plugin().await(from.done, "take an argument");
}

// Starts copying a device array into a tensor, in row-major order whatever its layout on the
// device. The event signals the end of the copy.
Result<Event*> fetch(const Client& client, Buffer* buffer, const Dims& dims, std::byte* into,
                     size_t bytes) {
  std::vector<int64_t> order(dims.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(order.size() - 1 - i);
  MemoryLayout layout;
  layout.struct_size = sizeof layout;
  layout.tiled.struct_size = sizeof layout.tiled;
  layout.tiled.minor_to_major = order.data();
  layout.tiled.rank = order.size();
  BufferToHostBuffer to;
  to.buffer = buffer;
  to.host_layout = &layout;
  to.data = into;
  to.size = bytes;
  TWINRUN_RETURN_IF_ERROR(
      client.plugin().call(Slot::kBufferToHostBuffer, to, "give back a result"));
  return to.done;
}

}  // namespace

Status there_and_back(const Client& client, size_t device) {
  Buffers buffers(client.plugin(), 1, 1);
  const Tensor sent = Tensor::scalar(1.5F);
  Tensor back = Tensor::zeros(sent.type());
  TWINRUN_RETURN_IF_ERROR(
      put(client, client.devices()[device], sent, std::nullopt, buffers.at(0, 0)));
  TWINRUN_ASSIGN(Event* const done,
                 fetch(client, buffers.at(0, 0), sent.dims(), back.raw(), back.bytes()));
  TWINRUN_RETURN_IF_ERROR(client.plugin().await(done, "give back a result"));
  if (back.as<float>()[0] == sent.as<float>()[0]) return Ok{};
  return Error{"1.5 was sent to it, and " + std::to_string(back.as<float>()[0]) + " came back",
               client.plugin().place(), ""};
}

std::string compile_options(const std::vector<int>& devices) {
  const auto replicas = static_cast<int64_t>(devices.size());
  // DeviceAssignmentProto: replica_count, computation_count, computation_devices.
  std::string assigned;
  std::string computation, ids;
  for (const int id : devices) put_varint(ids, static_cast<uint64_t>(id));
  put_bytes(computation, 1, ids);  // replica_device_ids
  put_number(assigned, 1, replicas);
  put_number(assigned, 2, 1);
  put_bytes(assigned, 3, computation);
  std::string build;               // ExecutableBuildOptionsProto
  put_number(build, 1, -1);        // device_ordinal: none
  put_number(build, 4, replicas);  // num_replicas
  put_number(build, 5, 1);         // num_partitions
  put_bytes(build, 9, assigned);   // device_assignment
  std::string options;
  put_bytes(options, 3, build);  // executable_build_options
  return options;
}

Result<std::unique_ptr<Executable>> Executable::compile(std::shared_ptr<const Client> client,
                                                        const std::string& module, size_t replicas,
                                                        ArrayTypes types) {
  if (replicas > client->devices().size()) {
    return Error{"has " + std::to_string(client->devices().size()) +
                     " devices; the program needs " + std::to_string(replicas),
                 client->plugin().place(), "set tpu.cores to what it has"};
  }
  std::vector<int> devices;
  for (size_t r = 0; r < replicas; ++r) devices.push_back(client->id(r));
  const std::string options = compile_options(devices);
  static constexpr std::string_view kFormat = "mlir";
  std::string code = module;
  CodeText program;
  program.struct_size = sizeof program;
  program.code = code.data();
  program.code_size = code.size();
  program.format = kFormat.data();
  program.format_size = kFormat.size();
  ClientCompile compile;
  compile.client = client->handle();
  compile.program = &program;
  compile.options = options.data();
  compile.options_size = options.size();
  TWINRUN_RETURN_IF_ERROR(
      client->plugin().call(Slot::kClientCompile, compile, "compile the program"));
  return std::unique_ptr<Executable>(
      new Executable(std::move(client), compile.executable, std::move(types)));
}

Executable::~Executable() {
  LoadedExecutableDestroy destroy;
  destroy.executable = handle_;
  client_->plugin().drop(Slot::kLoadedExecutableDestroy, destroy);
}

Status Executable::run(const std::vector<std::vector<Tensor>>& arguments,
                       std::vector<std::vector<Tensor>>& results) const {
  const Plugin& plugin = client_->plugin();
  const size_t replicas = arguments.size(), count = arguments[0].size();
  Buffers in(plugin, replicas, count), out(plugin, replicas, results[0].size());
  for (size_t r = 0; r < replicas; ++r) {
    for (size_t i = 0; i < count; ++i)
      TWINRUN_RETURN_IF_ERROR(put(*client_, client_->devices()[r], arguments[r][i],
                                  conversion(types_.arguments, i), in.at(r, i)));
  }
  ExecuteOptions options;  // inputs may be donated: they are of this call alone
  options.struct_size = sizeof options;
  std::vector<Event*> done(replicas, nullptr);
  LoadedExecutableExecute execute;
  execute.executable = handle_;
  execute.options = &options;
  execute.arguments = in.lists();
  execute.device_count = replicas;
  execute.argument_count = count;
  execute.results = out.lists();
  execute.done = done.data();
  TWINRUN_RETURN_IF_ERROR(plugin.call(Slot::kLoadedExecutableExecute, execute, "run the program"));
  Status good = Ok{};
  const auto keep = [&](Status status) {
    if (good.ok() && !status.ok()) good = std::move(status);
  };
  // Wait for every event even after an error: the caller must destroy each of them.
  for (Event* event : done) keep(plugin.await(event, "run the program"));
  if (!good.ok()) return good;
  std::vector<Event*> copies;
  std::vector<std::vector<std::byte>> foreign(replicas * results[0].size());
  for (size_t r = 0; r < replicas; ++r) {
    for (size_t i = 0; i < results[r].size(); ++i) {
      Tensor& to = results[r][i];
      auto& bytes = foreign[r * results[0].size() + i];
      const auto as = conversion(types_.results, i);
      if (as) bytes.resize(static_cast<size_t>(to.elements()) * as->size);
      Result<Event*> event = fetch(*client_, out.at(r, i), to.dims(), as ? bytes.data() : to.raw(),
                                   as ? bytes.size() : to.bytes());
      if (event.ok()) {
        copies.push_back(*event);
      } else {
        keep(event.error());
      }
    }
  }
  for (Event* event : copies) keep(plugin.await(event, "give back a result"));
  for (size_t i = 0; good.ok() && i < foreign.size(); ++i) {
    const size_t n = results[0].size();
    if (const auto as = conversion(types_.results, i % n))
      as->to_tensor(foreign[i].data(), results[i / n][i % n]);
  }
  return good;
}

}  // namespace twinrun::pjrt
