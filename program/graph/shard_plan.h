// Which sample goes to which core: by default contiguous blocks, core i gets rows [i*b, (i+1)*b), as the real stack splits.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "program/base/tensor.h"
#include "program/graph/program.h"

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

// Changes what the cores would be fed, each its own rows, to what program.sharding.feeding says. inputs[core] are in the order
// of program.inputs. What is drawn at random stays with the core, unless a deal says otherwise: only data is fed twice, padded,
// repeated or dropped.
void misfeed(const Program& program, std::vector<std::vector<Tensor>>& inputs);

// The same for a deal alone.
void deal_rows(const Program& program, const Deal& deal, std::vector<std::vector<Tensor>>& inputs);

// How many of the last core's rows are real under a remainder: half, or the largest part that divides them (a core whose rest
// is dropped sees what is left several times, all equally often); none of one.
int64_t real_rows(int64_t per_core);

}  // namespace twinrun
