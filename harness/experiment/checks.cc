// Checks of an experiment before anything runs: whether its data suffices, and whether its batch
// can be divided.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "harness/experiment/experiment.h"
#include "program/analysis/host_memory.h"
#include "program/base/memory_limit.h"
#include "program/base/sizes.h"
#include "program/graph/shard_plan.h"
#include "scenarios/data/feed.h"

namespace twinrun {

Status check_data_lasts(const Experiment& e) {
  if (e.imported) return Ok{};  // its batches are used in turn
  Feed feed(e.data->train, e.feed_options(e.scenario.train.batch));
  TWINRUN_RETURN_IF_ERROR(feed.batch(e.scenario.train.steps - 1));
  return Ok{};
}

Status check_memory(const Experiment& e, const Program& program, int64_t checkpoints) {
  const HostPlan plan = plan_host(program);
  int64_t checkpoint = 0;
  for (const StateVar& var : program.state)
    checkpoint += static_cast<int64_t>(program.graph.type(var.id).bytes());
  const int64_t kept = checkpoints * checkpoint;
  const int64_t needed = plan.total() + kept;
  const MemoryLeft left = memory_left();
  if (needed <= left.bytes) return Ok{};

  // The largest part first: it is what must become smaller.
  struct Part {
    int64_t bytes;
    std::string what, lower;
  };
  const int64_t batch = program.batch * program.sharding.cores;
  std::vector<Part> parts = {
      {plan.arena + plan.inputs + plan.outputs,
       fmt::format("values of a step with {} samples", batch),
       e.imported ? "import a step with a smaller batch"
                  : fmt::format("lower train.batch ({})", batch)},
      {plan.states + plan.constants, "weights, optimizer slots and constants",
       "make the layers smaller or take an optimizer with fewer slots"},
      {kept, "checkpoints that the run keeps",
       fmt::format("raise train.checkpoint_every ({})", e.scenario.train.checkpoint_every)}};
  std::ranges::stable_sort(parts, std::ranges::greater(), &Part::bytes);
  std::string list;
  for (const Part& part : parts) {
    if (part.bytes == 0) continue;
    list += fmt::format("{}{} {}", list.empty() ? "" : ", ", size_text(part.bytes), part.what);
  }
  return Error{fmt::format("needs {} of memory at least ({}), and {} are left of {}",
                           size_text(needed), list, size_text(left.bytes), left.limited_by),
               e.scenario.file, parts.front().lower + ", or allow more memory",
               Error::Kind::kMachine};
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
