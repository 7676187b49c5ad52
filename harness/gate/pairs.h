// The pairs of a comparison, and what is concluded from them. On the data's path: runs of both arms
// -> Pair -> Comparison.
//
//   Comparison c = conclude(question, pairs);     // in the order of the seeds
#pragma once

#include <string>
#include <vector>

#include "reports/comparison.h"

namespace twinrun {

struct PairArm {
  std::string engine, settings;
  double value = 0;  // of the metric; NaN: the run diverged
  RunEnd ended;
  double seconds = 0;
};

// One seed of a comparison.
struct Pair {
  uint64_t seed = 0;
  PairArm a, b;
  bool identical = false;          // all states of both arms are the same bits
  std::vector<std::string> notes;  // of the first pair: what the arms do not share
};

// What is asked of the pairs.
struct CompareQuestion {
  std::string scenario, metric, a, b;  // the arms as typed
  int seeds = 0;
  double margin = 0;  // 0: 2 standard deviations between the seeds of A
  std::string margin_source;
};
// `pairs`: in the order of the seeds. If the first one is identical, the others say nothing.
// Interrupted where fewer pairs are there than seeds.
Comparison conclude(const CompareQuestion& question, const std::vector<Pair>& pairs);

}  // namespace twinrun
