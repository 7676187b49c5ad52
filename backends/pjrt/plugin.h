// A loaded PJRT plugin, its client (the devices), and compiled StableHLO modules. Every failure of
// a plugin becomes an error that names the plugin.
//
//   TWINRUN_ASSIGN(const auto plugin, pjrt::Plugin::load("/usr/lib/xla_cpu_pjrt.so"));
//   TWINRUN_ASSIGN(const auto client, pjrt::Client::open(plugin, 8));
//   TWINRUN_ASSIGN(const auto step, pjrt::Executable::compile(client, module.text, 8));
//   TWINRUN_RETURN_IF_ERROR(step->run(arguments, results));     // [replica][i]
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backends/pjrt/abi.h"
#include "backends/pjrt/pjrt_backend.h"
#include "program/base/result.h"
#include "program/base/tensor.h"

namespace twinrun::pjrt {

class Plugin {
 public:
  // Errors: no such file, not a library, no GetPjrtApi, another major version, a table that is too
  // short, a failed initialisation. A plugin stays loaded until the process ends, because plugins
  // cannot be unloaded safely.
  static Result<std::shared_ptr<const Plugin>> load(const std::string& path);

  const std::string& path() const { return path_; }
  // What errors give as their place.
  std::string place() const { return std::string(kXlaPlace) + path_; }
  int minor() const { return api_->version.minor; }

  // Calls a function of the table. `doing` completes the error text: "the plugin could not ...".
  template <typename Argument>
  Status call(Slot slot, Argument& argument, const char* doing) const {
    argument.struct_size = sizeof argument;
    return checked(invoke(slot, &argument), doing);
  }
  // Whether the plugin has a function that it may lack.
  bool has(Slot slot) const { return at(slot) != nullptr; }
  // Waits for an event and destroys it.
  Status await(Event* event, const char* doing) const;
  // For destructors: ignores errors.
  template <typename Argument>
  void drop(Slot slot, Argument argument) const {
    (void)call(slot, argument, "");
  }

 private:
  Plugin(std::string path, const Api* api) : path_(std::move(path)), api_(api) {}
  void* at(Slot slot) const { return api_->slots[static_cast<size_t>(slot)]; }
  Failure* invoke(Slot slot, void* argument) const;
  Status checked(Failure* error, const char* doing) const;

  std::string path_;
  const Api* api_;
};

class Client {
 public:
  // On a CPU, with `devices` devices (its plugin makes as many as requested); elsewhere with the
  // devices that exist. Errors: the plugin's own, or that there is no device.
  static Result<std::shared_ptr<const Client>> open(std::shared_ptr<const Plugin> plugin,
                                                    int devices);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const Plugin& plugin() const { return *plugin_; }
  ClientHandle* handle() const { return handle_; }
  const std::string& platform() const { return platform_; }  // "cpu", "cuda", "tpu"
  const std::string& version() const { return version_; }    // as the platform words it
  const std::string& kind() const { return kind_; }          // the kind of the first device
  const std::vector<Device*>& devices() const { return devices_; }
  int id(size_t device) const { return ids_[device]; }

 private:
  Client(std::shared_ptr<const Plugin> plugin, ClientHandle* handle)
      : plugin_(std::move(plugin)), handle_(handle) {}
  Status describe();
  std::shared_ptr<const Plugin> plugin_;
  ClientHandle* handle_;
  std::string platform_, version_, kind_;
  std::vector<Device*> devices_;
  std::vector<int> ids_;
};

// The element types of a module's arguments and results, by HLO's names, where they are not those of
// the tensors: a text may have u32 or s64 where a program has i32. Empty: those of the tensors.
struct ArrayTypes {
  std::vector<std::string> arguments, results;
};

// A compiled module: replica r runs on device r.
class Executable {
 public:
  static Result<std::unique_ptr<Executable>> compile(std::shared_ptr<const Client> client,
                                                     const std::string& module, size_t replicas,
                                                     ArrayTypes types = {});
  ~Executable();
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  // Passes arguments[r][i] to replica r. results[r][i] must already have the type of the result,
  // and is filled in. Elements are converted where ArrayTypes says so.
  Status run(const std::vector<std::vector<Tensor>>& arguments,
             std::vector<std::vector<Tensor>>& results) const;

 private:
  Executable(std::shared_ptr<const Client> client, LoadedExecutable* handle, ArrayTypes types)
      : client_(std::move(client)), handle_(handle), types_(std::move(types)) {}
  std::shared_ptr<const Client> client_;
  LoadedExecutable* handle_;
  ArrayTypes types_;
};

// Sends four bytes to a device and fetches them. Errors: the plugin's own, or other bytes come
// back.
Status there_and_back(const Client& client, size_t device);

// What the plugin tells of each device, and whether four bytes come back from it.
std::vector<DeviceFacts> facts_of_devices(const Client& client);

// A serialized CompileOptionsProto (xla/pjrt/proto/compile_options.proto) that puts replica r on
// the device with id devices[r].
std::string compile_options(const std::vector<int>& devices);

}  // namespace twinrun::pjrt
