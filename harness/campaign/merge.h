// Joins the records of a campaign's shards, after checking that they are all of one campaign, that
// no case is missing, and that what was computed twice was computed equally.
//
//   TWINRUN_ASSIGN(const Merged merged, merge({"out"}));      // out/shard-0-of-8, out/shard-1-of-8 ..
//   for (const std::string& line : merged.lines) ...          // in the order of the campaign
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/campaign/plan.h"

namespace twinrun::campaign {

// One line of a file of records.
struct Record {
  std::string id;
  std::string line;     // as it is in the file, without its line break
  std::string result;   // the same as JSON without what says how the run went
  bool failed = false;  // its member "error" is not empty
  bool has_checksum = true;
};

// A line of JSON with the members "id" and, perhaps, "error". Members whose names end in "seconds",
// and "run", say how the run went; all others but "checksum" are the result. Error: not such a line, or
// changed after it was written.
Result<Record> record_from(std::string_view line);

// All lines that were written whole. A file that does not exist has none. Errors name the file and
// the line.
Result<std::vector<Record>> read_records(const std::string& path);

struct Merged {
  Plan plan;                       // of the whole campaign: shard 0/1, all cases
  std::vector<std::string> lines;  // a record for each case, in the order of the plan
  std::vector<RunFacts> runs;      // of the shards, in their order
  std::vector<std::string> notes;  // what a user should know, and what is no error
};

// Each folder is that of a shard or of a campaign that ran whole (it has plan.json), or holds
// folders shard-I-of-N. Errors: no plan; plans of different campaigns; shards that are missing, with
// the command that runs them; cases without a record; a record that was changed; two records of
// one case with different results.
Result<Merged> merge(const std::vector<std::string>& folders);

}  // namespace twinrun::campaign
