// Versions of released packages, in the order that PEP 440 gives them.
//
//   TWINRUN_ASSIGN(const ReleaseVersion low, ReleaseVersion::parse("0.4.35rc1"));
//   low < *ReleaseVersion::parse("0.4.35");   low.is_prerelease();
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "program/base/result.h"

namespace twinrun::bisect {

class ReleaseVersion {
 public:
  // Accepts all spellings that PEP 440 normalizes ("v1.0-RC.1"). Error: not a version.
  static Result<ReleaseVersion> parse(std::string_view text);

  // A release candidate, an alpha, a beta or a development release.
  bool is_prerelease() const { return pre_.first < kFinal || dev_; }
  // Equal: the same version, however it is spelled ("1.0", "1.0.0").
  std::strong_ordering operator<=>(const ReleaseVersion& other) const;
  bool operator==(const ReleaseVersion& other) const { return *this <=> other == 0; }

 private:
  // A segment of a local version: numbers come after words.
  using LocalPart = std::tuple<bool, uint64_t, std::string>;
  // 1.0.dev1 comes before 1.0a1, and that before 1.0b1, 1.0rc1 and 1.0.
  enum Stage : int { kDevelopment, kAlpha, kBeta, kCandidate, kFinal };

  uint64_t epoch_ = 0;
  std::vector<uint64_t> release_;  // without zeros at its end
  std::pair<int, uint64_t> pre_{kFinal, 0};
  std::optional<uint64_t> post_, dev_;
  std::vector<LocalPart> local_;
};

}  // namespace twinrun::bisect
