// The figures of each TPU generation.
#include "device/machine.h"

#include <array>

#include "program/base/names.h"

namespace twinrun::tpu {
namespace {

constexpr int64_t kMiB = 1 << 20, kGiB = 1 << 30;

constexpr std::array kGenerations = {
    Generation{"v2", 1, 700e6, 8 * kGiB, 530 * kMiB, 358e9, 62e9},
    Generation{"v3", 2, 940e6, 16 * kGiB, 530 * kMiB, 450e9, 82e9},
};

}  // namespace

std::span<const Generation> generations() { return kGenerations; }

Result<Generation> find_generation(std::string_view name) {
  std::vector<std::string> names;
  for (const Generation& g : kGenerations) {
    if (g.name == name) return g;
    names.emplace_back(g.name);
  }
  return Error{
      "TPU generation '" + std::string(name) + "' is not known; known: " + join(names, ", "), "",
      did_you_mean(name, names)};
}

}  // namespace twinrun::tpu
