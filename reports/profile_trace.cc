// Converts a modelled profile to a trace: two steps on each core, and the work of the host
// meanwhile.
#include <fmt/format.h>

#include <algorithm>

#include "reports/profile.h"

namespace twinrun {
namespace {

constexpr size_t kShownSteps = 2;
constexpr int kShownCores = 8;  // all cores do the same
constexpr double kMicroseconds = 1e6;

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
  void core(int first_track, const ProfileStep& step, double begin);
  void host(int first_track, const ProfileStep& step, double begin);

  const Profile& p_;
  ChromeTrace trace_;
};

void Tracer::core(int first, const ProfileStep& step, double begin) {
  span(first + kStep, fmt::format("step {}", step.step), "step", begin, step.seconds());
  double now = begin;
  span(first + kProgram, "wait for input", "input", now, step.input);
  span(first + kFramework, "wait for input", "input", now, step.input);
  now += step.input;
  std::string layer;
  double layer_begin = now;
  for (const ProfileOp& op : p_.ops) {
    if (op.layer != layer) {
      span(first + kFramework, layer, "layer", layer_begin, now - layer_begin);
      layer = op.layer;
      layer_begin = now;
    }
    span(first + kProgram, op.name, op.category, now, op.seconds,
         {{"limit", op.limit},
          {"layout", op.layout},
          {"used", fmt::format("{:.3f}", op.utilisation)}});
    now += op.seconds;
  }
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
  const int cores = std::min(p_.cores, kShownCores);
  for (int r = 0; r < cores; ++r) {
    trace_.sections.push_back(fmt::format("core {} of {}", r, p_.machine));
    for (const char* name : {"step", "framework op", "program op"})
      trace_.tracks.push_back({name, r});
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
    for (int r = 0; r < cores; ++r) core(r * kTracks, p_.steps[i], begin);
    host(cores * kTracks, p_.steps[i], begin);
    begin += p_.steps[i].seconds();
  }
  trace_.notes = {{"times", "modelled, not measured: docs/guides/profile.md"},
                  {"scenario", p_.scenario}};
  if (cores < p_.cores)
    trace_.notes.emplace_back("cores", fmt::format("the first {} of {}", cores, p_.cores));
  return std::move(trace_);
}

}  // namespace

ChromeTrace to_profile_trace(const Profile& profile) { return Tracer(profile).run(); }

}  // namespace twinrun
