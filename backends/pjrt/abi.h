// The part of the PJRT C API that this engine calls: how a plugin (XLA for a CPU, a GPU, a TPU) is told to compile and run.
// These are facts of its binary interface, in our own words and under our own names: which slot of the table is which function,
// and how the one argument of each is laid out.
// Source: xla/pjrt/c/pjrt_c_api.h of OpenXLA, version 0.81 (in the wheel xla-cpu-pjrt 0.0.1). Layouts only grow at their ends
// while the major version stays.
//
// Every argument begins with its size and an extension pointer; fields after the word "out" are filled in by the plugin.
#pragma once

#include <cstddef>
#include <cstdint>

namespace twinrun::pjrt {

// Objects of the plugin's, known by their addresses alone.
struct Failure;  // a PJRT_Error
struct Event;
struct Client;
struct Device;
struct DeviceDescription;
struct LoadedExecutable;
struct Buffer;

inline constexpr int kMajor = 0;

// Positions in the table of functions.
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
  kDeviceGetDescription = 29,
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

// What GetPjrtApi() returns. struct_size tells how many slots there are.
struct Api : Head {
  Version version;
  void* slots[kSlotsNeeded] = {};
};
using GetApi = const Api* (*)();
using Function =
    Failure* (*)(void* argument);  // of all slots but the first two, which return nothing

struct ErrorDestroy : Head {
  Failure* error = nullptr;
};
struct ErrorMessage : Head {
  const Failure* error = nullptr;
  const char* message = nullptr;  // out; the error's
  size_t size = 0;
};
struct ErrorGetCode : Head {
  const Failure* error = nullptr;
  int code = 0;  // out; those of absl::Status
};
struct PluginInitialize : Head {};

struct EventDestroy : Head {
  Event* event = nullptr;
};
struct EventAwait : Head {
  Event* event = nullptr;
};

// An option of a client, by name.
struct NamedValue : Head {
  const char* name = nullptr;
  size_t name_size = 0;
  enum Kind : int { kString = 0, kInt64 = 1 } kind = kInt64;
  union {
    const char* text;
    int64_t number = 0;
  };
  size_t value_size = 1;  // characters of a text, 1 for a number
};

struct ClientCreate : Head {
  const NamedValue* options = nullptr;
  size_t option_count = 0;
  void* key_value_get =
      nullptr;  // for clients of several processes, as all until `client`, and after it
  void* key_value_get_argument = nullptr;
  void* key_value_put = nullptr;
  void* key_value_put_argument = nullptr;
  Client* client = nullptr;  // out
  void* key_value_try_get = nullptr;
  void* key_value_try_get_argument = nullptr;
};
struct ClientDestroy : Head {
  Client* client = nullptr;
};
struct ClientText : Head {  // platform name, platform version
  Client* client = nullptr;
  const char* text = nullptr;  // out; the client's
  size_t size = 0;
};
struct ClientAddressableDevices : Head {
  Client* client = nullptr;
  Device* const* devices = nullptr;  // out; the client's
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
struct DeviceDescriptionKind : Head {
  DeviceDescription* description = nullptr;
  const char* text = nullptr;  // out; the device's
  size_t size = 0;
};

struct CodeText : Head {
  char* code = nullptr;
  size_t code_size = 0;
  const char* format = nullptr;  // "mlir": text or bytecode
  size_t format_size = 0;
};
struct ClientCompile : Head {
  Client* client = nullptr;
  const CodeText* program = nullptr;
  const char* options = nullptr;  // a CompileOptionsProto, serialized
  size_t options_size = 0;
  LoadedExecutable* executable = nullptr;  // out
};
struct LoadedExecutableDestroy : Head {
  LoadedExecutable* executable = nullptr;
};

enum class ElementType : int { kPred = 1, kS32 = 4, kF32 = 11, kF64 = 12, kBF16 = 13 };
enum class HostBufferSemantics : int { kImmutableOnlyDuringCall = 0 };

struct BufferFromHostBuffer : Head {
  Client* client = nullptr;
  const void* data = nullptr;
  ElementType type = ElementType::kF32;
  const int64_t* dims = nullptr;
  size_t rank = 0;
  const int64_t* byte_strides = nullptr;  // none: dense, row-major
  size_t byte_stride_count = 0;
  HostBufferSemantics semantics = HostBufferSemantics::kImmutableOnlyDuringCall;
  Device* device = nullptr;
  void* memory = nullptr;         // none: the device's own
  void* device_layout = nullptr;  // none: row-major
  Event* done = nullptr;          // out: `data` may go
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
  const int64_t* kept_inputs = nullptr;  // inputs that may not be given away
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
  Buffer** const* results = nullptr;  // [device][result]: lists of the caller's, filled in
  Event** done = nullptr;             // [device]: likewise
  Device* device = nullptr;           // none: those it was compiled for
};

// How a device's array lies on the host: dimensions from the fastest to the slowest.
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
