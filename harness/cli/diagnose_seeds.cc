// twinrun diagnose --shard and --seeds.
#include "harness/cli/diagnose_seeds.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "checkpoints/checkpoint.h"
#include "checkpoints/container/line_file.h"
#include "harness/campaign/merge.h"
#include "harness/cli/shards.h"
#include "harness/host/environment.h"

namespace twinrun::cli {

class SeedShard {
 public:
  std::string out;
  campaign::Plan plan;
  std::set<std::string> left;  // seeds that this shard trains
  std::optional<LineFile> lines;
  // Of --seeds: by id; read when the first seed is needed, since a diagnosis may need none.
  std::optional<std::map<std::string, std::string>> known;
  int64_t trained = 0;
};

namespace {

std::string seed_id(uint64_t first, int seed) {
  return fmt::format("seed.{}", first + static_cast<uint64_t>(seed));
}

campaign::Plan plan_of(const Scenario& scenario, const DiagnoseOptions& o,
                       const campaign::Shard& shard) {
  const DiagnoseSpec& asked = scenario.diagnose;
  const int most = asked.seeds > 1 ? std::max(asked.seeds, asked.max_seeds) : 1;
  std::vector<std::string> ids;
  for (int i = 1; i < most; ++i) ids.push_back(seed_id(scenario.seed, i));
  campaign::Plan plan = campaign::make_plan("diagnose", "seeds.jsonl",
                                            {{"contract", std::to_string(kContractVersion)},
                                             {"version", environment().at("version")},
                                             {"scenario", scenario_digest(scenario).hex()},
                                             {"baseline", o.baseline},
                                             {"subject", o.subject}},
                                            ids, shard);
  plan.run = run_facts();
  return plan;
}

Status read_shards(SeedShard& shard) {
  TWINRUN_ASSIGN(const campaign::Merged merged, campaign::merge({shard.out}));
  std::string why = campaign::conflict(merged.plan, shard.plan);
  if (why.empty() && merged.plan.all != shard.plan.all) why = "other seeds";
  if (!why.empty())
    return Error{fmt::format("these are seeds of another diagnosis ({})", why), shard.out,
                 "repeat the command of the shards, with --seeds in place of --shard"};
  shard.known.emplace();
  for (size_t i = 0; i < merged.lines.size(); ++i)
    shard.known->emplace(merged.plan.cases[i].id, merged.lines[i]);
  return Ok{};
}

}  // namespace

void add_seed_options(Options& options) {
  options.text("shard I/N",
               "only train the further seeds of shard I of N, counted from 0, in "
               "OUT/shard-I-of-N; then give the command with --seeds OUT");
  options.takes("shard", {.names = {"0/"}});
  options.flag("resume", "with --shard: keep the seeds that are in its folder");
  options.text("seeds FOLDER", "take the further seeds that shards have trained there");
}

Result<std::shared_ptr<SeedShard>> seeds_of(const Parsed& parsed, const Experiment& experiment,
                                            DiagnoseOptions& o) {
  const bool trains = parsed.has("shard"), reads = parsed.has("seeds");
  if (!trains && !reads) return std::shared_ptr<SeedShard>();
  const Scenario& scenario = experiment.scenario;
  if (trains && reads)
    return Error{"both --shard and --seeds", "", "first all shards, then one command with --seeds"};
  if (!o.faults.empty() || !scenario.diagnose.faults.empty())
    return Error{
        "planted faults count the runs of one process, so seeds of other processes are "
        "not theirs",
        trains ? "--shard" : "--seeds", "leave one of them out"};
  if (o.quick)
    return Error{"--quick trains no further seeds", trains ? "--shard" : "--seeds",
                 "leave one of them out"};
  auto shard = std::make_shared<SeedShard>();
  campaign::Shard which;
  if (trains) {
    TWINRUN_ASSIGN(which, shard_of(parsed));
  }
  shard->plan = plan_of(scenario, o, which);
  if (reads) {
    shard->out = parsed.get<std::string>("seeds");
    o.seeds.known = [shard, first = scenario.seed](int seed) -> Result<std::optional<SeedRuns>> {
      if (!shard->known) TWINRUN_RETURN_IF_ERROR(read_shards(*shard));
      const auto it = shard->known->find(seed_id(first, seed));
      if (it == shard->known->end()) return std::optional<SeedRuns>();
      TWINRUN_ASSIGN(SeedRuns runs, seed_runs_from(it->second));
      return std::optional(std::move(runs));
    };
    return shard;
  }
  shard->out = o.directory;
  o.directory = shard_folder(o.directory, which);
  const uint64_t first = scenario.seed;
  o.seeds.mine = [shard, first](int seed) { return shard->left.contains(seed_id(first, seed)); };
  o.seeds.trained = [shard, first](int seed, const SeedRuns& runs) {
    ++shard->trained;
    return shard->lines->add(to_line(seed_id(first, seed), runs));
  };
  return shard;
}

Status open_seeds(SeedShard& shard, const std::string& folder, bool resume) {
  TWINRUN_RETURN_IF_ERROR(campaign::begin(shard.plan, folder, resume));
  const std::string path = (std::filesystem::path(folder) / shard.plan.records).string();
  for (const campaign::PlannedCase& c : shard.plan.cases) shard.left.insert(c.id);
  std::string text;
  if (resume) {
    TWINRUN_ASSIGN(const auto records, campaign::read_records(path));
    for (const campaign::Record& record : records) {
      if (shard.left.erase(record.id) > 0) text += record.line + "\n";
    }
  }
  TWINRUN_ASSIGN(shard.lines, LineFile::begin(path, text));
  return Ok{};
}

int print_seed_shard(const SeedShard& shard, bool json) {
  if (json) {
    print_shard(shard.plan, shard.out, 0, true);
  } else if (shard.trained == 0 && !shard.left.empty()) {
    print("shard {}: no further seed is needed; the verdict is decided without them\n",
          campaign::to_string(shard.plan.shard));
  } else {
    print(
        "shard {}: {} of {} further seeds; when all shards are done: the same command with "
        "--seeds {} in place of --shard\n",
        campaign::to_string(shard.plan.shard), shard.plan.cases.size(), shard.plan.total,
        shard.out);
  }
  return 0;
}

}  // namespace twinrun::cli
