// Sentences about a profile that the terminal and the page share.
#include "reports/profile_words.h"

#include <fmt/format.h>

#include "reports/text.h"

namespace twinrun::words {

std::string seconds(double s) {
  if (s == 0) return "0";
  if (s >= 1) return fmt::format("{:.3f} s", s);
  return s >= 1e-3 ? fmt::format("{:.3f} ms", s * 1e3) : fmt::format("{:.1f} us", s * 1e6);
}

std::string rate(double per_second, const char* unit) {
  if (per_second >= 1e12) return fmt::format("{:.2f} T{}/s", per_second / 1e12, unit);
  return fmt::format("{:.2f} G{}/s", per_second / 1e9, unit);
}

std::string matrix(const Profile& p) {
  std::string out = fmt::format("{:.3f} GFLOP {}, {}", p.flops / 1e9,
                                p.source == "modelled" ? "per core" : "per step",
                                rate(p.flops_per_second(), "FLOP"));
  if (p.peak_flops > 0)
    out += fmt::format(", {} of the peak of {}", text::percent(p.matrix_utilisation, 1),
                       rate(p.peak_flops, "FLOP"));
  return out;
}

std::string memory(const Profile& p) {
  std::string out =
      fmt::format("{:.3f} GB {}", p.bytes / 1e9, p.source == "modelled" ? "per core" : "per step");
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

std::string input(const Profile& p) {
  return fmt::format("{} ({} of a step), {} per batch on the host{}", to_string(p.input.bound),
                     text::percent(p.input.share, 1), seconds(p.input.host),
                     p.input.overlapped ? ", overlapped with the device" : "");
}

}  // namespace twinrun::words
