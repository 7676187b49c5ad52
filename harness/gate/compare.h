// A controlled experiment with two arms: any two engines, settings or faults, paired over a fixed
// number of seeds. On the data's path: scenario and two arms -> runs -> Comparison.
//
//   CompareOptions o{.source = {"digits_mlp"}, .seeds = 5};
//   o.b.engine.engine = "tpu";       // against arm A, by default cpu
//   auto c = compare(o);
//   c->outcome;      // kEquivalent
//   c->row.mean;     // of A - B, with its intervals
//
// The number of seeds is fixed beforehand: adding seeds until the outcome pleases would inflate
// both error rates.
#pragma once

#include <string>

#include "harness/run/engine_setup.h"
#include "reports/comparison.h"

namespace twinrun {

struct CompareArmSpec {
  EngineSpec engine;
  Overrides settings;  // of this arm alone, applied after those of both arms
  std::string asked;   // the arm as typed, for reports
};

struct CompareOptions {
  ExperimentSource source;
  Overrides settings;  // of both arms
  CompareArmSpec a, b;
  int seeds = 0;      // 0: diagnose.seeds; they are the seed of the scenario, the next one, ...
  double margin = 0;  // 0: diagnose.margin, else 2 standard deviations between the seeds of A
  enum class Metric : uint8_t { kLoss, kAccuracy } metric = Metric::kLoss;
  Progress* progress = nullptr;
  const StopFlag* stop = nullptr;
};

// Each pair shares its seed, which gives the same initial weights and order of samples where the
// models and data of the arms are alike; notes say where they are not. Of an imported program a
// seed is an order of its batches, and the first pair has them as they are. If all states of the
// first pair are bit-identical, no other pair runs. Errors: a scenario is invalid or its data
// cannot be read; an imported program comes without held-out batches; an engine cannot be set up or
// fails.
Result<Comparison> compare(const CompareOptions& options);

// The rule. Equivalent: two one-sided tests at 5 % place the mean inside the margin. Otherwise
// different if the 95 % interval excludes 0 (or only one arm diverged); otherwise undetermined. A
// difference that is inside the margin but other than 0 is equivalent.
CompareOutcome decide(const TrajectoryRow& row);

}  // namespace twinrun
