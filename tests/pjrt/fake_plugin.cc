// A PJRT plugin for tests that computes nothing: its programs are "identity N", which return their
// first N arguments. It counts the objects that it has created and that were not destroyed, and it
// fails in the way that FAKE_PJRT names when it is loaded.
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "backends/pjrt/abi.h"

namespace twinrun::pjrt {

struct Failure {
  int code;
  std::string message;
};
struct Event {
  std::string fails;
};
struct ClientHandle {
  int devices;
};
struct Device {
  int id;
};
struct DeviceDescription {};
struct LoadedExecutable {
  size_t results;
};
struct Buffer {
  std::vector<char> bytes;
};

namespace {

std::string wrong;
int live = 0;
Device devices[64];
Device* device_list[64];
DeviceDescription descriptions[64];

template <typename T>
T* made(T value) {
  ++live;
  return new T(std::move(value));
}
template <typename T>
Failure* gone(T* object) {
  if (object != nullptr) --live;
  delete object;
  return nullptr;
}
Failure* failure(int code, std::string message) { return made(Failure{code, std::move(message)}); }
template <typename T>
T& as(void* argument) {
  return *static_cast<T*>(argument);
}

void* error_destroy(void* a) { return gone(as<ErrorDestroy>(a).error); }
void* error_message(void* a) {
  auto& m = as<ErrorMessage>(a);
  m.message = m.error->message.data();
  m.size = m.error->message.size();
  return nullptr;
}
void* error_code(void* a) {
  as<ErrorGetCode>(a).code = as<ErrorGetCode>(a).error->code;
  return nullptr;
}
void* initialize(void*) {
  return wrong == "initialise" ? failure(13, "no driver of version 7") : nullptr;
}
void* event_destroy(void* a) { return gone(as<EventDestroy>(a).event); }
void* event_await(void* a) {
  const std::string& fails = as<EventAwait>(a).event->fails;
  return fails.empty() ? nullptr : failure(8, fails);
}
void* client_create(void* a) {
  auto& c = as<ClientCreate>(a);
  if (wrong == "client") return failure(14, "the device is in use by process 17");
  if (wrong == "options" && c.option_count > 0) return failure(3, "unknown option");
  const int asked = c.option_count > 0 ? static_cast<int>(c.options[0].number) : 2;
  c.client = made(ClientHandle{wrong == "no device" ? 0 : asked});
  for (int i = 0; i < 64; ++i) {
    devices[i].id = 100 + i;
    device_list[i] = &devices[i];
  }
  return nullptr;
}
void* client_destroy(void* a) { return gone(as<ClientDestroy>(a).client); }
void* client_text(void* a) {
  const char* text = wrong == "options" ? "abacus" : "cpu";
  as<ClientText>(a).text = text;
  as<ClientText>(a).size = std::strlen(text);
  return nullptr;
}
void* client_devices(void* a) {
  auto& d = as<ClientAddressableDevices>(a);
  d.devices = device_list;
  d.count = static_cast<size_t>(d.client->devices);
  return nullptr;
}
void* get_description(void* a) {
  auto& d = as<DeviceGetDescription>(a);
  d.description = &descriptions[d.device - devices];
  return nullptr;
}
void* description_id(void* a) {
  auto& d = as<DeviceDescriptionId>(a);
  d.id = devices[d.description - descriptions].id;
  return nullptr;
}
void* description_kind(void* a) {
  as<DeviceDescriptionKind>(a).text = "fake one";
  as<DeviceDescriptionKind>(a).size = 8;
  return nullptr;
}
void* description_name(void* a) {
  static const char* names[] = {"FAKE_0", "FAKE_1", "FAKE_N"};
  const auto i = as<DeviceDescriptionKind>(a).description - descriptions;
  as<DeviceDescriptionKind>(a).text = names[i > 2 ? 2 : i];
  as<DeviceDescriptionKind>(a).size = 6;
  return nullptr;
}
void* memory_stats(void* a) {
  auto& m = as<DeviceMemoryStats>(a);
  if (wrong == "options") return failure(12, "no statistics");
  m.in_use = 1000;
  m.limit = {1 << 20, true};
  return nullptr;
}
void* compile(void* a) {
  auto& c = as<ClientCompile>(a);
  const std::string code(c.program->code, c.program->code_size);
  if (!code.starts_with("identity ")) return failure(3, "cannot parse: " + code.substr(0, 20));
  c.executable = made(LoadedExecutable{std::stoul(code.substr(9))});
  return nullptr;
}
void* executable_destroy(void* a) { return gone(as<LoadedExecutableDestroy>(a).executable); }
void* from_host(void* a) {
  auto& b = as<BufferFromHostBuffer>(a);
  size_t bytes = b.type == ElementType::kPred ? 1 : 4;
  for (size_t i = 0; i < b.rank; ++i) bytes *= static_cast<size_t>(b.dims[i]);
  if (wrong == "device 1" && b.device == &devices[1])
    return failure(14, "the device is held by process 17");
  const char* data = static_cast<const char*>(b.data);
  b.buffer = made(Buffer{std::vector<char>(data, data + bytes)});
  b.done = made(Event{});
  return nullptr;
}
void* buffer_destroy(void* a) { return gone(as<BufferDestroy>(a).buffer); }
void* execute(void* a) {
  auto& e = as<LoadedExecutableExecute>(a);
  if (wrong == "execute") return failure(8, "out of memory while trying to allocate 4 bytes");
  for (size_t d = 0; d < e.device_count; ++d) {
    for (size_t i = 0; i < e.executable->results; ++i)
      e.results[d][i] = made(Buffer{e.arguments[d][i]->bytes});
    e.done[d] = made(Event{wrong == "run" && d == 1 ? "a replica was lost" : ""});
  }
  return nullptr;
}
void* to_host(void* a) {
  auto& b = as<BufferToHostBuffer>(a);
  if (b.size < b.buffer->bytes.size()) return failure(3, "too small");
  std::memcpy(b.data, b.buffer->bytes.data(), b.buffer->bytes.size());
  b.done = made(Event{wrong == "copy" ? "the link is down" : ""});
  return nullptr;
}

Api table() {
  Api api;
  api.struct_size = sizeof api;
  api.version.struct_size = sizeof api.version;
  api.version.minor = 81;
  const auto set = [&](Slot slot, void* (*function)(void*)) {
    api.slots[static_cast<size_t>(slot)] = reinterpret_cast<void*>(function);
  };
  set(Slot::kErrorDestroy, error_destroy);
  set(Slot::kErrorMessage, error_message);
  set(Slot::kErrorGetCode, error_code);
  set(Slot::kPluginInitialize, initialize);
  set(Slot::kEventDestroy, event_destroy);
  set(Slot::kEventAwait, event_await);
  set(Slot::kClientCreate, client_create);
  set(Slot::kClientDestroy, client_destroy);
  set(Slot::kClientPlatformName, client_text);
  set(Slot::kClientPlatformVersion, client_text);
  set(Slot::kClientAddressableDevices, client_devices);
  set(Slot::kClientCompile, compile);
  set(Slot::kClientBufferFromHostBuffer, from_host);
  set(Slot::kDeviceDescriptionId, description_id);
  set(Slot::kDeviceDescriptionKind, description_kind);
  set(Slot::kDeviceDescriptionToString, description_name);
  set(Slot::kDeviceMemoryStats, memory_stats);
  set(Slot::kDeviceGetDescription, get_description);
  set(Slot::kLoadedExecutableDestroy, executable_destroy);
  set(Slot::kLoadedExecutableExecute, execute);
  set(Slot::kBufferDestroy, buffer_destroy);
  set(Slot::kBufferToHostBuffer, to_host);
  if (wrong == "version") api.version.major = 1;
  if (wrong == "old") api.struct_size = 200;
  if (wrong == "nameless")
    api.slots[static_cast<size_t>(Slot::kDeviceDescriptionToString)] =
        api.slots[static_cast<size_t>(Slot::kDeviceMemoryStats)] = nullptr;
  if (wrong == "hole") api.slots[static_cast<size_t>(Slot::kClientCompile)] = nullptr;
  return api;
}

}  // namespace
}  // namespace twinrun::pjrt

// The number of objects that are not destroyed yet.
extern "C" int FakeLive() { return twinrun::pjrt::live; }

extern "C" const twinrun::pjrt::Api* GetPjrtApi() {
  const char* named = std::getenv("FAKE_PJRT");
  twinrun::pjrt::wrong = named == nullptr ? "" : named;
  static twinrun::pjrt::Api api;
  api = twinrun::pjrt::table();
  return twinrun::pjrt::wrong == "nothing" ? nullptr : &api;
}
