// The records of a drill, counted: confusion matrix, targets, kinds, power, misses. Plain structs; render.cc makes text of them.
//
//   DrillSummary s = summarise(records);
//   s.targets[0].rate.low;       // Wilson's 95 % interval
#pragma once

#include <map>
#include <string>
#include <vector>

#include "harness/drill/record.h"

namespace twinrun::drill {

// k of n, with Wilson's score interval (95 %): Wilson, "Probable inference", JASA 22 (1927).
struct Rate {
  int64_t k = 0, n = 0;
  double low = 0, high = 1;
  void add(bool yes) { k += yes ? 1 : 0, ++n; }
  void close();  // fills low and high
  double share() const { return n > 0 ? static_cast<double>(k) / static_cast<double>(n) : 0; }
};

struct Target {
  std::string what;
  Rate rate;
  double wanted = 0;  // at least; of `at_most`: at most
  bool at_most = false;
  bool met() const { return at_most ? rate.share() <= wanted : rate.share() >= wanted; }
};

struct MatrixRow {
  char level = 'A';
  Kind kind = Kind::kClean;
  std::map<std::string, int64_t> verdicts;  // "NOISE", ..., "error"
  Rate right;
};

// One kind of fault, or one cause.
struct KindRow {
  std::string kind;
  int64_t cases = 0, inert = 0, inside = 0;
  Rate flagged, op, step, core;  // of those outside
  Rate cause, verdict;           // of causes: named; class right
  Rate effect;                   // of causes whose effect is known: told as it is
  std::map<double, Rate> power;  // magnitude -> flagged, of all that were activated
  int executions = 0;            // most that one case took
};

struct DrillSummary {
  int64_t cases = 0, errors = 0;
  std::vector<Target> targets;
  std::vector<MatrixRow> matrix;
  std::vector<KindRow> faults, causes;
  Rate clean_effects;            // of clean pairs: harmful or beneficial, by rounding alone
  Rate hidden;                   // level C, op outside but no tensor: flagged
  Rate false_alarms;             // of clean pairs: ENGINE_BUG or SHARDING
  double false_alarm_bound = 1;  // 3/n: the rule of three, where there were none
  int64_t clusters = 0;          // clean pairs that share neither scenario nor variant
  std::map<std::string, int64_t> clean_by_scenario;
  double executions = 0;  // mean, to an engine's finding
  int most_executions = 0;
  double run_lengths = 0;                 // mean: its steps, in units of the scenario's
  double seconds = 0, truth_seconds = 0;  // mean of a case
  std::vector<std::string> misses;        // "ID  truth -> verdict: headline"
};
DrillSummary summarise(const std::vector<CaseRecord>& records);

struct Drilled {  // said above the tables
  std::string command;
  uint64_t seed = 0;
  std::string date, machine;  // informal: nothing rests on them
};
std::string to_terminal(const DrillSummary& summary, const Drilled& what);
std::string to_markdown(const DrillSummary& summary, const Drilled& what);
std::string to_json(const DrillSummary& summary, const Drilled& what);

}  // namespace twinrun::drill
