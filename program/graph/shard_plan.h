// Which sample goes to which core: by default contiguous blocks, core i gets rows [i*b, (i+1)*b),
// as the real stack splits a batch. Between the data and the engines; Sharding::feeding (program.h)
// can change it.
//
//   const auto [first, last] = ShardPlan{.cores = 8, .batch = 256}.rows(core);
//   misfeed(program, inputs);           // applies program.sharding.feeding
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

// Changes the inputs of the cores, each of which has its own rows, to what program.sharding.feeding
// says. inputs[core] are in the order of program.inputs. Sample numbers for random ops stay with
// the core, unless a deal says otherwise: only data is fed twice, padded, repeated or dropped.
void misfeed(const Program& program, std::vector<std::vector<Tensor>>& inputs);

// Applies a deal alone.
void deal_rows(const Program& program, const Deal& deal, std::vector<std::vector<Tensor>>& inputs);

// How many of the last core's rows hold their own data under a remainder: the largest proper
// divisor of per_core (half, where it is even), so that a core whose other rows are dropped sees
// each of its rows equally often. 0 for one row.
int64_t real_rows(int64_t per_core);

}  // namespace twinrun
