// The hypotheses behind fingerprint.h, in three families: the result was taken from memory; the op
// was computed with other operands, another rounding or another formula; the numbers alone show a
// pattern. Each hypothesis reports the share of the wrong elements that it explains. None uses
// knowledge of the faults that can be injected.
#pragma once

#include <vector>

#include "harness/lockstep/fingerprint.h"
#include "harness/tensors/pattern.h"
#include "harness/tensors/signatures.h"
#include "program/base/bits.h"
#include "program/base/element.h"

namespace twinrun {

// A wrong result and everything that is known about it.
struct Suspect {
  const Capabilities& declared;
  const Op& op;
  const Tensor& subject;
  const OracleResult& oracle;
  const std::vector<Tensor>& inputs;
  ThreadPool* pool;
  const Past& past;
  std::vector<int64_t> wrong;

  double got(int64_t i) const { return number_at(subject, i); }
  double expected(int64_t i) const { return oracle.value[static_cast<size_t>(i)]; }
  double radius(int64_t i) const { return oracle.radius[static_cast<size_t>(i)]; }
  // The share of the wrong elements i for which f(i) holds.
  template <typename F>
  double share(F f) const {
    if (wrong.empty()) return 0;
    int64_t n = 0;
    for (const int64_t i : wrong) n += f(i) ? 1 : 0;
    return static_cast<double>(n) / static_cast<double>(wrong.size());
  }
};

// Stale value, zero update, copy of an operand, one core's contribution in place of the sum.
std::vector<OpSignature> from_memory(const Suspect& s);
// The op recomputed by the oracle as the hypothesis says.
std::vector<OpSignature> from_operands(const Suspect& s);
// The signature of the numbers alone (harness/tensors/signatures.h), else a rounding.
std::vector<OpSignature> from_values(const Suspect& s);

}  // namespace twinrun
