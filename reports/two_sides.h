// What is found of two traces of one script, as plain structs, and the Report that they make.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reports/report.h"
#include "reports/trace_verdict.h"

namespace twinrun {

// A call of one side.
struct SideCall {
  int64_t call = 0;
  int32_t step = 0;
  std::string op, place, module, phase;
  bool judged = false;  // this result was held against its definition
  double worst = 0;     // its largest error / bound
  int64_t outside = 0;  // its elements outside their bound
};

// A result that is not the same on both sides.
struct SideDifference {
  SideCall a, b;
  std::string type, by;      // "float32[64, 10]"; aligned by "bits", "values" or "order"
  bool same_inputs = false;  // both calls read the same bits
  int64_t elements = 0, differing = 0;
  double largest = 0, relative = 0;  // the largest difference; the same over the largest value
  // The largest difference over the sum of both sides' bounds; infinite where a result that has no
  // rounding of its own differs, NaN where no bound is known.
  double ratio = 0;
};

// Something that both sides should have had alike, and that no earlier call explains.
struct OtherInput {
  enum class Kind : uint8_t {
    kTensor,
    kDraw,
    kNumber,
    kArguments,
    kType,
    kOperation,
    kGradient,  // gradients further apart than both sides' rounding explains
    kUpdate     // the same gradients, and updates further apart than rounding explains
  };
  Kind kind = Kind::kTensor;
  SideCall a, b;
  std::string a_has, b_has;  // "float32[16, 8]", "alpha = -0.1"
  int64_t elements = 0, differing = 0;
  double relative = 0;
  double explained = 0;  // of a gradient: the relative difference that rounding explains
  std::string meaning;   // of a gradient: MeantGradients::sentence()
  std::string sentence() const;
};

// The gradients of the first step of both sides, evaluated in binary64.
struct MeantGradients {
  bool asked = false, has_half = false;
  std::string why;  // it was not
  int32_t step = 0;
  double relative = NAN;             // the norm of their difference over the larger norm
  std::optional<double> factor;      // A's is this times B's
  int64_t call_a = -1, call_b = -1;  // with which the first backward passes begin
  // The side with more backward passes is A; how many; with which weights they add up to that side's
  // gradient, and to the other's. Empty: they do not.
  bool of_a = true;
  int64_t passes = 0;
  std::vector<double> own, other;
  // As of the gradient against the loss: below, a branch that rounding decided may be another one.
  bool differ() const { return asked && relative >= (has_half ? 0x1p-4 : GradientCheck::kLeast); }
  // Right ones differ by 10^-16, and by 10^-7 where the script reads a number of float32 (.item()).
  bool agree() const { return asked && relative < 0x1p-20; }
  std::string sentence() const;    // how they differ, without a full stop
  std::string what_to_do() const;  // "" if nothing is known
};

struct StepGrowth {
  int32_t step = 0;
  int64_t aligned = 0, differing = 0;
  double relative = 0;  // the largest of the optimizer's results
  double update = 0;    // the norm of the difference of both updates, over the larger update's
  // The same of the gradients that the optimizers read, and what both sides' bounds explain of it: the
  // sum of the bounds, each over its result's norm, of all calls until then that the update depends
  // on. NaN: not known.
  double gradients = NAN, explained = NAN;
};

struct TwoSides {
  TraceVerdict a, b;
  std::string a_name, b_name;  // the command or trace of a side
  VerdictClass verdict = VerdictClass::kInconclusive;
  std::string side;  // of an ENGINE_BUG: "A", "B", "A and B"
  std::string headline;
  std::optional<SideDifference> first, largest;
  std::vector<SideDifference> growth;       // those that set a record of the ratio, at most 50
  std::vector<SideDifference> unexplained;  // from the same bits, but not judged; at most 50
  // For the first finding of a side that is outside: the same result on the other side.
  std::optional<SideDifference> of_a, of_b;
  std::vector<OtherInput> inputs;  // in the order of A, at most 50
  MeantGradients meant;
  std::vector<StepGrowth> steps;
  int64_t by_bits = 0, by_values = 0, by_order = 0, differing = 0;
  std::map<std::string, int64_t> unaligned_a, unaligned_b;  // calls by operation
  std::vector<std::string> notes;
};

Report report_of(const TwoSides& sides);

}  // namespace twinrun
