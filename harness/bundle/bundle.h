// A diagnosis as one .zip that another machine can prove: scenario, data, states, program, what was said, and by which bits.
//
//   auto made = bundle("results", "fault.zip", {.threads = 2}, &progress, &stop);     // results: of `twinrun diagnose -o results`
//   made->bytes;  made->reduced->log;
//
// Inside: docs/bundles.md. Equal diagnoses make equal bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/bundle/reduce.h"

namespace twinrun {

struct BundleOptions {
  // Of sharding and engine bugs, to the smallest scenario that still says the same. Each of up to 200 tries starts an engine of others
  // anew, so theirs are reduced only where that is asked for (kAlways, or by `anonymise`, which needs it).
  enum class Reduction : uint8_t { kNever, kOfOurs, kAlways };
  Reduction reduction = Reduction::kOfOurs;
  bool anonymise =
      false;             // noise in the place of the data; nothing of the original but its verdict
  int most_tried = 200;  // diagnoses of the reduction
  int threads = 1;
};

struct Bundle {
  uint64_t bytes = 0;
  std::vector<std::string> members;
  std::optional<Reduced> reduced;  // nothing: the scenario as it is
  std::vector<std::string>
      notes;  // of an engine of others: what is packed of it, what is to be attached, that nothing was reduced
  bool interrupted = false;
};

// Errors: a folder without a report; an imported program, which brings its own files; a finding that does not show again.
Result<Bundle> bundle(const std::string& results, const std::string& path,
                      const BundleOptions& options, Progress* progress, const StopFlag* stop);

}  // namespace twinrun
