// What the verbs that work in shards share: their options, and what plan.json says of the run.
#pragma once

#include "harness/campaign/merge.h"
#include "harness/campaign/plan.h"
#include "harness/cli/options.h"
#include "harness/host/folder_lock.h"

namespace twinrun::cli {

void add_shard_option(Options& options);  // --shard
Result<campaign::Shard> shard_of(const Parsed& parsed);
// The folder of a shard is one inside the folder of the campaign; that of all cases is the latter.
std::string shard_folder(const std::string& out, const campaign::Shard& shard);
campaign::RunFacts run_facts();
// What a shard says when it is done: with --merge the same verb makes the tables from all shards.
void print_shard(const campaign::Plan& plan, const std::string& out, int64_t failed, bool json);

void add_merge_option(Options& options);  // --merge; the tables are written into --out
// The folder that --out names, else a default.
std::string out_of(const Parsed& parsed, const std::string& otherwise);
// The shards of --merge, joined. `folder` is locked and has the records and the plan, as a campaign
// that ran whole leaves them.
struct JoinedShards {
  campaign::Merged merged;
  std::string folder;
  FolderLock lock;
};
Result<JoinedShards> joined_shards(const Parsed& parsed);

}  // namespace twinrun::cli
