// The result of an A/B run (twinrun compare): two arms, paired over seeds.
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
  kDiffers,       // not shown equivalent, and the 95 % interval of the difference excludes 0
  kUndetermined,  // neither equivalent nor different
  kInterrupted,
};
std::string_view to_string(CompareOutcome outcome);  // "identical" "equivalent" ...
int exit_code(CompareOutcome outcome);               // 0 0 1 125 130

struct CompareArm {
  std::string engine, settings;  // "tpu", "cores=8 batch=64 precision=default"
  std::string asked;             // as on the command line: "tpu --b-set loss.reduction=sum"
  std::vector<double> values;    // of the metric, one per seed
  std::vector<RunEnd> ended;
};

struct Comparison {
  std::string scenario, metric;  // "held-out loss", "held-out accuracy"
  CompareArm a, b;
  std::vector<uint64_t> seeds;  // seeds that ran; both arms have the same ones
  int asked_seeds = 0;
  TrajectoryRow row;  // A - B
  CompareOutcome outcome = CompareOutcome::kUndetermined;
  std::string headline;       // one sentence
  std::optional<int> needed;  // seeds that would decide with 80 % power; set where undetermined
  std::vector<std::string> notes;       // what differs between the arms in spite of the pairing
  double seconds_a = 0, seconds_b = 0;  // of training; shown, but decide nothing
};

std::string to_terminal(const Comparison& comparison, int width = 80);
std::string to_json(const Comparison& comparison);  // docs/guides/regression-gates.md has the keys

}  // namespace twinrun
