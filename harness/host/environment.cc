// Reads build constants and the operating system for the description of this machine.
#include "harness/host/environment.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <fstream>
#include <thread>

#include "backends/kernels/kernels.h"
#include "checkpoints/checkpoint.h"

namespace twinrun {
namespace {

std::string cpu_model() {
  std::ifstream in("/proc/cpuinfo");
  std::string maker;
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const std::string value = line.substr(colon + 2);
    if (line.starts_with("model name")) return value;
    // Linux on ARM has numbers instead.
    if (line.starts_with("CPU implementer")) maker = value;
    if (line.starts_with("CPU part"))
      return fmt::format("CPU part {} of implementer {}", value, maker);
  }
  return "unknown";
}

}  // namespace

std::string version_text() {
  return fmt::format("twinrun {} (contract {}, isa {}, {} build)", TWINRUN_VERSION,
                     kContractVersion, to_string(active_isa()), TWINRUN_BUILD_TYPE);
}

std::map<std::string, std::string> environment() {
  utsname os{};
  uname(&os);
  return {{"version", TWINRUN_VERSION},
          {"contract", std::to_string(kContractVersion)},
          {"build", TWINRUN_BUILD_TYPE},
          {"compiler", fmt::format("g++ {}", __VERSION__)},
          {"isa", std::string(to_string(active_isa()))},
          {"cpu", cpu_model()},
          {"host CPU cores", std::to_string(std::thread::hardware_concurrency())},
          {"os", fmt::format("{} {} {}", os.sysname, os.release, os.machine)}};
}

}  // namespace twinrun
