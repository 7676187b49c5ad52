// The paired sampler and the table. A sample repeats the call for about kSampleSeconds. One untimed
// call before it wakes the threads and warms the caches (unless a single call fills the sample). A
// pause before that lets the other side's workers stop spinning (OpenMP and OpenBLAS keep theirs
// awake for up to 26 ms).
#include "bench/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <thread>

#include "harness/host/environment.h"

namespace twinrun {
namespace {

constexpr double kSampleSeconds = 0.03;
constexpr auto kPause = std::chrono::milliseconds(30);

double seconds_of(const std::function<void()>& call, int times) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// One side of a pair: the number of calls per sample, set by calibrate(), and the samples.
struct Side {
  const std::function<void()>& call;
  int times = 0;
  std::vector<double> seconds;  // per call

  void calibrate() {
    call();
    const double once = std::max(seconds_of(call, 1), 1e-7);
    times = static_cast<int>(std::clamp(std::ceil(kSampleSeconds / once), 1.0, 1e5));
  }
  void sample() {
    std::this_thread::sleep_for(kPause);
    if (times > 1) call();
    seconds.push_back(seconds_of(call, times) / times);
  }
};

double in_unit(const BenchCase& what, double work, double seconds) {
  return what.unit == "ns" ? seconds / work / what.scale : work / seconds * what.scale;
}

std::string today() {
  char text[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(text, sizeof text, "%Y-%m-%d", std::gmtime(&now));
  return text;
}

// The load before the measurement, since other programs' work affects every number.
std::string load_now() {
  double load[1] = {0};
  return getloadavg(load, 1) == 1 ? fmt::format("{:.2f}", load[0]) : "unknown";
}

const char* met_text(const BenchRow& row) {
  if (!row.what.target) return "";
  return row.ratio >= *row.what.target ? "yes" : "NO";
}

}  // namespace

Suite::Suite(Options options) : options_(std::move(options)), load_(load_now()) {}

std::vector<int> Suite::threads() const {
  return std::thread::hardware_concurrency() < 2 ? std::vector<int>{1} : std::vector<int>{1, 2};
}

void Suite::print_heading() {
  if (options_.json || heading_.empty()) return;
  if (!any_row_) {
    fmt::print("{:<46} {:>2} {:>9} {:>9} {:<8} {:>6} {:>6}  met\n", "what", "T", "ours", "peer",
               "unit", "ratio", "target");
    any_row_ = true;
  }
  fmt::print("{}\n", heading_);
  heading_.clear();
}

bool Suite::begin(BenchCase what) {
  if (options_.filter && !std::regex_search(what.name, *options_.filter)) return false;
  current_ = std::move(what);
  return true;
}

void Suite::measure(const std::function<void()>& ours, const std::function<void()>& peer) {
  Side a{ours}, b{peer};
  a.calibrate();
  b.calibrate();
  std::vector<double> ratios;
  for (int i = 0; i < options_.samples; ++i) {
    a.sample();
    b.sample();
    ratios.push_back(current_.ours_work / a.seconds.back() /
                     (current_.peer_work / b.seconds.back()));
  }
  record(in_unit(current_, current_.ours_work, median(a.seconds)),
         in_unit(current_, current_.peer_work, median(b.seconds)), median(ratios));
}

void Suite::record(double ours, double peer, double ratio) {
  const BenchRow row{current_, ours, peer, ratio};
  rows_.push_back(row);
  print_heading();
  if (options_.json) return;
  fmt::print("  {:<44} {:>2} {:>9.4g} {:>9.4g} {:<8} {:>6.3f} {:>6}  {}\n", row.what.name,
             row.what.threads, row.ours, row.peer, row.what.unit, row.ratio,
             row.what.target ? fmt::format("{:.2f}", *row.what.target) : "-", met_text(row));
  std::fflush(stdout);
}

void Suite::skip(const std::string& name, const std::string& why) {
  if (options_.filter && !std::regex_search(name, *options_.filter)) return;
  skipped_.emplace_back(name, why);
  print_heading();
  if (!options_.json) fmt::print("  {:<44} skipped: {}\n", name, why);
}

void Suite::finish() {
  auto machine = environment();
  machine["date"] = today();
  machine["load"] = load_;
  if (!options_.json) {
    const auto missed = std::count_if(rows_.begin(), rows_.end(), [](const BenchRow& row) {
      return row.what.target && row.ratio < *row.what.target;
    });
    fmt::print("\n{} rows, {} below target. {}, {} cores, isa {}, {}, {}, load before {}\n",
               rows_.size(), missed, machine["cpu"], machine["cores"], machine["isa"],
               machine["compiler"], machine["date"], machine["load"]);
    return;
  }
  nlohmann::ordered_json document;
  document["machine"] = machine;
  document["ratios"] = nlohmann::json::array();
  for (const BenchRow& row : rows_) {
    nlohmann::ordered_json out = {{"name", row.what.name}, {"threads", row.what.threads},
                                  {"ours", row.ours},      {"peer", row.peer},
                                  {"unit", row.what.unit}, {"ratio", row.ratio},
                                  {"target", nullptr},     {"met", nullptr}};
    if (row.what.target) {
      out["target"] = *row.what.target;
      out["met"] = row.ratio >= *row.what.target;
    }
    document["ratios"].push_back(out);
  }
  document["skipped"] = nlohmann::json::array();
  for (const auto& [name, why] : skipped_) {
    document["skipped"].push_back({{"name", name}, {"why", why}});
  }
  fmt::print("{}\n", document.dump(1));
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

void expect_close(const std::string& name, const float* ours, const float* peer, int64_t n,
                  double most) {
  double distance = 0, size = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double gap = static_cast<double>(ours[i]) - peer[i];
    distance += gap * gap;
    size += static_cast<double>(peer[i]) * peer[i];
  }
  if (distance <= most * most * size) return;
  fmt::print(stderr, "twinrun_bench: {}: ours and the peer computed different things ({:.2g})\n",
             name, std::sqrt(distance / size));
  std::exit(1);
}

bool machine_has_amx() { return amx_refusal().empty(); }

}  // namespace twinrun
