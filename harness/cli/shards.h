// What the verbs that work in shards share: the option, and what plan.json says of the run.
#pragma once

#include "harness/campaign/plan.h"
#include "harness/cli/options.h"

namespace twinrun::cli {

void add_shard_option(Options& options);  // --shard
Result<campaign::Shard> shard_of(const Parsed& parsed);
// The folder of a shard is one inside the folder of the campaign; that of all cases is the latter.
std::string shard_folder(const std::string& out, const campaign::Shard& shard);
campaign::RunFacts run_facts();
// What a shard says when it is done: tables are made by `twinrun merge` from all shards.
void print_shard(const campaign::Plan& plan, const std::string& out, int64_t failed, bool json);

}  // namespace twinrun::cli
