// The runs of one more paired seed of a diagnosis (Instrument 3), and its line in seeds.jsonl, so
// that seeds can be trained by other processes (twinrun diagnose --shard, --seeds).
//
//   file.add(to_line("seed.18", runs));
//   TWINRUN_ASSIGN(const SeedRuns runs, seed_runs_from(line));
#pragma once

#include <string>
#include <vector>

#include "checkpoints/run.h"
#include "program/base/result.h"

namespace twinrun {

struct SeedRuns {
  Evaluation r, s, t;         // held-out, after the last step; s is r where no S is trained
  std::vector<float> losses;  // of R, step by step
};

std::string to_line(const std::string& id, const SeedRuns& runs);  // JSON, with its checksum
Result<SeedRuns> seed_runs_from(const std::string& line);

}  // namespace twinrun
