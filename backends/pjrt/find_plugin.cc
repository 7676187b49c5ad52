// Searches for an installed plugin; most come with Python packages.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "backends/pjrt/pjrt_backend.h"
#include "program/base/names.h"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    found.push_back(it->path());
  std::ranges::sort(found);
  return found;
}

// The site-packages and dist-packages of every Python below a prefix.
std::vector<fs::path> package_folders(const fs::path& prefix) {
  std::vector<fs::path> found;
  for (const fs::path& python : entries(prefix / "lib")) {
    if (!python.filename().string().starts_with("python3")) continue;
    found.push_back(python / "site-packages");
    found.push_back(python / "dist-packages");
  }
  return found;
}

// In order of preference: CPU plugins first, since they run on every machine.
std::vector<fs::path> plugins_below(const fs::path& packages) {
  std::vector<fs::path> found;
  for (const char* group : {"xla_plugins", "jax_plugins"}) {
    for (const fs::path& plugin : entries(packages / group)) {
      for (const fs::path& file : entries(plugin)) {
        if (file.extension() == ".so") found.push_back(file);
      }
    }
  }
  std::error_code error;
  if (const fs::path tpu = packages / "libtpu" / "libtpu.so"; fs::exists(tpu, error))
    found.push_back(tpu);
  std::stable_partition(found.begin(), found.end(), [](const fs::path& p) {
    return p.filename().string().find("cpu") != std::string::npos;
  });
  return found;
}

}  // namespace

Result<std::string> found_plugin() {
  if (const char* named = std::getenv("TWINRUN_PJRT_PLUGIN"); named != nullptr && *named != '\0')
    return std::string(named);
  std::vector<fs::path> prefixes;
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const char* value = std::getenv(variable); value != nullptr && *value != '\0')
      prefixes.emplace_back(value);
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    prefixes.push_back(fs::path(home) / ".local");
  prefixes.insert(prefixes.end(), {"/usr/local", "/usr"});
  std::vector<std::string> looked;
  for (const fs::path& prefix : prefixes) {
    for (const fs::path& packages : package_folders(prefix)) {
      if (const auto found = plugins_below(packages); !found.empty()) return found[0].string();
    }
    looked.push_back((prefix / "lib/python3*/{site,dist}-packages").string());
  }
  return Error{"no PJRT plugin is named, and none was found below " + join(looked, ", "), "xla",
               "name one: --pjrt-plugin PATH, or TWINRUN_PJRT_PLUGIN=PATH "
               "(docs/guides/import.md#the-plugin tells where they come from)"};
}

}  // namespace twinrun
