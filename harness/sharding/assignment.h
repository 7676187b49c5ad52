// Causes of sharding that no list has: which rows of the batch each core was fed, and which cores add up their gradients or their
// batch statistics. They are made from a small algebra (rows dealt in blocks, rolled, exchanged between cores; groups of cores by the
// divisors of their number), or taken from what a subject shows (harness/identify/assignment_fit.h), and told in words here.
//
//   ShardingChange c = dealt_otherwise(experiment, {.features = rows, .labels = rows});
//   c.cause.meaning;                         // "core k of 4 is fed rows k, k + 4, k + 8, ... of the batch"
//   c.harmless;                              // every row once, with its own label
//   Sharding theirs = with_change(asked.sharding, c);
#pragma once

#include <map>
#include <string>
#include <vector>

#include "harness/sharding/causes.h"

namespace twinrun {

// For each place of the batch, core after core, the row that stands there.
using DealtRows = std::vector<int32_t>;

struct ShardingChange {
  ShardingCause cause;
  std::string subject;  // what people call it: "shards dealt in strides"
  // What it sets, with the values of `to`. Changes of one kind exclude each other.
  enum class Sets : uint8_t { kDeal, kReduction, kBatchNorm, kStatistics } sets = Sets::kDeal;
  Sharding to;
  std::map<int64_t, Deal> deals = {};  // of single steps, in the place of to.feeding.deal
  // Each core's own loss tells nothing, or is not known: the mean over the cores is compared.
  bool losses_together = false;
  bool harmless = false;  // every sample counts once, as itself: the batch means the same
  bool operator==(const ShardingChange& other) const;
};

Sharding with_change(Sharding sharding, const ShardingChange& change);
bool exclusive(const ShardingChange& a, const ShardingChange& b);
// Does it set what this cause of the catalogue sets?
bool exclusive(const ShardingChange& change, const std::string& cause);

// What a deal is called. Rows are those of the whole batch.
ShardingChange dealt_otherwise(const Experiment& experiment, Deal deal);
// Deals of single steps that no one rule makes, all of one kind.
ShardingChange dealt_by_steps(const Experiment& experiment, std::map<int64_t, Deal> deals);
// The cores' own losses say that they hold other rows, and everything else that the batch is whole; or all report one loss.
ShardingChange losses_together(const Experiment& experiment, bool one_loss);
// Gradients of these parameters stay with each core.
ShardingChange kept_by_cores(const Experiment& experiment,
                             const std::vector<std::string>& parameters);

// Reductions and statistics over groups of cores, in place of those that `sharding` has: every divisor of their number, neighbours
// and strides.
std::vector<ShardingChange> group_changes(const Experiment& experiment, const Sharding& sharding);

// ---- the algebra of rows

// Row numbers of the batch in the order in which they are dealt: blocks of so many go to the cores in turn, beginning `roll` rows later.
// The whole of a core's rows as one block: the scenario's own order.
DealtRows rows_in_blocks(int64_t cores, int64_t per_core, int64_t block, int64_t roll);
// `rows`, with the shards of `shard_of[core]`.
DealtRows rows_of_shards(const DealtRows& rows, const std::vector<int>& shard_of);
bool is_own(const DealtRows& rows);          // each place its own; or empty
bool is_permutation(const DealtRows& rows);  // or empty

}  // namespace twinrun
