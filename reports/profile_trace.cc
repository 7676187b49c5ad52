// Converts a modelled profile to a trace: two steps on each core, and the work of the host
// meanwhile.
#include <fmt/format.h>

#include <algorithm>

#include "reports/profile.h"

namespace twinrun {
namespace {

constexpr size_t kShownSteps = 2;
constexpr int kShownCores = 8;  // all cores do the same, but for a slow one
constexpr double kMicroseconds = 1e6;
constexpr std::string_view kAllReduce = "all-reduce";  // the category

enum Track : uint8_t { kStep, kFramework, kProgram, kTracks };

class Tracer {
 public:
  explicit Tracer(const Profile& profile) : p_(profile) {}
  ChromeTrace run();

 private:
  void span(int track, const std::string& name, const std::string& category, double begin,
            double seconds, TraceWords words = {}) {
    if (seconds <= 0) return;
    trace_.spans.push_back(
        {name, category, track, begin * kMicroseconds, seconds * kMicroseconds, std::move(words)});
  }
  std::vector<int> shown_cores() const;
  void core(int first_track, int core, const ProfileStep& step, double begin);
  void host(int first_track, const ProfileStep& step, double begin);

  const Profile& p_;
  ChromeTrace trace_;
};

// The first cores, and the slow one.
std::vector<int> Tracer::shown_cores() const {
  std::vector<int> cores;
  for (int r = 0; r < std::min(p_.cores, kShownCores); ++r) cores.push_back(r);
  if (p_.slow_core >= kShownCores) cores.back() = p_.slow_core;
  return cores;
}

// All cores begin a step together. A slow one does its own work in slow_core_factor times the time,
// and the others wait for it at the next all-reduce, or at the end of the step.
void Tracer::core(int first, int core, const ProfileStep& step, double begin) {
  const bool slow = core == p_.slow_core, waits = p_.slow_core >= 0 && !slow && p_.cores > 1;
  // Of a single core, the ops have the slow core's times already.
  const double factor = slow && p_.cores > 1 ? p_.slow_core_factor : 1;
  span(first + kStep, fmt::format("step {}", step.step), "step", begin, step.seconds());
  double now = begin;
  span(first + kProgram, "wait for input", "input", now, step.input);
  span(first + kFramework, "wait for input", "input", now, step.input);
  now += step.input;
  std::string layer;
  double layer_begin = now, ahead = 0;
  const auto wait = [&] {
    span(first + kProgram, fmt::format("wait for core {}", p_.slow_core), "waiting", now, ahead);
    now += ahead;
    ahead = 0;
  };
  for (const ProfileOp& op : p_.ops) {
    if (op.layer != layer) {
      span(first + kFramework, layer, "layer", layer_begin, now - layer_begin);
      layer = op.layer;
      layer_begin = now;
    }
    const bool meets = op.category == kAllReduce;
    if (meets) wait();
    const double seconds = op.seconds * (meets ? 1 : factor);
    span(first + kProgram, op.name, op.category, now, seconds,
         {{"limit", op.limit},
          {"layout", op.layout},
          {"used", fmt::format("{:.3f}", op.utilisation)}});
    now += seconds;
    if (waits && !meets) ahead += op.seconds * (p_.slow_core_factor - 1);
  }
  wait();
  span(first + kFramework, layer, "layer", layer_begin, now - layer_begin);
}

// With prefetching the host prepares the next step's batch while the device computes this one.
void Tracer::host(int first, const ProfileStep& step, double begin) {
  double now = begin;
  for (size_t i = 0; i < p_.input.stages.size(); ++i) {
    const InputStage& stage = p_.input.stages[i];
    const int64_t batch = step.step + (p_.input.overlapped ? 1 : 0);
    span(first + static_cast<int>(i), fmt::format("batch {}", batch), "input", now, stage.seconds,
         {{"what", stage.what}});
    now += stage.seconds;
  }
  span(first + static_cast<int>(p_.input.stages.size()), "between loops", "loop",
       begin + step.seconds() - step.host, step.host);
}

ChromeTrace Tracer::run() {
  const std::vector<int> shown = shown_cores();
  const auto cores = static_cast<int>(shown.size());
  for (int i = 0; i < cores; ++i) {
    trace_.sections.push_back(
        fmt::format("core {} of {}", shown[static_cast<size_t>(i)], p_.machine));
    for (const char* name : {"step", "framework op", "program op"})
      trace_.tracks.push_back({name, i});
  }
  trace_.sections.emplace_back("host");
  for (const InputStage& stage : p_.input.stages) trace_.tracks.push_back({stage.name, cores});
  trace_.tracks.push_back({"loop", cores});

  // Show the two steps around the end of a loop, if there is one.
  size_t first = 0;
  for (size_t i = 0; i + 1 < p_.steps.size(); ++i) {
    if (p_.steps[i].host > 0) {
      first = i;
      break;
    }
  }
  double begin = 0;
  for (size_t i = first; i < std::min(first + kShownSteps, p_.steps.size()); ++i) {
    for (int c = 0; c < cores; ++c)
      core(c * kTracks, shown[static_cast<size_t>(c)], p_.steps[i], begin);
    host(cores * kTracks, p_.steps[i], begin);
    begin += p_.steps[i].seconds();
  }
  trace_.notes = {{"times", "modelled, not measured: docs/guides/profile.md"},
                  {"scenario", p_.scenario}};
  if (cores < p_.cores)
    trace_.notes.emplace_back("cores", p_.slow_core >= kShownCores
                                           ? fmt::format("the first {} and core {} of {}",
                                                         cores - 1, p_.slow_core, p_.cores)
                                           : fmt::format("the first {} of {}", cores, p_.cores));
  return std::move(trace_);
}

}  // namespace

ChromeTrace to_profile_trace(const Profile& profile) { return Tracer(profile).run(); }

}  // namespace twinrun
