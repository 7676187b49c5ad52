// The axis `config` of twinrun bisect: which of the keys in which two scenarios differ make the
// difference.
//
//   ScenarioOptions o{.test = ScenarioOptions::Test::kDigest, .engine = "tpu", .folder = "out"};
//   TWINRUN_ASSIGN(const ScenariosFound f, bisect_scenarios(a, b, o, progress, stop));
//   f.set.changes -> f.changes[i].settings()       // what --set takes
#pragma once

#include <string>
#include <vector>

#include "backends/faults/faults.h"
#include "harness/bisect/keys.h"
#include "harness/search/smallest_set.h"

namespace twinrun::bisect {

struct ScenarioOptions {
  // How a scenario between A and B is judged.
  enum class Test : uint8_t {
    kVerdict,  // class of a diagnosis: A's is good, B's bad, any other is a skip
    kLoss,     // last held-out loss of a run: farther than `margin` from A's is bad
    kDigest,   // last state of a run: B's bits are bad, all others good
    // Exit code of `command`, with the scenario's file as its last argument, as for git bisect run.
    kCommand,
  } test = Test::kVerdict;
  std::string engine = "tpu";
  std::vector<FaultSpec> faults;  // injected into that engine
  bool quick = false;  // kVerdict: no seeds, so only an engine bug or exact agreement is found
  double margin = 0;   // kLoss
  std::vector<std::string> command;
  double timeout_seconds = 0;  // kCommand
  int threads = 1;
  std::string folder;  // session.jsonl, logs/, scenarios/, good.toml, bad.toml
  std::string cache;   // of reference runs, for kVerdict
  Repeats repeats;
  bool resume = false;
  std::string typed;
};

struct ScenariosFound {
  std::vector<KeyChange> changes;  // all in which A and B differ
  SmallestSet set;                 // of those
  std::string answer_a, answer_b;  // the test's answer for A and B: "NOISE", a digest, a loss
  // Neighbours: A with the set less one change, and A with the set; "" if no set was found.
  std::string good_file, bad_file;
};

// Combinations that are no valid scenario are skipped. Errors: the scenarios do not differ; the
// engine's; interrupted.
Result<ScenariosFound> bisect_scenarios(const Scenario& a, const Scenario& b,
                                        const ScenarioOptions& options, Progress* progress,
                                        const StopFlag* stop);

}  // namespace twinrun::bisect
