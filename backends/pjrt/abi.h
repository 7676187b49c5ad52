// The part of the PJRT C API that this engine calls to make a plugin (XLA for a CPU, a GPU, a TPU)
// compile and run programs. It restates facts of the binary interface under our own names: which
// slot of the table holds which function, and the layout of each function's one argument.
// Source: xla/pjrt/c/pjrt_c_api.h of OpenXLA, version 0.81 (in the wheel xla-cpu-pjrt 0.0.1).
// Within a major version, layouts only grow at their ends.
//
// Every argument begins with its size and an extension pointer. The plugin fills in a field marked
// "out", and the size or count that follows it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace twinrun::pjrt {

// Opaque objects of the plugin.
struct Failure;  // a PJRT_Error
struct Event;
struct ClientHandle;
struct Device;
struct DeviceDescription;
struct LoadedExecutable;
struct Buffer;

inline constexpr int kMajor = 0;

// Indices into the table of functions.
enum class Slot : size_t {
  kErrorDestroy = 0,
  kErrorMessage = 1,
  kErrorGetCode = 2,
  kPluginInitialize = 3,
  kEventDestroy = 5,
  kEventAwait = 8,
  kClientCreate = 10,
  kClientDestroy = 11,
  kClientPlatformName = 12,
  kClientPlatformVersion = 14,
  kClientAddressableDevices = 16,
  kClientCompile = 20,
  kClientBufferFromHostBuffer = 22,
  kDeviceDescriptionId = 23,
  kDeviceDescriptionKind = 26,
  kDeviceDescriptionToString = 28,  // may be missing
  kDeviceGetDescription = 29,
  kDeviceMemoryStats = 34,  // may be missing
  kLoadedExecutableDestroy = 50,
  kLoadedExecutableExecute = 55,
  kBufferDestroy = 58,
  kBufferToHostBuffer = 70,
};
inline constexpr size_t kSlotsNeeded = static_cast<size_t>(Slot::kBufferToHostBuffer) + 1;

struct Head {
  size_t struct_size = 0;
  void* extension = nullptr;
};

struct Version : Head {
  int major = 0, minor = 0;
};

// What GetPjrtApi() returns. struct_size tells how many slots the plugin has.
struct Api : Head {
  Version version;
  void* slots[kSlotsNeeded] = {};
};
using GetApi = const Api* (*)();
// The type of all slots except the first two, which return nothing.
using Function = Failure* (*)(void* argument);

struct ErrorDestroy : Head {
  Failure* error = nullptr;
};
struct ErrorMessage : Head {
  const Failure* error = nullptr;
  const char* message = nullptr;  // out; owned by the error
  size_t size = 0;
};
struct ErrorGetCode : Head {
  const Failure* error = nullptr;
  int code = 0;  // out; an absl::StatusCode
};
struct PluginInitialize : Head {};

struct EventDestroy : Head {
  Event* event = nullptr;
};
struct EventAwait : Head {
  Event* event = nullptr;
};

// A named option for creating a client.
struct NamedValue : Head {
  const char* name = nullptr;
  size_t name_size = 0;
  enum Kind : int { kString = 0, kInt64 = 1 } kind = kInt64;
  union {
    const char* text;
    int64_t number = 0;
  };
  size_t value_size = 1;  // length of a text; 1 for a number
};

struct ClientCreate : Head {
  const NamedValue* options = nullptr;
  size_t option_count = 0;
  // All key_value_ fields are for clients that span several processes.
  void* key_value_get = nullptr;
  void* key_value_get_argument = nullptr;
  void* key_value_put = nullptr;
  void* key_value_put_argument = nullptr;
  ClientHandle* client = nullptr;  // out
  void* key_value_try_get = nullptr;
  void* key_value_try_get_argument = nullptr;
};
struct ClientDestroy : Head {
  ClientHandle* client = nullptr;
};
struct ClientText : Head {  // platform name, platform version
  ClientHandle* client = nullptr;
  const char* text = nullptr;  // out; owned by the client
  size_t size = 0;
};
struct ClientAddressableDevices : Head {
  ClientHandle* client = nullptr;
  Device* const* devices = nullptr;  // out; owned by the client
  size_t count = 0;
};

struct DeviceGetDescription : Head {
  Device* device = nullptr;
  DeviceDescription* description = nullptr;  // out
};
struct DeviceDescriptionId : Head {
  DeviceDescription* description = nullptr;
  int id = 0;  // out
};
struct DeviceDescriptionKind : Head {  // also its name
  DeviceDescription* description = nullptr;
  const char* text = nullptr;  // out; owned by the device
  size_t size = 0;
};
// A number that a device may not tell.
struct MaybeBytes {
  int64_t bytes = 0;
  bool is_set = false;
};
struct DeviceMemoryStats : Head {
  Device* device = nullptr;
  int64_t in_use = 0;                     // out
  MaybeBytes peak, allocations, largest;  // out
  MaybeBytes limit;                       // out
  MaybeBytes rest[6];                     // out
};

struct CodeText : Head {
  char* code = nullptr;
  size_t code_size = 0;
  const char* format = nullptr;  // "mlir": MLIR text or bytecode
  size_t format_size = 0;
};
struct ClientCompile : Head {
  ClientHandle* client = nullptr;
  const CodeText* program = nullptr;
  const char* options = nullptr;  // a serialized CompileOptionsProto
  size_t options_size = 0;
  LoadedExecutable* executable = nullptr;  // out
};
struct LoadedExecutableDestroy : Head {
  LoadedExecutable* executable = nullptr;
};

enum class ElementType : int {
  kPred = 1,
  kS8 = 2,
  kS16 = 3,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kU16 = 7,
  kU32 = 8,
  kU64 = 9,
  kF32 = 11,
  kF64 = 12,
  kBF16 = 13
};
enum class HostBufferSemantics : int { kImmutableOnlyDuringCall = 0 };

struct BufferFromHostBuffer : Head {
  ClientHandle* client = nullptr;
  const void* data = nullptr;
  ElementType type = ElementType::kF32;
  const int64_t* dims = nullptr;
  size_t rank = 0;
  const int64_t* byte_strides = nullptr;  // null: dense, row-major
  size_t byte_stride_count = 0;
  HostBufferSemantics semantics = HostBufferSemantics::kImmutableOnlyDuringCall;
  Device* device = nullptr;
  void* memory = nullptr;         // null: the device's default memory
  void* device_layout = nullptr;  // null: row-major
  Event* done = nullptr;          // out: from this event on, `data` may be freed
  Buffer* buffer = nullptr;       // out
};
struct BufferDestroy : Head {
  Buffer* buffer = nullptr;
};

struct ExecuteOptions : Head {
  void* send_callbacks = nullptr;
  void* receive_callbacks = nullptr;
  size_t send_count = 0, receive_count = 0;
  int launch_id = 0;
  const int64_t* kept_inputs = nullptr;  // indices of inputs that must not be donated
  size_t kept_input_count = 0;
  void* context = nullptr;
  const char* call_location = nullptr;
  size_t task_count = 0;
  int* task_ids = nullptr;
  int64_t* incarnation_ids = nullptr;
};
struct LoadedExecutableExecute : Head {
  LoadedExecutable* executable = nullptr;
  ExecuteOptions* options = nullptr;
  Buffer* const* const* arguments = nullptr;  // [device][argument]
  size_t device_count = 0, argument_count = 0;
  Buffer** const* results = nullptr;  // [device][result]: the caller's lists, which are filled in
  Event** done = nullptr;             // [device]: the caller's list, which is filled in
  Device* device = nullptr;           // null: the devices that it was compiled for
};

// The layout in which an array is copied to the host: its dimensions from the fastest-varying to
// the slowest.
struct TiledLayout : Head {
  const int64_t* minor_to_major = nullptr;
  size_t rank = 0;
  const int64_t* tile_dims = nullptr;
  const size_t* tile_dim_sizes = nullptr;
  size_t tile_count = 0;
};
struct MemoryLayout : Head {
  TiledLayout tiled;
  enum Kind : int { kTiled = 0 } kind = kTiled;
};
struct BufferToHostBuffer : Head {
  Buffer* buffer = nullptr;
  MemoryLayout* host_layout = nullptr;
  void* data = nullptr;
  size_t size = 0;
  Event* done = nullptr;  // out
};

}  // namespace twinrun::pjrt
