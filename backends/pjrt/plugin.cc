// Loads a PJRT plugin, calls the functions of its table, and opens a client.
#include "backends/pjrt/plugin.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

namespace twinrun::pjrt {
namespace {

constexpr const char* kFix =
    "a plugin is a shared library that exports GetPjrtApi (docs/guides/import.md#the-plugin): "
    "--pjrt-plugin PATH, or TWINRUN_PJRT_PLUGIN";

// The name of an absl::StatusCode.
std::string code_name(int code) {
  constexpr const char* kNames[] = {
      "ok",        "cancelled",      "unknown",           "invalid argument", "deadline",
      "not found", "already exists", "permission denied", "exhausted",        "failed precondition",
      "aborted",   "out of range",   "unimplemented",     "internal",         "unavailable",
      "data loss", "unauthenticated"};
  return code >= 0 && static_cast<size_t>(code) < std::size(kNames)
             ? kNames[code]
             : "code " + std::to_string(code);
}

}  // namespace

Result<std::shared_ptr<const Plugin>> Plugin::load(const std::string& path) {
  // Initialise each plugin only once per process.
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const Plugin>> loaded;
  const std::lock_guard lock(mutex);
  if (const auto found = loaded.find(path); found != loaded.end()) return found->second;

  const std::string place = std::string(kXlaPlace) + path;
  struct stat status {};
  if (stat(path.c_str(), &status) != 0)
    return Error{std::string("cannot be read: ") + std::strerror(errno), place, kFix};
  if (!S_ISREG(status.st_mode)) return Error{"is not a file", place, kFix};
  // Without a slash, dlopen would search the library path instead.
  const std::string from = path.find('/') == std::string::npos ? "./" + path : path;
  void* library = dlopen(from.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return Error{std::string("cannot be loaded: ") + (why == nullptr ? "no reason given" : why),
                 place, kFix};
  }
  const auto get = reinterpret_cast<GetApi>(dlsym(library, "GetPjrtApi"));
  if (get == nullptr)
    return Error{"has no function GetPjrtApi: it is not a PJRT plugin", place, kFix};
  const Api* api = get();
  if (api == nullptr) return Error{"GetPjrtApi returned null", place, kFix};
  if (api->struct_size < sizeof(Api) - sizeof(Api::slots))
    return Error{
        "its table has " + std::to_string(api->struct_size) + " bytes, too few for a version",
        place, kFix};
  if (api->version.major != kMajor) {
    return Error{"implements PJRT " + std::to_string(api->version.major) + "." +
                     std::to_string(api->version.minor) + "; this engine needs " +
                     std::to_string(kMajor) + ".x",
                 place, "use a plugin of major version " + std::to_string(kMajor)};
  }
  if (api->struct_size < sizeof(Api)) {
    return Error{"implements PJRT 0." + std::to_string(api->version.minor) + ": its table of " +
                     std::to_string(api->struct_size) + " bytes lacks functions that are needed (" +
                     std::to_string(sizeof(Api)) + " bytes)",
                 place, "use a newer plugin"};
  }
  for (const Slot slot : {Slot::kErrorDestroy,
                          Slot::kErrorMessage,
                          Slot::kErrorGetCode,
                          Slot::kPluginInitialize,
                          Slot::kEventDestroy,
                          Slot::kEventAwait,
                          Slot::kClientCreate,
                          Slot::kClientDestroy,
                          Slot::kClientPlatformName,
                          Slot::kClientPlatformVersion,
                          Slot::kClientAddressableDevices,
                          Slot::kClientCompile,
                          Slot::kClientBufferFromHostBuffer,
                          Slot::kDeviceDescriptionId,
                          Slot::kDeviceDescriptionKind,
                          Slot::kDeviceGetDescription,
                          Slot::kLoadedExecutableDestroy,
                          Slot::kLoadedExecutableExecute,
                          Slot::kBufferDestroy,
                          Slot::kBufferToHostBuffer}) {
    if (api->slots[static_cast<size_t>(slot)] == nullptr)
      return Error{
          "function " + std::to_string(static_cast<size_t>(slot)) + " of its table is missing",
          place, kFix};
  }
  const std::shared_ptr<const Plugin> plugin(new Plugin(path, api));
  PluginInitialize initialize;
  TWINRUN_RETURN_IF_ERROR(plugin->call(Slot::kPluginInitialize, initialize, "initialise"));
  return loaded[path] = plugin;
}

// A plugin's functions are declared with its own types, which have the layout of ours (abi.h) but
// are other types to the sanitizer of calls that clang has.
#ifdef __clang__
#define TWINRUN_CALLS_C __attribute__((no_sanitize("function")))
#else
#define TWINRUN_CALLS_C
#endif

TWINRUN_CALLS_C Failure* Plugin::invoke(Slot slot, void* argument) const {
  return reinterpret_cast<Function>(at(slot))(argument);
}

TWINRUN_CALLS_C Status Plugin::checked(Failure* error, const char* doing) const {
  if (error == nullptr) return Ok{};
  ErrorMessage message;
  message.struct_size = sizeof message;
  message.error = error;
  reinterpret_cast<void (*)(void*)>(at(Slot::kErrorMessage))(&message);
  const std::string words =
      message.message == nullptr ? "no reason given" : std::string(message.message, message.size);
  ErrorGetCode code;
  code.struct_size = sizeof code;
  code.error = error;
  code.code = 2;
  // Ignore an error of this call: the original error is what must be reported.
  (void)invoke(Slot::kErrorGetCode, &code);
  ErrorDestroy destroy;
  destroy.struct_size = sizeof destroy;
  destroy.error = error;
  reinterpret_cast<void (*)(void*)>(at(Slot::kErrorDestroy))(&destroy);
  return Error{
      std::string("the plugin could not ") + doing + " (" + code_name(code.code) + "): " + words,
      place(), ""};
}

Status Plugin::await(Event* event, const char* doing) const {
  if (event == nullptr) return Ok{};
  EventAwait wait;
  wait.event = event;
  Status done = call(Slot::kEventAwait, wait, doing);
  EventDestroy destroy;
  destroy.event = event;
  drop(Slot::kEventDestroy, destroy);
  return done;
}

Result<std::shared_ptr<const Client>> Client::open(std::shared_ptr<const Plugin> plugin,
                                                   int devices) {
  // The CPU plugin's option for the number of devices to make. Other plugins refuse it; retry
  // without.
  static constexpr std::string_view kCount = "cpu_device_count";
  NamedValue count;
  count.struct_size = sizeof count;
  count.name = kCount.data();
  count.name_size = kCount.size();
  count.number = devices;
  ClientCreate create;
  create.options = &count;
  create.option_count = 1;
  const Status as_cpu = plugin->call(Slot::kClientCreate, create, "make a client");
  if (!as_cpu.ok()) {
    create = {};
    TWINRUN_RETURN_IF_ERROR(plugin->call(Slot::kClientCreate, create, "make a client"));
  }
  if (create.client == nullptr) return Error{"returned no client", plugin->place(), ""};
  const std::shared_ptr<Client> client(new Client(std::move(plugin), create.client));
  TWINRUN_RETURN_IF_ERROR(client->describe());
  return std::shared_ptr<const Client>(client);
}

Client::~Client() {
  ClientDestroy destroy;
  destroy.client = handle_;
  plugin_->drop(Slot::kClientDestroy, destroy);
}

Status Client::describe() {
  const auto text = [](const auto& argument) {
    return argument.text == nullptr ? std::string() : std::string(argument.text, argument.size);
  };
  for (const auto& [slot, into] : {std::pair{Slot::kClientPlatformName, &platform_},
                                   std::pair{Slot::kClientPlatformVersion, &version_}}) {
    ClientText platform;
    platform.client = handle_;
    TWINRUN_RETURN_IF_ERROR(plugin_->call(slot, platform, "name its platform"));
    *into = text(platform);
  }
  ClientAddressableDevices listed;
  listed.client = handle_;
  TWINRUN_RETURN_IF_ERROR(
      plugin_->call(Slot::kClientAddressableDevices, listed, "list its devices"));
  if (listed.count == 0) return Error{"has no device", plugin_->place(), "platform " + platform_};
  devices_.assign(listed.devices, listed.devices + listed.count);
  for (Device* device : devices_) {
    DeviceGetDescription of;
    of.device = device;
    TWINRUN_RETURN_IF_ERROR(plugin_->call(Slot::kDeviceGetDescription, of, "describe a device"));
    DeviceDescriptionId id;
    id.description = of.description;
    TWINRUN_RETURN_IF_ERROR(plugin_->call(Slot::kDeviceDescriptionId, id, "number a device"));
    ids_.push_back(id.id);
    if (!kind_.empty()) continue;
    DeviceDescriptionKind kind;
    kind.description = of.description;
    TWINRUN_RETURN_IF_ERROR(plugin_->call(Slot::kDeviceDescriptionKind, kind, "name a device"));
    kind_ = text(kind);
  }
  return Ok{};
}

}  // namespace twinrun::pjrt
