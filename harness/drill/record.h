// The record of one case: what was injected, what is true of it, what the diagnosis answered. One
// line of cases.jsonl.
//
//   CaseRecord r = *run_case(id, options, truths);
//   append(file, to_line(r));    // from_line reads it back
//   Score s = score(r);          // was the diagnosis right? decided from the record only
#pragma once

#include <string>
#include <vector>

#include "harness/drill/drill_case.h"
#include "reports/report.h"

namespace twinrun::drill {

// Two programs less than this apart have the same meaning. Two orders of the same sums differ far
// less in binary64, but a program's constants are f32: 1/5 summed over 5 cores is 1 only to 2^-26.
// The value is four times the unit roundoff of f32.
inline constexpr double kSameMeaning = 0x1p-22;

// Decided before the diagnosis and independently of it (harness/drill/truth.h).
struct Truth {
  // About the engine's fault.
  bool activated = false;        // bits changed
  int64_t first_activated = -1;  // step
  int replica = -1;              // -1: a collective, or several cores at once
  bool outside = false;          // farther away than any conforming engine of this declaration
  int64_t first_outside = -1;    // step
  // Largest distance from the conforming engines, in units of their spread.
  double distance = 0;
  // No element is outside, but the errors are biased in one direction, unlike those of any
  // conforming engine.
  bool biased = false;
  // Level C, where outside: the same distance for the tensors of the step. At most 1: conforming
  // engines' tensors are as far apart.
  std::optional<double> tensors;
  // About the cause of sharding.
  double meaning = 0;  // relative one-step drift in binary64
  // Effect on held-out loss over many seeds, against the margin: "harmful", "beneficial", "inside",
  // "open", "" (no cause).
  std::string matters;
};

struct SaidFinding {
  VerdictClass verdict = VerdictClass::kNoise;
  std::string cause, op;
  int64_t step = -1;
  int core = -1;
};

struct CaseRecord {
  DrillCase injected;
  std::string setting;  // digest of what decides the result besides the case's id (drill.cc)
  Truth truth;
  std::string error;  // not empty: the case failed, and nothing below is valid
  VerdictClass verdict = VerdictClass::kInconclusive;
  Effect effect = Effect::kUndecided;
  bool not_learnt = false;  // the effect is undecided because the reference has not learnt
  std::string headline;
  std::vector<SaidFinding> findings;
  std::vector<std::string> notes;
  int executions = 0;      // runs of the subject, complete or partial
  double run_lengths = 0;  // all its steps, in units of the scenario's number of steps
  // For each run of the subject, the first step on which bits changed; read after the verdict.
  std::vector<int64_t> sealed;
  // CPU seconds for the truth and for the diagnosis; shown only.
  double truth_seconds = 0, seconds = 0;
  bool has_checksum = true;  // of the line that it was read from (json_checksum.h)
};

std::string to_line(const CaseRecord& record);  // one line of JSON, with its checksum
Result<CaseRecord> from_line(const std::string& line);

// The rows of the confusion matrix: what a case is in truth.
enum class Kind : uint8_t {
  kClean,            // nothing was injected
  kInert,            // injected, but no bit and no meaning changed
  kEngineOutside,    // the targets count these
  kEngineBiased,     // no element outside, but biased
  kEngineInside,     // a conforming engine could give the same; counts for power only
  kShardingOutside,  // held-out loss changes by more than the margin
  kShardingInside,   // it stays within the margin
  kShardingOpen,     // the seeds do not decide
  kBoth,             // a cause of sharding, and an engine fault outside
};
inline constexpr Kind kKinds[] = {
    Kind::kClean,          Kind::kInert,        Kind::kEngineOutside,
    Kind::kEngineBiased,   Kind::kEngineInside, Kind::kShardingOutside,
    Kind::kShardingInside, Kind::kShardingOpen, Kind::kBoth};
std::string_view to_string(Kind kind);

struct Score {
  Kind kind = Kind::kClean;
  bool right = false;    // the class is one that the truth allows
  bool flagged = false;  // ENGINE_BUG
  // The first finding names the op, the first step that could be seen, and the core.
  bool op = false, step = false, core = false;
  bool cause = false;  // a finding names the cause of sharding
  // Whether the reported effect is right; set where the true effect is known.
  std::optional<bool> effect;
};
Score score(const CaseRecord& record);

}  // namespace twinrun::drill
