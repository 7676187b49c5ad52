// What a step means that its user divided over cores: whether its update is that of the same step
// on one device, and whether what it declares to be one array is the same on all cores. One step at
// a time, in binary64, where rounding is 2^-29 of f32's, so that a difference there is not
// rounding.
//
//   auto u = judge_user_sharding(experiment, threads);
//   u->other.front().name;  u->other.front().factor;     // "dense1/kernel", 8
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/experiment/experiment.h"
#include "harness/sharding/repair.h"

namespace twinrun {

struct UserSharding {
  // A state variable whose change in one step, from the same state, is not that on one device.
  struct Other {
    std::string name;
    int64_t step = 0;
    double drift = 0;  // of the change, relative to the change on one device
    // The change is that on one device, times this number.
    std::optional<double> factor;
    std::string factor_is;  // "the number of cores"; "" if it is no known number
  };
  // A state variable that is one array to the text, of which cores came to hold different values.
  struct Apart {
    std::string name;
    int64_t step = 0;  // after which they first differ
    int core = 0;
    double drift = 0;  // from core 0's, relative to its change
  };
  int cores = 1;
  int64_t steps = 0;
  double threshold = 0;
  bool compared = false;     // with the step on one device
  std::vector<Other> other;  // in the order of the state
  std::vector<Apart> apart;
  // Sums over cores whose operands were already the same on all of them.
  std::vector<std::string> in_common;
  // The loss of core 0 over that on one device, where they differ.
  std::optional<double> loss_ratio;
  std::vector<std::string> unjudged;  // state whose change is rounding alone
  // Mistakes without which the step would mean what the one on one device does; none: not known.
  std::vector<RepairedCause> causes;
  // Each core draws for its own samples: it was compared with the draws that they have on one
  // device.
  bool own_draws = false;
  bool differs() const { return !other.empty() || !apart.empty(); }
};

// Requires a sharded imported step. Errors: the state of the step on one device does not fit.
Result<UserSharding> judge_user_sharding(const Experiment& experiment, int threads);

}  // namespace twinrun
