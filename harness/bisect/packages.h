// The axis `package` of twinrun bisect: the release of a package with which a script of the user's
// becomes wrong, or right. Each release gets an environment of its own.
//
//   PackageOptions o{.package = "jaxlib", .low = "0.4.21", .high = "0.4.35", .folder = "out"};
//   o.script = {"train.py"};
//   TWINRUN_ASSIGN(const PackagesFound f, bisect_packages(o, progress, stop));
//   f.first_bad.version;  f.last_good.version;  f.fixed;
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/bisect/environments.h"
#include "harness/bisect/script.h"
#include "harness/search/search.h"

namespace twinrun::bisect {

struct PackageOptions {
  std::string package, low, high;
  std::vector<std::string> script;        // with its arguments
  std::vector<std::string> requirements;  // further packages for every environment
  std::optional<ScriptOptions::Way> way;  // none: by the text of the script
  std::vector<std::string> fail_on;       // classes that are bad; empty: by what the ends show
  std::string python;                     // "3.11"; "": the one with wheels for most releases
  std::string interpreter;                // that has the package twinrun
  std::vector<std::string> environments;  // the program that makes environments
  double disk = 20e9;                     // bytes
  int steps = 1, threads = 2;             // of Way::kWatch
  std::string folder;                     // session.jsonl, logs/, reports/, environments/
  Repeats repeats;
  double timeout_seconds = 0;
  bool resume = false;
  std::string typed;
};

// A release that was tried.
struct TriedRelease {
  std::string version, date;  // date: "" if not known
  std::string python;         // version of its environment's interpreter; "" if there was none
  std::string answer;         // "ENGINE_BUG: dot computes ...", or why there is none
  std::string report;         // folder of report.html; "" if there is none
  Tally tally;
};

struct PackagesFound {
  Found found;
  // LOW is bad and HIGH good: first_bad is the last bad release, and last_good the first good one.
  bool fixed = false;
  std::string wrong;                  // the class that is looked for: "ENGINE_BUG"
  int64_t releases = 0;               // between the ends, both included
  TriedRelease last_good, first_bad;  // empty if nothing was found
  std::vector<TriedRelease> tried;    // all, the oldest first
  std::vector<std::string> skipped;   // untestable, between the two
  std::vector<std::string> links;     // to what has changed between the two
  ScriptOptions::Way way = ScriptOptions::Way::kDiagnose;
  int64_t environments = 0, removed = 0;  // how many were made, and removed for others
  double environment_seconds = 0;         // to make them, in total
  int64_t bytes = 0;                      // of those that are left
};

// Errors: an end is not released, yanked or without a wheel here; the program that makes
// environments cannot be started; interrupted.
Result<PackagesFound> bisect_packages(const PackageOptions& options, Progress* progress,
                                      const StopFlag* stop);

// The releases from low to high that can be tried, in order. Release candidates are left out unless
// an end is one. Error: an end is none of them; it names those nearest to it.
Result<std::vector<Release>> releases_between(const std::vector<Release>& all,
                                              const std::string& package, const std::string& low,
                                              const std::string& high, const std::string& python);

}  // namespace twinrun::bisect
