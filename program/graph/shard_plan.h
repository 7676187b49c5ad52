// Which sample goes to which core: by default contiguous blocks, core i gets rows [i*b, (i+1)*b), as the real stack splits.
#pragma once

#include <cstdint>
#include <utility>

namespace twinrun {

struct ShardPlan {
  int cores = 1;
  int64_t batch = 0;  // total
  int64_t per_core() const { return batch / cores; }
  // Rows [first, second) of the global batch that `core` gets.
  std::pair<int64_t, int64_t> rows(int core) const {
    return {core * per_core(), (core + 1) * per_core()};
  }
};

}  // namespace twinrun
