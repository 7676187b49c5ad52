// Checks of an experiment before anything runs: whether its data suffices, and whether its batch
// can be divided.
#include <fmt/format.h>

#include "harness/experiment/experiment.h"
#include "program/graph/shard_plan.h"
#include "scenarios/data/feed.h"

namespace twinrun {

Status check_data_lasts(const Experiment& e) {
  if (e.imported) return Ok{};  // its batches are used in turn
  Feed feed(e.data->train, e.feed_options(e.scenario.train.batch));
  TWINRUN_RETURN_IF_ERROR(feed.batch(e.scenario.train.steps - 1));
  return Ok{};
}

Status check_shares(const Experiment& e, const Sharding& sharding, bool alone) {
  const int64_t cores = sharding.cores, batch = e.scenario.train.batch;
  if (cores == 1 || e.imported) return Ok{};
  const auto refusal = [&](int64_t total) -> std::string {
    try {
      const Program whole = rebatch(e.forward, total);
      if (alone) (void)rebatch(whole, total / cores);
      (void)shard(whole, sharding);
    } catch (const GraphError& error) {
      return error.what();
    }
    return "";
  };
  const std::string found = refusal(batch);
  if (found.empty()) return Ok{};
  if (!refusal(cores).empty()) {
    // If not even one sample per core works, the number of cores is the problem.
    return Error{found, e.scenario.file + ": tpu.batchnorm_group",
                 fmt::format("tpu.batchnorm_group = 0 (all cores), or a divisor of {}", cores)};
  }
  const auto nearest = [&](int64_t way) -> std::string {
    constexpr int64_t kMax = 256;
    int64_t total = batch + way;
    for (int64_t i = 0; i < kMax && total > 0; ++i, total += way) {
      if (refusal(total).empty()) return std::to_string(total);
    }
    return "";
  };
  const std::string below = nearest(-cores), above = nearest(cores);
  return Error{fmt::format("{} (train.batch is {}: {} on each of {} cores)", found, batch,
                           batch / cores, cores),
               e.scenario.file + ": train.batch",
               fmt::format("train.batch = {}{}{}", below,
                           below.empty() || above.empty() ? "" : " or ", above)};
}

}  // namespace twinrun
