// What one case gave: what was injected, what is true of it, what the diagnosis said. One line of cases.jsonl.
//
//   CaseRecord r = run_case(*draw_case(id), options);
//   append(file, to_line(r));                  // from_line gives it back
//   Score s = score(r);                        // was the diagnosis right? nothing but the record decides
#pragma once

#include <string>
#include <vector>

#include "harness/drill/drill_case.h"
#include "reports/report.h"

namespace twinrun::drill {

// Below this two meanings are one: binary64 leaves far less between two orders of the same sums, but a program's constants are f32,
// and 1/5 of them, summed over 5 cores, is 1 only to 2^-26. Four times f32's unit roundoff.
inline constexpr double kSameMeaning = 0x1p-22;

// Decided beforehand, by nothing of the diagnosis (harness/drill/truth.h).
struct Truth {
  // Of the engine's fault.
  bool activated = false;        // bits changed
  int64_t first_activated = -1;  // step
  int replica = -1;              // -1: a collective, or several cores at once
  bool outside = false;          // farther than any honest engine of this declaration
  int64_t first_outside = -1;    // step
  double distance = 0;  // from the honest ones, in units of how far they spread; the largest seen
  // Inside element by element, but leaning to one side as no honest engine does.
  bool biased = false;
  // Level C, where outside: the same distance of the step's tensors. Up to 1, honest engines' tensors are as far apart.
  std::optional<double> tensors;
  // Of the sharding cause.
  double meaning = 0;  // relative one-step drift in binary64
  // Of held-out loss over many seeds, against the margin: "harmful", "beneficial", "inside", "open", "" (no cause).
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
  Truth truth;
  std::string error;  // not empty: the case failed, and nothing below holds
  VerdictClass verdict = VerdictClass::kInconclusive;
  Effect effect = Effect::kUndecided;
  bool not_learnt = false;  // the effect is undecided because the reference has not learnt
  std::string headline;
  std::vector<SaidFinding> findings;
  std::vector<std::string> notes;
  int executions = 0;      // runs of the subject, whole or in part
  double run_lengths = 0;  // its steps in all, in units of the scenario's
  std::vector<int64_t>
      sealed;  // the first step of each of its runs on which bits changed; opened last
  double truth_seconds = 0,
         seconds = 0;  // of one core: the truth, the diagnosis. No figure rests on them
};

std::string to_line(const CaseRecord& record);  // one line of JSON
Result<CaseRecord> from_line(const std::string& line);

// The rows of the confusion matrix: what a case is in truth.
enum class Kind : uint8_t {
  kClean,            // nothing was injected
  kInert,            // injected, but no bit and no meaning changed
  kEngineOutside,    // the targets count here
  kEngineBiased,     // no element outside, but leaning
  kEngineInside,     // where an honest engine could be, by what is shown: power only
  kShardingOutside,  // and held-out loss moves by more than the margin
  kShardingInside,   // ... stays within it
  kShardingOpen,     // ... the seeds do not decide
  kBoth,             // sharding and an engine's fault outside
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
  bool op = false, step = false,
       core = false;   // the first finding names the op, and the first step that could be seen
  bool cause = false;  // a finding names the cause of sharding
  // Where the truth of the effect is known: the second answer is the right one.
  std::optional<bool> effect;
};
Score score(const CaseRecord& record);

}  // namespace twinrun::drill
