// Sentences about a profile.
#include "reports/profile_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "reports/text.h"

namespace twinrun::words {

std::string three_digits(double value) {
  if (value == 0 || !std::isfinite(value)) return fmt::format("{:.0f}", value);
  const auto magnitude = [](double v) { return std::floor(std::log10(std::abs(v))); };
  const double unit = std::pow(10, magnitude(value) - 2);
  const double rounded = std::round(value / unit) * unit;  // 99.96 becomes 100
  return fmt::format("{:.{}f}", rounded,
                     static_cast<int>(std::clamp(2 - magnitude(rounded), 0.0, 6.0)));
}

std::string seconds(double s) {
  if (s < 5e-13) return "0";  // the rounding error of equal times, too
  if (s >= 0.9995) return three_digits(s) + " s";
  return s >= 0.9995e-3 ? three_digits(s * 1e3) + " ms" : three_digits(s * 1e6) + " us";
}

std::string step(const Profile& p) {
  std::string out = fmt::format("{}, {} samples/s", seconds(p.step_seconds),
                                three_digits(p.samples_per_second()));
  if (p.uncertainty > 1)
    out += fmt::format("; a real one between {} and {}", seconds(p.step_seconds / p.uncertainty),
                       seconds(p.step_seconds * p.uncertainty));
  return out;
}

std::string rate(double per_second, const char* unit) {
  if (per_second >= 0.9995e12)
    return fmt::format("{} T{}/s", three_digits(per_second / 1e12), unit);
  return fmt::format("{} G{}/s", three_digits(per_second / 1e9), unit);
}

std::string matrix(const Profile& p) {
  std::string out = fmt::format("{} GFLOP {}, {}", three_digits(p.flops / 1e9),
                                p.source == "modelled" ? "per core" : "per step",
                                rate(p.flops_per_second(), "FLOP"));
  if (p.peak_flops > 0)
    out += fmt::format(", {} of the peak of {}", text::percent(p.matrix_utilisation, 1),
                       rate(p.peak_flops, "FLOP"));
  return out;
}

std::string memory(const Profile& p) {
  std::string out = fmt::format("{} GB {}", three_digits(p.bytes / 1e9),
                                p.source == "modelled" ? "per core" : "per step");
  if (p.bytes > p.unpadded_bytes && p.unpadded_bytes > 0)
    out += fmt::format(", {} of it padding", text::percent(1 - p.unpadded_bytes / p.bytes, 1));
  if (p.peak_bandwidth > 0 && p.memory_utilisation <= 1)
    out += fmt::format(", {} of {}", text::percent(p.memory_utilisation, 1),
                       rate(p.peak_bandwidth, "B"));
  if (p.memory_utilisation > 1)
    out += fmt::format(", more than the {} of memory: served from caches",
                       rate(p.peak_bandwidth, "B"));
  if (p.memory_limit > 0)
    out += fmt::format("; {:.2f} of {:.2f} GiB used{}", p.memory_used / (1 << 30),
                       p.memory_limit / (1 << 30), p.fits() ? "" : ", which does not fit");
  return out;
}

std::string cores(const Profile& p) {
  if (p.core_times.empty()) return "";
  std::string out;
  if (p.slow_core >= 0) {
    const ProfileCore& slow = p.core_times.at(static_cast<size_t>(p.slow_core));
    out = fmt::format("core {} takes {} for its own work, {} times as long as the others",
                      slow.core, seconds(slow.compute), three_digits(p.slow_core_factor));
    for (const ProfileCore& other : p.core_times) {
      if (other.waiting <= 0) continue;
      out += fmt::format("; each of them waits {} of a step for it {}",
                         text::percent(other.waiting / p.step_seconds, 1),
                         other.all_reduce > 0 ? "at the all-reduces" : "at its end");
      break;
    }
  }
  if (p.link_factor > 1)
    out += fmt::format("{}links take {} times as long: {} of all-reduce in a step",
                       out.empty() ? "" : "; ", three_digits(p.link_factor),
                       seconds(p.core_times.front().all_reduce));
  if (p.even_step_seconds > 0)
    out += fmt::format("; a step takes {} times the {} that it takes without",
                       three_digits(p.step_seconds / p.even_step_seconds),
                       seconds(p.even_step_seconds));
  return out;
}

std::vector<std::string> options(const Recommendation& r) {
  std::vector<std::string> out;
  std::istringstream settings(r.setting);
  for (std::string setting; settings >> setting;) out.push_back("--set " + setting);
  return out;
}

std::string effect(const Recommendation& r) {
  const std::string samples =
      fmt::format("{} -> {} samples/s", three_digits(r.before), three_digits(r.after));
  if (r.flops_before > 0)
    return fmt::format("{} -> {}, {:.2f} times, at {}", rate(r.flops_before, "FLOP"),
                       rate(r.flops_after, "FLOP"), r.gain(), samples);
  return fmt::format("{}, {:.2f} times", samples, r.gain());
}

std::string step_range(const Profile& p) {
  if (p.steps.empty()) return "no step is shown";
  const auto [least, most] = std::ranges::minmax_element(p.steps, {}, &ProfileStep::seconds);
  return fmt::format("{} shown: {} to {}, standard deviation {}",
                     text::plural(static_cast<int64_t>(p.steps.size()), "step"),
                     seconds(least->seconds()), seconds(most->seconds()),
                     seconds(step_deviation(p)));
}

std::string input(const Profile& p) {
  std::string out = fmt::format("{}: the device waits {} of a step", to_string(p.input.bound),
                                text::percent(p.input.share, 1));
  if (p.input.high - p.input.low >= 0.001)
    out += fmt::format(" ({} to {} over {})", text::percent(p.input.low, 1),
                       text::percent(p.input.high, 1),
                       text::plural(static_cast<int64_t>(p.steps.size()), "step"));
  out += fmt::format(", {} per batch on the host{}", seconds(p.input.host),
                     p.input.overlapped ? ", overlapped with the device" : "");
  for (const InputStage& stage : p.input.stages) {
    if (stage.once) out += fmt::format("; {} once: {}", stage.name, seconds(stage.seconds));
  }
  return out;
}

}  // namespace twinrun::words
