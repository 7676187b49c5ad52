// Statistics over the records of a drill: confusion matrix, targets, kinds, power, misses. Plain
// structs; render.cc turns them into text.
//
//   DrillSummary s = summarise(records);
//   s.targets[0].rate.low;       // Wilson's 95 % interval
#pragma once

#include <map>
#include <set>
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
  double wanted = 0;  // lower limit of the share; upper limit if `at_most`
  bool at_most = false;
  bool met() const { return at_most ? rate.share() <= wanted : rate.share() >= wanted; }
};

struct MatrixRow {
  char level = 'A';
  Kind kind = Kind::kClean;
  std::map<std::string, int64_t> verdicts;  // "NOISE", ..., "error"
  Rate right;
};

// Results for one kind of fault, or for one cause.
struct KindRow {
  std::string kind;
  int64_t cases = 0, inert = 0, inside = 0;
  Rate flagged, op, step, core;  // over the cases outside
  Rate cause, verdict;           // for causes: cause named; class right
  Rate effect;                   // for causes whose true effect is known: effect right
  std::map<double, Rate> power;  // magnitude -> flagged, over all cases with changed bits
  int executions = 0;            // largest number in one case
};

struct DrillSummary {
  int64_t cases = 0, errors = 0;
  std::set<uint64_t> seeds;  // of the ids
  std::vector<Target> targets;
  std::vector<MatrixRow> matrix;
  std::vector<KindRow> faults, causes;
  Rate clean_effects;  // clean pairs reported as harmful or beneficial, from rounding alone
  Rate hidden;         // flagged at level C where the op is outside but no tensor is
  Rate false_alarms;   // clean pairs reported as ENGINE_BUG or SHARDING
  double false_alarm_bound = 1;  // 3/n, the rule of three; valid where there were none
  int64_t clusters = 0;          // distinct combinations of scenario and variant among clean pairs
  std::map<std::string, int64_t> clean_by_scenario;
  double executions = 0;  // mean number of executions behind a finding about the engine
  int max_executions = 0;
  double run_lengths = 0;  // mean number of steps in these executions, in runs of full length
  double seconds = 0, truth_seconds = 0;  // means per case
  std::vector<std::string> misses;        // "ID  truth -> verdict: headline"
};
DrillSummary summarise(const std::vector<CaseRecord>& records);

// How long it took is shown on the terminal only: Markdown and JSON are the same, byte for byte,
// wherever and in however many shards the cases were run.
std::string to_terminal(const DrillSummary& summary);
std::string to_markdown(const DrillSummary& summary);
std::string to_json(const DrillSummary& summary);
// A row for each record, with its score: RFC 4180, like the tables of a report (reports/csv.h).
std::string to_csv(const std::vector<CaseRecord>& records);

}  // namespace twinrun::drill
