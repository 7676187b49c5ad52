// Stores reference runs as files named by the digest of their key, and removes the oldest.
#include "harness/run/reference_cache.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "backends/kernels/kernels.h"
#include "program/base/digest.h"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

// In RunFile::environment of a kept run: the key under which it was asked for.
const std::string kReferenceKey = "reference key";

// The options of a diagnosis do not change a reference run, so the key leaves them out.
Scenario without_questions(Scenario scenario) {
  scenario.diagnose = {};
  return scenario;
}

void remove_oldest(const fs::path& folder, int64_t limit) {
  std::error_code ignored;
  struct File {
    fs::file_time_type time;
    fs::path path;
    int64_t size;
    auto operator<=>(const File&) const = default;
  };
  std::vector<File> files;
  int64_t total = 0;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().extension() != ".h5" || !entry.is_regular_file(ignored)) continue;
    const auto time = entry.last_write_time(ignored);
    const auto size = static_cast<int64_t>(entry.file_size(ignored));
    if (ignored) continue;  // another process has just removed it
    files.push_back({time, entry.path(), size});
    total += size;
  }
  std::ranges::sort(files);
  for (const File& file : files) {
    if (total <= limit) return;
    total -= file.size;
    fs::remove(file.path, ignored);
  }
}

}  // namespace

std::string ReferenceCache::key_of(const Experiment& experiment, const Program& program,
                                   const std::string& engine, const RunOptions& options) {
  DigestBuilder key;
  key.add("reference run 4");
  key.add(digest_of_executable());  // another build may have, or fix, a bug
  key.add(resolved_toml(without_questions(experiment.scenario)));
  key.add(experiment.data->digest);
  key.add(digest(program));
  key.add(engine);
  const Feeding& feeding = program.sharding.feeding;  // not part of digest(program)
  key.add(to_string(active_isa()));
  for (const int64_t number :
       {int64_t{kContractVersion}, program.batch, int64_t{program.sharding.cores},
        int64_t{options.digest_states}, int64_t{static_cast<int>(feeding.shards)},
        int64_t{static_cast<int>(feeding.remainder)}, int64_t{static_cast<int>(feeding.streams)},
        int64_t{static_cast<int>(feeding.rate)}}) {
    key.add(std::to_string(number));
  }
  return key.finish().hex();
}

std::string ReferenceCache::path(const std::string& key) const {
  return (fs::path(folder_) / (key + ".h5")).string();
}

std::optional<RunResult> ReferenceCache::find(const Experiment& experiment, const Program& program,
                                              const std::string& engine,
                                              const RunOptions& options) const {
  if (folder_.empty() || fresh_) return std::nullopt;
  const std::string key = key_of(experiment, program, engine, options), file = path(key);
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) return std::nullopt;
  auto run = read_run(file);
  // A file may have been copied over another: its name is not trusted.
  const auto whole = [&] {
    if (const auto kept = run->environment.extract(kReferenceKey);
        kept.empty() || kept.mapped() != key)
      return false;
    const auto steps = static_cast<size_t>(experiment.scenario.train.steps);
    return run->ended.completed() && run->steps.size() == steps && !run->checkpoints.empty() &&
           (!run->evaluations.empty() || !experiment.has_held_out()) &&
           run->contract == kContractVersion &&
           run->state_digests.size() == (options.digest_states ? steps : 0) &&
           !run->scenario.empty();
  };
  if (run && whole()) {
    if (auto states = from_checkpoint(run->checkpoints.back(), program)) {
      run->scenario = resolved_toml(experiment.scenario);
      run->scenario_digest = scenario_digest(experiment.scenario).hex();
      for (Checkpoint& checkpoint : run->checkpoints) {
        checkpoint.scenario = run->scenario;
        checkpoint.scenario_digest = run->scenario_digest;
      }
      fs::last_write_time(file, fs::file_time_type::clock::now(), ignored);
      RunResult result;
      result.file = std::move(*run);
      result.states = std::move(*states);
      result.kept = true;
      return result;
    }
  }
  fs::remove(file, ignored);
  return std::nullopt;
}

void ReferenceCache::keep(const Experiment& experiment, const Program& program,
                          const std::string& engine, const RunOptions& options,
                          const RunResult& result) const {
  if (folder_.empty() || !result.file.ended.completed() || result.first_non_finite) return;
  std::error_code error;
  fs::create_directories(folder_, error);
  const std::string key = key_of(experiment, program, engine, options);
  RunFile file = result.file;
  file.environment[kReferenceKey] = key;
  if (error || !write_run(path(key), file)) return;
  remove_oldest(folder_, kLimit);
}

std::string reference_cache_folder() {
  const auto variable = [](const char* name) -> const char* { return std::getenv(name); };
  if (const char* own = variable("TWINRUN_CACHE")) return own;
  if (const char* cache = variable("XDG_CACHE_HOME"); cache != nullptr && *cache == '/')
    return (fs::path(cache) / "twinrun" / "references").string();
  if (const char* home = variable("HOME"); home != nullptr && *home == '/')
    return (fs::path(home) / ".cache" / "twinrun" / "references").string();
  return "";
}

}  // namespace twinrun
