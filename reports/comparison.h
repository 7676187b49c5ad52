// What an A/B run has to say (twinrun compare): two arms, paired over seeds.
//
//   std::string text = to_terminal(comparison, 80);
//   std::string json = to_json(comparison);
//   return exit_code(comparison.outcome);
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reports/report.h"

namespace twinrun {

enum class CompareOutcome : uint8_t {
  kIdentical,     // bit for bit
  kEquivalent,    // the mean difference is inside the margin: two one-sided tests at 5 %
  kDiffers,       // not shown equivalent, and other than 0: the 95 % interval leaves 0 out
  kUndetermined,  // neither
  kInterrupted,
};
std::string_view to_string(CompareOutcome outcome);  // "identical" "equivalent" ...
int exit_code(CompareOutcome outcome);               // 0 0 1 125 130

struct CompareArm {
  std::string engine, settings;  // "tpu", "cores=8 batch=64 precision=default"
  std::string asked;             // what the command line said: "tpu --b-set loss.reduction=sum"
  std::vector<double> values;    // the metric, a seed each
  std::vector<std::string> ended;  // "completed", "diverged: ..."
};

struct Comparison {
  std::string scenario, metric;  // "held-out loss", "held-out accuracy"
  CompareArm a, b;
  std::vector<uint64_t> seeds;  // that were run; both arms have the same
  int asked_seeds = 0;
  TrajectoryRow row;  // A - B
  CompareOutcome outcome = CompareOutcome::kUndetermined;
  std::string headline;                // one sentence
  std::optional<int> needed;           // seeds that would decide with 80 % power, where undetermined
  std::vector<std::string> notes;      // what the pairing does not hold equal
  double seconds_a = 0, seconds_b = 0;  // of training, shown only
};

std::string to_terminal(const Comparison& comparison, int width = 80);
std::string to_json(const Comparison& comparison);  // docs/regression-gates.md has the keys

}  // namespace twinrun
