// The pairs of a comparison as records, and what is concluded from them. On the data's path: runs
// of both arms -> Pair -> Comparison. A comparison in shards keeps its pairs in pairs.jsonl.
//
//   file.add(to_line(pair));                      // pair_from reads it back
//   Comparison c = conclude(question, pairs);     // in the order of the seeds
#pragma once

#include <map>
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

std::string id_of(uint64_t seed);       // "seed.17"
std::string to_line(const Pair& pair);  // one line of JSON, with its checksum
Result<Pair> pair_from(const std::string& line);

// What is asked of the pairs.
struct CompareQuestion {
  std::string scenario, metric, a, b;  // the arms as typed
  int seeds = 0;
  double margin = 0;  // 0: 2 standard deviations between the seeds of A
  std::string margin_source;
};
// As texts, for plan.json, and back. Error: one of them is missing.
std::map<std::string, std::string> to_setting(const CompareQuestion& question);
Result<CompareQuestion> question_from(const std::map<std::string, std::string>& setting);

// `pairs`: in the order of the seeds. If the first one is identical, the others say nothing.
// Interrupted where fewer pairs are there than seeds.
Comparison conclude(const CompareQuestion& question, const std::vector<Pair>& pairs);

// A row for each pair: RFC 4180, like the tables of a report.
std::string to_csv(const Comparison& comparison);

}  // namespace twinrun
