// What a plugin tells of the devices that it sees, for `twinrun doctor`.
#include <algorithm>

#include "backends/pjrt/plugin.h"

namespace twinrun::pjrt {
namespace {

std::string text_of(const Plugin& plugin, Slot slot, DeviceDescription* description) {
  DeviceDescriptionKind asked;
  asked.description = description;
  if (!plugin.has(slot) || !plugin.call(slot, asked, "name a device").ok() || asked.text == nullptr)
    return "";
  constexpr size_t kMax = 200;
  return {asked.text, std::min(asked.size, kMax)};
}

}  // namespace

std::vector<DeviceFacts> facts_of_devices(const Client& client) {
  const Plugin& plugin = client.plugin();
  std::vector<DeviceFacts> all;
  for (size_t i = 0; i < client.devices().size(); ++i) {
    DeviceFacts facts;
    DeviceGetDescription of;
    of.device = client.devices()[i];
    if (plugin.call(Slot::kDeviceGetDescription, of, "describe a device").ok()) {
      facts.name = text_of(plugin, Slot::kDeviceDescriptionToString, of.description);
      facts.kind = text_of(plugin, Slot::kDeviceDescriptionKind, of.description);
    }
    if (facts.name.empty()) facts.name = "device " + std::to_string(client.id(i));
    DeviceMemoryStats memory;
    memory.device = of.device;
    if (plugin.has(Slot::kDeviceMemoryStats) &&
        plugin.call(Slot::kDeviceMemoryStats, memory, "tell of its memory").ok()) {
      facts.used = memory.in_use;
      if (memory.limit.is_set) facts.memory = memory.limit.bytes;
    }
    if (const Status reached = there_and_back(client, i); !reached.ok())
      facts.trouble = reached.error().what;
    all.push_back(std::move(facts));
  }
  return all;
}

}  // namespace twinrun::pjrt
