// The seeds of a diagnosis in shards: --shard trains some, --seeds reads what shards have trained.
#pragma once

#include <memory>

#include "harness/cli/options.h"
#include "harness/diagnose/pipeline.h"

namespace twinrun::cli {

void add_seed_options(Options& options);  // --shard, --resume, --seeds

// Sets up options.seeds as these options ask. `options` has its engines, faults and folder; with
// --shard the folder becomes that of the shard. The result must outlive the diagnosis. Errors:
// seeds of another diagnosis; planted faults, which count the runs of one process.
class SeedShard;
Result<std::shared_ptr<SeedShard>> seeds_of(const Parsed& parsed, const Experiment& experiment,
                                            DiagnoseOptions& options);
// With --shard, in the folder that is locked by now: opens the records, and keeps those that are
// there with `resume`. Errors: records of another diagnosis.
Status open_seeds(SeedShard& shard, const std::string& folder, bool resume);
// After a diagnosis that has trained only its shard. Returns the exit code.
int print_seed_shard(const SeedShard& shard, bool json);

}  // namespace twinrun::cli
