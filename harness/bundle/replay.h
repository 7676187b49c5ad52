// Checks whether a bundle (bundle.h) reproduces on this machine what it showed where it was made.
// Its contents are not trusted: member names must be on a fixed list, each member is checked
// against its digest, nothing is written outside a new folder, and no foreign engine runs unless
// that is allowed.
//
//   auto again = replay("fault.zip", {.threads = 2, .folder = "work"}, &progress, &stop);
//   again->reproduced();               // the same finding and, of our engines, the same bits
#pragma once

#include <string>
#include <vector>

#include "harness/bundle/manifest.h"
#include "harness/diagnose/pipeline.h"

namespace twinrun {

struct ReplayOptions {
  std::string folder;       // where it is unpacked and run; must exist and be empty
  std::string data_dir;     // data folder of a scenario whose files are not in the bundle
  bool allow_exec = false;  // exec: engines
  int threads = 1;
};

struct ReplayRow {
  std::string what;  // "T: last state", "finding"
  std::string expected, found;
  bool same = false;
  bool must = true;  // false: the bits of a foreign engine, which are shown but need not agree
};

struct Replay {
  Manifest manifest;
  Report report;
  std::vector<ReplayRow> rows;
  std::vector<std::string> notes;  // made by another version or contract
  bool interrupted = false;
  bool reproduced() const;
  void row(std::string what, std::string expected, std::string found);
  // The verdict and the first finding of a step or module, beside those of the manifest; `op_name` is
  // what the finding's `op` is called in the row.
  void compare_finding(const std::string& op_name);
};

// Errors: a damaged bundle or another file, with the name of the member; an engine that is not
// allowed, does not start or fails.
Result<Replay> replay(const std::string& path, const ReplayOptions& options, Progress* progress,
                      const StopFlag* stop);

// Reads and checks a bundle without running anything, for `inspect` and for errors.
Result<Manifest> open_bundle(const std::string& path);

}  // namespace twinrun
