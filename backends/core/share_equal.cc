// Finds replicas whose variables have the same bits. Comparisons end at the first byte that differs,
// so replicas that all differ cost little.
#include "backends/core/share_equal.h"

#include <algorithm>

namespace twinrun {

void share_equal(States& states) {
  constexpr size_t kCompared = 16;
  for (size_t i = 0; !states.empty() && i < states.front().vars.size(); ++i) {
    std::vector<const Tensor*> different = {&states.front().vars[i]};
    for (size_t r = 1; r < states.size(); ++r) {
      Tensor& own = states[r].vars[i];
      const Tensor& before = states[r - 1].vars[i];
      if (own.raw() == before.raw()) continue;
      if (own.same_bits(before)) {
        own = before;
        continue;
      }
      const auto equal = std::ranges::find_if(
          different, [&](const Tensor* other) { return own.same_bits(*other); });
      if (equal != different.end()) {
        own = **equal;
      } else if (different.size() < kCompared) {
        different.push_back(&own);
      }
    }
  }
}

}  // namespace twinrun
