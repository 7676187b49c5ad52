// Finds which results of two traces are the same result. Values come first: equal bits, then values
// that agree in half of their digits. Module path and order confirm, and they alone pair what is
// left of the same operation. A result without a partner is left alone: another release or a
// compiler divides the work into other calls.
//
//   const Alignment m = align(values_of(a), values_of(b));
//   for (const AlignedPair& p : m.pairs) a.results[p.a], b.results[p.b]
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "harness/trace/values.h"

namespace twinrun {

// How two tensors of the same sizes differ. Elements that are NaN on both sides do not.
struct ViewDifference {
  int64_t elements = 0, differing = 0;
  double largest = 0, size = 0;  // the largest difference, and the largest finite absolute value
  int64_t at = -1;               // of the largest difference
  // The largest difference over the largest value; infinite where one side is not finite.
  double relative() const;
};
ViewDifference difference_of(const aten::TensorView& a, const aten::TensorView& b);

// Half of the digits of the type: rounding moves a result by some units in the last place, and what
// differs by more than this has lost half of its digits.
double half_of_the_digits(aten::Element element);

enum class AlignedBy : uint8_t { kBits, kValues, kOrder };

struct AlignedPair {
  size_t a = 0, b = 0;  // results
  AlignedBy by = AlignedBy::kBits;
};

struct Alignment {
  std::vector<AlignedPair> pairs;  // in the order of a's results
  std::vector<std::optional<size_t>> pair_of_a, pair_of_b;
};
Alignment align(const TraceValues& a, const TraceValues& b);

// Whether both paths can be of one module: equal, or one lies inside the other.
bool modules_agree(const std::string& a, const std::string& b);

}  // namespace twinrun
