// The sampler. A sample repeats the call for about kSampleSeconds. One untimed call before it wakes
// the threads and warms the caches (unless a single call fills the sample). A pause before that
// lets the other sides' workers stop spinning (OpenMP and OpenBLAS keep theirs awake for up to 26
// ms).
#include "bench/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "harness/host/environment.h"

namespace twinrun {
namespace {

constexpr double kSampleSeconds = 0.03;
constexpr auto kLongRow = std::chrono::minutes(2);  // after that, kFewestSamples are enough
constexpr int kFewestSamples = 3;
constexpr double kProfileSeconds = 0.4;
constexpr auto kPause = std::chrono::milliseconds(30);

double seconds_of(const std::function<void()>& call, int times) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// A side of a row with its number of calls per sample and its samples in the unit of the row.
struct Sampled {
  const Side* side;
  const BenchCase* what;
  int times = 0;
  std::vector<double> figures;

  bool calibrate() {
    if (!side->seconds(1)) return false;
    const std::optional<double> once = side->seconds(1);
    if (!once) return false;
    times = static_cast<int>(std::clamp(std::ceil(kSampleSeconds / *once), 1.0, 1e5));
    return true;
  }
  bool sample() {
    std::this_thread::sleep_for(kPause);
    if (times > 1 && !side->seconds(1)) return false;
    const std::optional<double> all = side->seconds(times);
    if (!all) return false;
    const double seconds = *all / times, work = side->work > 0 ? side->work : what->work;
    figures.push_back(what->unit == "ns" ? seconds / work / what->scale
                                         : work / seconds * what->scale);
    return true;
  }
};

bool smaller_is_better(const std::string& unit) {
  return unit == "ns" || unit == "MiB" || unit == "MB";
}

void print(const nlohmann::ordered_json& line) {
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

}  // namespace

Side timed(std::string name, std::function<void()> call, double work) {
  return {std::move(name),
          [call = std::move(call)](int times) { return std::optional(seconds_of(call, times)); },
          work};
}

double median_seconds(const std::function<void()>& call, int samples) {
  call();
  std::vector<double> seconds;
  for (int i = 0; i < samples; ++i) seconds.push_back(seconds_of(call, 1));
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 2];
}

Suite::Suite(Options options) : options_(std::move(options)) {
  print({{"machine", environment()}});
}

std::vector<int> Suite::threads() const {
  if (options_.threads > 0) return {options_.threads};
  return std::thread::hardware_concurrency() < 2 ? std::vector<int>{1} : std::vector<int>{1, 2};
}

std::vector<PeerEntry> Suite::peers_of(const std::string& topic) const {
  std::vector<PeerEntry> found;
  for (const PeerEntry& peer : options_.peers) {
    if (std::ranges::find(peer.topics, topic) != peer.topics.end()) found.push_back(peer);
  }
  return found;
}

void Suite::print_heading() {
  if (!heading_.empty()) print({{"section", heading_}});
  heading_.clear();
}

bool Suite::begin(BenchCase what) {
  if (options_.filter && !std::regex_search(what.name, *options_.filter)) return false;
  if (options_.threads > 0 && what.threads != options_.threads) return false;
  current_ = std::move(what);
  bytes_ = current_.unit == "GB/s" ? current_.work : 0;
  return true;
}

// perf starts with its events disabled (perf record --delay=-1).
void Suite::profile(const std::function<void()>& ours) {
  const double once = (ours(), seconds_of(ours, 1));
  const int times = static_cast<int>(std::clamp(std::ceil(kProfileSeconds / once), 1.0, 1e6));
  std::ofstream control(options_.profile);
  control << "enable\n" << std::flush;
  const double seconds = seconds_of(ours, times);
  control << "disable\n" << std::flush;
  print({{"profiled", current_.name},
         {"threads", current_.threads},
         {"seconds", seconds / times},
         {"bytes", bytes_}});
}

void Suite::measure(const std::function<void()>& ours, const std::vector<Side>& peers) {
  if (profiling()) return profile(ours);
  const Side own = timed("", ours);
  std::vector<Sampled> sides{{&own, &current_}};
  for (const Side& peer : peers) sides.push_back({&peer, &current_});
  const auto keep = [&](bool (Sampled::*done)()) {
    std::erase_if(sides, [&](Sampled& s) {
      if ((s.*done)()) return false;
      skip(current_.name, "it ended while the row was measured", s.side->name);
      return true;
    });
  };
  const auto start = std::chrono::steady_clock::now();
  keep(&Sampled::calibrate);
  for (int i = 0; i < options_.samples; ++i) {
    if (i >= kFewestSamples && std::chrono::steady_clock::now() - start > kLongRow) break;
    keep(&Sampled::sample);
  }
  std::map<std::string, std::vector<double>> figures;
  for (size_t i = 1; i < sides.size(); ++i) figures[sides[i].side->name] = sides[i].figures;
  record(sides[0].figures, figures);
}

void Suite::record(const std::vector<double>& ours,
                   const std::map<std::string, std::vector<double>>& peers) {
  if (peers.empty()) return skip(current_.name, "no peer of it is installed");
  print_heading();
  nlohmann::ordered_json line = {
      {"row", current_.name},  {"threads", current_.threads},
      {"unit", current_.unit}, {"smaller", smaller_is_better(current_.unit)},
      {"target", nullptr},     {"ours", ours},
      {"peers", peers}};
  if (current_.target) line["target"] = *current_.target;
  print(line);
}

void Suite::record_growth(const std::vector<std::pair<double, double>>& points) {
  print_heading();
  print({{"growth", current_.name}, {"threads", current_.threads}, {"points", points}});
}

void Suite::record_held(const std::map<std::string, double>& parts) {
  print({{"profiled", current_.name}, {"threads", current_.threads}, {"held", parts}});
}

void Suite::skip(const std::string& name, const std::string& why, const std::string& peer) {
  if (options_.filter && !std::regex_search(name, *options_.filter)) return;
  print_heading();
  print({{"skipped", name}, {"why", why}, {"peer", peer}});
}

Tensor random_tensor(TensorType type, uint32_t seed) {
  Tensor t = Tensor::empty(std::move(type));
  uint32_t state = seed * 2654435761u + 1;
  for (float& x : t.as<float>()) {
    state = state * 1664525u + 1013904223u;
    x = static_cast<float>(static_cast<int32_t>(state) >> 8) * 0x1p-23f;
  }
  return t;
}

KernelCase::KernelCase(
    const std::vector<Dims>& operands,
    const std::function<ValueId(GraphBuilder&, const std::vector<ValueId>&)>& build) {
  GraphBuilder builder(graph);
  std::vector<ValueId> ids;
  for (const Dims& dims : operands) {
    const TensorType type{DType::kF32, dims};
    ids.push_back(builder.parameter(fmt::format("x{}", ids.size()), type));
    inputs.push_back(random_tensor(type, static_cast<uint32_t>(ids.size())));
  }
  op = build(builder, ids);
  output = Tensor::zeros(graph.type(op));
}

double KernelCase::bytes() const {
  double bytes = static_cast<double>(output.bytes());
  for (const Tensor& input : inputs) bytes += static_cast<double>(input.bytes());
  return bytes;
}

std::string difference(const float* ours, const float* peer, int64_t n, double most) {
  double distance = 0, size = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double gap = static_cast<double>(ours[i]) - peer[i];
    distance += gap * gap;
    size += static_cast<double>(peer[i]) * peer[i];
  }
  if (distance <= most * most * size) return "";
  return fmt::format("it computed something else than ours, a relative distance of {:.2g}",
                     std::sqrt(distance / size));
}

void expect_close(const std::string& name, const float* ours, const float* peer, int64_t n,
                  double most) {
  const std::string found = difference(ours, peer, n, most);
  if (found.empty()) return;
  fmt::print(stderr, "twinrun_bench: {}: {}\n", name, found);
  std::exit(1);
}

BenchFolder::BenchFolder(bool on_disk) {
  constexpr std::uintmax_t kRoom = 1 << 30;  // more than the operands of any case
  std::error_code failed;
  const std::filesystem::path memory = "/dev/shm";
  const std::filesystem::space_info space = std::filesystem::space(memory, failed);
  const std::filesystem::path where =
      on_disk ? std::filesystem::read_symlink("/proc/self/exe", failed).parent_path()
      : !failed && space.available >= kRoom ? memory
                                            : std::filesystem::temp_directory_path();
  path = (where / "twinrun_bench_XXXXXX").string();
  made = mkdtemp(path.data()) != nullptr;
}

BenchFolder::~BenchFolder() {
  std::error_code ignored;
  if (made) std::filesystem::remove_all(path, ignored);
}

bool machine_has_amx() { return amx_refusal().empty(); }

}  // namespace twinrun
