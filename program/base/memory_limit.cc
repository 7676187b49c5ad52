// Reads /proc and the control groups' files.
#include "program/base/memory_limit.h"

#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

namespace twinrun {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

// The limit on data that this process was started with, and what limited it then; set once, before
// any thread starts.
std::optional<rlimit> started_with;
std::string limited_at_start;

// glibc's heap sets itself up at its first use, which is safe in the main thread only. Where another
// allocator serves malloc (a sanitizer's, jemalloc's), mallinfo2() below may be that first use.
[[maybe_unused]] const auto heap_at_start = ::mallinfo2();

// Lines "Name: 123 kB" of /proc, or "name 123" of a control group, as a table of bytes.
std::map<std::string, int64_t> numbers_in(const fs::path& path) {
  std::map<std::string, int64_t> numbers;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name, unit;
    int64_t value = 0;
    if (!(words >> name >> value)) continue;
    words >> unit;
    if (name.ends_with(':')) name.pop_back();
    numbers[name] = unit == "kB" ? value * 1024 : value;
  }
  return numbers;
}

// A file with one number. "max", and the huge number by which version 1 says the same, are nothing.
std::optional<int64_t> number_in(const fs::path& path) {
  std::ifstream in(path);
  int64_t value = 0;
  if (!(in >> value) || value >= kUnknown / 2) return std::nullopt;
  return value;
}

void take_less(MemoryLeft& least, int64_t bytes, const std::string& limited_by) {
  bytes = std::max<int64_t>(bytes, 0);
  if (bytes < least.bytes) least = {bytes, limited_by};
}

// A group leaves what its limit allows beyond its use. Cached files count as use, but the system
// drops them before it kills anything.
void take_group(MemoryLeft& least, const fs::path& folder, const std::string& group,
                bool version2) {
  const auto limit = number_in(folder / (version2 ? "memory.max" : "memory.limit_in_bytes"));
  const auto used = number_in(folder / (version2 ? "memory.current" : "memory.usage_in_bytes"));
  if (!limit || !used) return;
  auto stat = numbers_in(folder / "memory.stat");
  const std::string total = version2 ? "" : "total_";
  const int64_t cached = stat[total + "inactive_file"] + stat[total + "active_file"];
  take_less(least, *limit - *used + cached, "the control group " + group);
}

// The groups named in /proc/self/cgroup, and those above them. Inside a container the names may be
// those of the host while the files show the container's own group as the root.
void take_groups(MemoryLeft& least, const fs::path& root) {
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool version2 = controllers == ",,";
    if (!version2 && controllers.find(",memory,") == std::string::npos) continue;
    const fs::path mounted = root / (version2 ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    for (fs::path group = line.substr(second + 1);; group = group.parent_path()) {
      take_group(least, mounted / group.relative_path(), group.string(), version2);
      if (group == group.parent_path()) break;
    }
  }
}

void take_limit(MemoryLeft& least, int resource, int64_t used, const std::string& name) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return;
  if (limit.rlim_cur >= static_cast<rlim_t>(kUnknown)) return;
  take_less(least, static_cast<int64_t>(limit.rlim_cur) - used, name);
}

}  // namespace

MemoryLeft memory_left(const fs::path& root) {
  MemoryLeft least{kUnknown, ""};
  auto machine = numbers_in(root / "proc/meminfo");
  if (const auto available = machine.find("MemAvailable"); available != machine.end())
    take_less(least, available->second + machine["SwapFree"], "this machine's memory");
  take_groups(least, root);
  auto own = numbers_in(root / "proc/self/status");
  take_limit(least, RLIMIT_AS, own["VmSize"], "ulimit -v");
  take_limit(least, RLIMIT_DATA, own["VmData"],
             started_with ? limited_at_start + " as it was at the start" : "ulimit -d");
  // What the heap has freed and kept is used, to the system.
  if (least.bytes != kUnknown) least.bytes += static_cast<int64_t>(::mallinfo2().fordblks);
  return least;
}

void limit_memory() {
  rlimit limit{};
  if (started_with || ::getrlimit(RLIMIT_DATA, &limit) != 0) return;
  const MemoryLeft least = memory_left();
  const int64_t left = least.bytes;
  const int64_t used = numbers_in("/proc/self/status")["VmData"];
  if (left == kUnknown || left > kUnknown - used) return;
  started_with = limit;
  limited_at_start = least.limited_by;
  limit.rlim_cur = std::min(limit.rlim_max, static_cast<rlim_t>(used + left));
  ::setrlimit(RLIMIT_DATA, &limit);
}

void lift_memory_limit(pid_t child) {
  if (started_with) ::prlimit(child, RLIMIT_DATA, &*started_with, nullptr);
}

}  // namespace twinrun
