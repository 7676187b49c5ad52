// Finds what a wrong tensor looks like: which of its elements are wrong, and what they hold instead.
// Each signature is a computation that must agree with the engine's values, element by element, as
// closely as conforming engines may differ. None comes from a list of faults that can be injected.
//
//   signature_of({.dims = {16, 32}, .got = g, .expected = e, .wrong = w, .allowed = a});
//   // {.elements = "column 7 of 32", .signature = "2 times what was expected"}
//
// harness/lockstep/hypotheses.h also computes an op again whose operands are known.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "program/base/types.h"

namespace twinrun {

// Values that may stand in the place of the tensor.
struct InsteadOf {
  std::string text;  // "what was expected at the step before (stale)"
  std::span<const float> values;
};

struct WrongTensor {
  Dims dims = {};                         // {}: the layout is not known, as of a sample of elements
  std::vector<std::string> axes = {};     // names of the dimensions; {}: they are numbered
  std::span<const double> got, expected;  // actual and expected values; of a state, its change
  std::vector<int64_t> wrong;             // flat indices of the elements outside, ascending
  // By element, how far a conforming engine may be from `expected`, and from the binary64 values that
  // `parts` and `others` are computed in.
  std::span<const double> allowed;
  std::span<const double> from_exact = {};
  double slack = 0;      // the part of a difference that a factor or an offset may leave
  int cores = 1;         // a factor of as many is pointed out
  bool binary32 = true;  // so that bits may be flipped or missing
  // Of a state: actual and expected values after the step; else empty.
  std::span<const float> left = {}, left_expected = {};
  std::vector<std::span<const float>> parts = {};  // of a reduced gradient: each core's
  std::vector<InsteadOf> others = {};
};

// The slack of one call's result: its own rounding hides that much of a factor.
inline constexpr double kSlack = 1e-3;

struct Signature {
  std::string elements;   // which, in words; "": all of them
  std::string signature;  // what they look like; "": nothing that is known
};
Signature signature_of(const WrongTensor& tensor);

// Names of the axes of "dense1/kernel", "embedding1/embeddings" or "conv1/kernel.grad"; {} where
// there are none.
std::vector<std::string> axis_names(const std::string& tensor, const Dims& dims);

}  // namespace twinrun
