// Does a bundle show here what it showed where it was made? Nothing in it is trusted: members by a fixed list of names, each held
// against its digest, nothing outside a new folder is written, and no engine that is code of others runs unless it is allowed.
//
//   auto again = replay("fault.zip", {.threads = 2, .folder = "work"}, &progress, &stop);
//   again->differences.empty();        // reproduced, to the bit
#pragma once

#include <string>
#include <vector>

#include "harness/bundle/manifest.h"
#include "harness/diagnose/pipeline.h"

namespace twinrun {

struct ReplayOptions {
  std::string folder;       // where it is unpacked and run; must be there and empty
  std::string data_dir;     // of a scenario whose files are not in the bundle
  bool allow_exec = false;  // exec: and xla: engines
  int threads = 1;
};

struct ReplayRow {
  std::string what;  // "T: last state", "finding"
  std::string expected, found;
  bool same = false;
  bool must = true;  // false: of an engine whose bits are not defined; told, not judged
};

struct Replay {
  Manifest manifest;
  Report report;
  std::vector<ReplayRow> rows;
  std::vector<std::string> notes;  // another contract, another data digest
  bool interrupted = false;
  bool reproduced() const;
};

// Errors: damaged or not a bundle, naming the member; an engine that is not allowed or not there.
Result<Replay> replay(const std::string& path, const ReplayOptions& options, Progress* progress,
                      const StopFlag* stop);

// What the verb `inspect` and a refusal say without running anything.
Result<Manifest> open_bundle(const std::string& path);

}  // namespace twinrun
