// A diagnosis packed into one .zip that can be reproduced on another machine: scenario, data (or
// the files of an imported program), states, program, the finding, and the bits of each run. It is
// made from a results folder; replay.h reads it.
//
//   // "results" is the folder of `twinrun diagnose -o results`:
//   auto made = bundle("results", "fault.zip", {.threads = 2}, &progress, &stop);
//   made->bytes;  made->reduced->log;
//
// Contents: docs/guides/filing.md. Equal diagnoses make equal bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/bundle/reduce.h"

namespace twinrun {

struct BundleOptions {
  // Whether sharding and engine bug findings are reduced to the smallest scenario that still shows
  // them. Each of up to 200 tries starts a foreign engine anew, so with foreign engines a finding
  // is reduced only on request: with kAlways, or with `anonymise`, which needs it.
  enum class Reduction : uint8_t { kNever, kOfOurs, kAlways };
  Reduction reduction = Reduction::kOfOurs;
  // Replaces the data by noise and packs nothing of the original diagnosis but its verdict.
  bool anonymise = false;
  // Keeps the paths that tell where the maker has files (private_paths.h).
  bool with_paths = false;
  int max_tried = 200;  // limit of diagnoses made by the reduction
  int threads = 1;
  // Where an imported program lies now; program "": where the diagnosis found it.
  ProgramFiles program = {};
};

struct Bundle {
  uint64_t bytes = 0;
  std::vector<std::string> members;
  std::optional<Reduced> reduced;  // nullopt: the scenario is packed as it is
  // Run files that are missing. With a foreign engine: what is packed of it, what must be attached,
  // that nothing was reduced.
  std::vector<std::string> notes;
  bool is_foreign = false;  // replaying it runs a foreign engine: third-party code
  bool interrupted = false;
};

// Errors: a folder without a report; a report that was changed, or that is not of the run files
// beside it; an imported program that has changed since, or is to be
// anonymised; a finding that does not show again.
Result<Bundle> bundle(const std::string& results, const std::string& path,
                      const BundleOptions& options, Progress* progress, const StopFlag* stop);

}  // namespace twinrun
