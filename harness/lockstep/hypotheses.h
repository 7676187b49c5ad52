// The hypotheses of fingerprint.h, by where they look: at what was in memory, at what the op would give if it were another
// (other operands, another rounding, another formula), at the numbers alone. Each says what share of the wrong elements
// it explains; none knows what faults can be injected.
#pragma once

#include <vector>

#include "harness/lockstep/fingerprint.h"
#include "harness/tensors/element.h"
#include "harness/tensors/pattern.h"
#include "program/base/bits.h"

namespace twinrun {

// A wrong result, and all that is known of it.
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
  double due(int64_t i) const { return oracle.value[static_cast<size_t>(i)]; }
  double radius(int64_t i) const { return oracle.radius[static_cast<size_t>(i)]; }
  // The share of the wrong elements for which f(i) holds.
  template <typename F>
  double share(F f) const {
    if (wrong.empty()) return 0;
    int64_t n = 0;
    for (const int64_t i : wrong) n += f(i) ? 1 : 0;
    return static_cast<double>(n) / static_cast<double>(wrong.size());
  }
};

std::vector<Likeness> from_memory(
    const Suspect& s);  // stale, zero update, a copy, another's contribution
std::vector<Likeness> from_operands(const Suspect& s);  // the op recomputed as the hypothesis says
std::vector<Likeness> from_values(const Suspect& s);    // factor, sign, constant, bit, rounding

}  // namespace twinrun
