// What a whole program may give when an engine fuses it: every op in binary64, with the interval
// around each element that covers every legal way of computing it. Any order of sums, intermediates
// rounded to their type or kept wider, multiplies contracted into adds, elementary functions with
// an error, denormals flushed or not, and the algebraic rewrites of a compiler
// (docs/method/bounds.md, "Whole programs"). A result outside of its interval is wrong, whatever the
// compiler fused.
//
//   ReplayArguments given{states[0].vars, inputs[0], step.literals};
//   TWINRUN_ASSIGN(auto b, replay_values(step.program, given, {id}, {}, &pool));   // any value
//   const FoundVerdict v = compare(b[0], found);                   // v.outside > 0: a proof
#pragma once

#include <map>
#include <string>
#include <vector>

#include "backends/oracle/oracle.h"
#include "program/base/result.h"
#include "program/base/tensor.h"
#include "program/graph/program.h"

namespace twinrun {

// What an engine may do. The defaults are what XLA may do on a CPU.
struct FusedArithmetic {
  double elementary_ulps = 8;  // of exp, log, tanh, erf, log1p, logistic, sqrt, rsqrt
  bool flush = true;           // denormals may be taken as zero, or not
  // How the operands of dots and convolutions may be rounded. kBf16x3 and kBf16x6: several passes.
  DotPrecision dots = DotPrecision::kF32;
  // One pass of TF32 instead of bfloat16, on a GPU: operands of 11 bits, which may be cut, and sums
  // whose terms are cut at 24 bits (Arithmetic::of_products of backends/aten has the source).
  bool tf32 = false;
  // Sums err by what independent roundings of their terms may add up to, 2 sqrt(n) units, instead of
  // the worst case of n. Only for likely_values.
  bool independent = false;
};

// The values of the program's parameters. An input of which `inputs` has no valid tensor is taken
// from `literals` by its name.
struct ReplayArguments {
  std::vector<Tensor> state, inputs;       // in the order of Program::state and Program::inputs
  std::map<std::string, Tensor> literals;  // ImportedStep::literals
};

// A tensor of which every element is known to lie between `low` and `high`.
struct Bounded {
  TensorType type;
  Tensor value;      // f64 for floats; integers and predicates keep their dtype
  Tensor low, high;  // of the type of `value`. Not valid: every element is exactly `value`
  // If some elements have no finite bound: the op where the bound was lost, and why. Such an
  // element lies between -infinity and infinity, and may be NaN too.
  std::string why;

  bool exact() const { return !low.valid(); }
  // The larger distance from the value to an end of the interval; 0 where it is exact.
  double radius(int64_t i) const;
};

// The values of the program; computes only what they need. Errors: arguments that are missing or of
// another type; a program for several cores.
Result<std::vector<Bounded>> replay_values(const Program& program, const ReplayArguments& given,
                                           const std::vector<ValueId>& wanted,
                                           const FusedArithmetic& may, ThreadPool* pool);

// Where the intervals of long or deep programs are too wide to decide anything: the same values with
// intervals of 32 standard deviations, which are no proof. Every op's error is drawn at random, of the
// full size that one op may have, `samples` times; equal numbers have equal errors. An engine whose
// ops err independently of each other is outside with a probability below 10^-9
// (docs/method/bounds.md, "Likely values").
inline constexpr int kSamples = 16;
Result<std::vector<Bounded>> likely_values(const Program& program, const ReplayArguments& given,
                                           const std::vector<ValueId>& wanted,
                                           const FusedArithmetic& may, ThreadPool* pool,
                                           int samples = kSamples);

// What an engine returned, held against the intervals: radii are distances to the end on the found
// number's side. Untestable are elements without a finite bound, for the reason Bounded::why.
struct FoundVerdict : OracleVerdict {
  std::vector<int64_t> wrong;  // flat indices of the elements outside, ascending
  // Median of the finite radii over the largest |expected|: how sharp the test is. 0: all are exact.
  double median_relative_radius = 0;
  // Which part of the change from `before` the intervals leave undecided: with c the larger of
  // |found - before| and |expected - before| and r the radius, sqrt(sum min(r, c)^2 / sum c^2). At 1
  // the test would have passed whatever an engine had made of the change. 0: floats that are exact,
  // and all other types.
  double undecided = 0;
  int64_t moved = 0;  // elements whose c is not 0
};
// `found` has the type of the program's value. NaN where NaN must be is inside. `before`: the value
// that this one takes the place of, of the same type; nullptr: zeros.
FoundVerdict compare(const Bounded& expected, const Tensor& found, const Tensor* before = nullptr);

}  // namespace twinrun
