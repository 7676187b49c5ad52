// Two diagnoses of one script under two installations, side by side: the verdict of each, what each
// names first, and how the values of both steps compare. Used where a side has no trace, only its
// report.json.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "program/base/result.h"
#include "reports/report.h"

namespace twinrun {

// The step that a JAX diagnosis judged, as it left it in its folder (docs/guides/jax.md).
struct StepFiles {
  std::string module;               // its text in StableHLO
  std::vector<std::string> values;  // of each step: safetensors of argument/i and result/i
  std::vector<std::string> arguments, results;  // names
  std::vector<int64_t> next;  // of argument i the result that is its new value; -1: none
  int64_t loss = -1;          // the index of the result
  std::string precision;      // of products, a word of `judge --precision`
};

struct SideReport {
  std::string name;
  VerdictClass verdict = VerdictClass::kInconclusive;
  std::string headline;
  std::string cause, sentence;            // of the first finding; "" without any
  bool has_checksum = true;               // json_checksum.h
  std::optional<StepFiles> step;          // paths of its files; none: the diagnosis left no values
  std::map<std::string, Answer> answers;  // by question
  std::string scenario;                   // resolved, TOML; "" of another kind
};
// Errors: no such file; not the report of a diagnosis; changed after it was written.
Result<SideReport> read_side_report(const std::string& path, std::string name);

// A result of one side that is not what the other side's program may give from the same arguments.
struct ResultApart {
  std::string name, side;  // whose result it is: "A", "B"
  int64_t step = 0, elements = 0, outside = 0;
  bool likely = false;   // outside of likely values, which is no proof
  bool on_path = false;  // new state or the loss, not a metric
  // The difference of both sides' updates, over the larger one's norm; of other results, of values.
  double relative = 0;
  double half = 0;      // half of the digits of its type: 2^-12 for float32; 0: whole numbers
  double ratio = 0;     // the largest distance, in radii
  double factor = NAN;  // side B's update is so many times side A's
  std::string sentence() const;
};

// The result that both programs make most different from the same arguments, evaluated in binary64.
struct MeantApart {
  std::string name;
  double relative = 0;  // the norm of the difference of the updates over the larger one's
  double half = 0;      // as above
  double factor = NAN;
  std::string sentence() const;
};

// How the values of both sides compare: each side's results are held against what rounding can make
// of the other side's program on the same arguments.
struct ValuesApart {
  VerdictClass verdict = VerdictClass::kInconclusive;
  std::string headline;
  int64_t steps = 0;                // that were compared
  double update = 0;                // the largest difference of a result's updates, over their norm
  double undecided = 0;             // the part of the updates that the bounds leave undecided
  std::optional<MeantApart> meant;  // of the first step; none: it was not evaluated, or has NaN
  std::vector<std::string> inputs;  // sentences: arguments that are not the same
  std::vector<ResultApart> results;  // of the first step that has any
  std::vector<std::string> notes;
};

struct TwoReports {
  SideReport a, b;
  std::optional<ValuesApart> values;  // none: a side has no values
  std::vector<std::string> other_keys =
      {};  // of two scenarios: "train.steps is 40 on side A and .."
  // The gravest: a fault of an engine, then what the program means, then what is not known.
  VerdictClass verdict() const;
  std::string side() const;  // "A", "B", "A and B": whose verdict that is; "" that of the values
};
Report report_of(const TwoReports& both);

}  // namespace twinrun
