// shard(), rebatch() and reshard(): the recipe builds the layers again for another batch or
// sharding. The layers themselves decide what sharding means.
#include "program/graph/program.h"

namespace twinrun {
namespace {

Program rebuild(const Program& forward, int64_t batch, const Sharding& sharding) {
  if (forward.recipe == nullptr) {
    throw GraphError(
        "the program was made by hand: nothing says how to build it for another batch");
  }
  Program p = (*forward.recipe)(batch, sharding);
  p.recipe = forward.recipe;
  p.optimizer = forward.optimizer;  // it may have been changed after the program was built
  return p;
}

}  // namespace

Program rebatch(const Program& forward, int64_t batch) {
  return rebuild(forward, batch, forward.sharding);
}

Program shard(const Program& forward, const Sharding& sharding) {
  if (forward.sharding.cores != 1) throw GraphError("shard: the program is sharded already");
  if (sharding.cores < 1 || forward.batch % sharding.cores != 0) {
    throw GraphError("shard: a batch of " + std::to_string(forward.batch) +
                     " does not divide over " + std::to_string(sharding.cores) + " cores");
  }
  return rebuild(forward, forward.batch / sharding.cores, sharding);
}

Program reshard(const Program& step, const Sharding& sharding) {
  return training_step(rebuild(step, step.batch, sharding));
}

}  // namespace twinrun
