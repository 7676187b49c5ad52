// A controlled experiment with two arms: any two engines, settings or faults, paired over a fixed number of seeds.
//
//   auto c = compare({.scenario = "digits_mlp", .a = {.engine = {.engine = "cpu"}}, .b = {.engine = {.engine = "tpu"}}, .seeds = 5});
//   c->outcome;      // kEquivalent
//   c->row.mean;     // of A - B, with its intervals
//
// The number of seeds is fixed beforehand: adding seeds until the outcome pleases would inflate both error rates.
#pragma once

#include <string>

#include "harness/run/engine_setup.h"
#include "reports/comparison.h"

namespace twinrun {

struct CompareArmSpec {
  EngineSpec engine;
  Overrides settings;  // of this arm alone, beside those of both
  std::string asked;   // for reports
};

struct CompareOptions {
  std::string scenario;  // a name or a path
  Overrides settings;    // of both arms
  CompareArmSpec a, b;
  int seeds = 0;      // 0: diagnose.seeds; scenario seed, the next one, ...
  double margin = 0;  // 0: diagnose.margin, else 2 standard deviations between the seeds of A
  enum class Metric : uint8_t { kLoss, kAccuracy } metric = Metric::kLoss;
  Progress* progress = nullptr;
  const StopFlag* stop = nullptr;
};

// Each pair shares its seed: initial weights and order of samples where the arms' models and data are alike; notes say where they
// are not. Where the first pair agrees in every bit, no other is run. Errors: a scenario or engine that cannot be.
Result<Comparison> compare(const CompareOptions& options);

// The rule: equivalent where two one-sided tests at 5 % hold the mean inside the margin; else differs where the 95 % interval leaves
// 0 out (or one arm alone diverged); else undetermined. Whoever is inside the margin and other than 0 is equivalent.
CompareOutcome decide(const TrajectoryRow& row);

}  // namespace twinrun
