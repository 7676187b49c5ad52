// plan.json: what a folder of records belongs to. It says which campaign, which shard of it, and
// which cases, so that shards of different campaigns are never merged and a missing case is noticed.
//
//   Plan plan = make_plan("drill", "cases.jsonl", setting, ids, shard);
//   TWINRUN_RETURN_IF_ERROR(begin(plan, folder, /*resume=*/true));     // writes folder/plan.json
//   TWINRUN_ASSIGN(const Plan again, read_plan("out/shard-3-of-8/plan.json"));
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "harness/campaign/shard.h"

namespace twinrun::campaign {

inline constexpr std::string_view kPlanFile = "plan.json";

// How a shard was run. It decides nothing, and no table has it.
struct RunFacts {
  std::string command, date, machine, build;
  bool operator==(const RunFacts&) const = default;
};

struct PlannedCase {
  int64_t number = 0;  // place in the whole campaign, from 0
  std::string id;
  bool operator==(const PlannedCase&) const = default;
};

struct Plan {
  std::string verb;     // "drill"
  std::string records;  // file of the records: "cases.jsonl"
  // Everything besides a case's id that determines its result: "contract", "scenario drill_mlp" ...
  std::map<std::string, std::string> setting;
  int64_t total = 0;  // cases of the whole campaign
  std::string all;    // digest of their ids (digest_of)
  Shard shard;
  std::vector<PlannedCase> cases;  // of this shard, in the order of the campaign
  RunFacts run;
};

// "crc32:1a2b3c4d": the CRC-32 over all ids, each followed by a line break.
std::string digest_of(const std::vector<std::string>& ids);

Plan make_plan(std::string verb, std::string records, std::map<std::string, std::string> setting,
               const std::vector<std::string>& ids, const Shard& shard);

std::string to_json(const Plan& plan);  // with its checksum
// Errors name the file: not a plan, changed after it was written, cases of another shard.
Result<Plan> plan_from(std::string_view text, const std::string& where);
Result<Plan> read_plan(const std::string& path);

// Why the records of one cannot be used for the other, in words; "": they can. Only what both
// settings name is compared, since a longer drill has the cases of a shorter one.
std::string conflict(const Plan& a, const Plan& b);

// Writes the plan into the folder. With `resume`, a plan that is there must not conflict.
Status begin(const Plan& plan, const std::string& folder, bool resume);

}  // namespace twinrun::campaign
