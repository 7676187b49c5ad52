// Reference runs of earlier diagnoses, stored under the digest of everything that decides their
// bits: resolved scenario, content of the data, cores and batch of the program, contract,
// instruction set, and this executable. Controls, subjects and `train` never use the cache; the
// control R2 must repeat R's bits, whether R was cached or not.
//
//   const ReferenceCache cache(folder, fresh);    // folder "": no cache
//   if (auto run = cache.find(experiment, program, "cpu", options)) return *run;
//   cache.keep(experiment, program, "cpu", options, result);
#pragma once

#include <optional>
#include <string>

#include "harness/run/run.h"

namespace twinrun {

class ReferenceCache {
 public:
  // `fresh`: find() returns nothing, but keep() stores.
  ReferenceCache(std::string folder, bool fresh) : folder_(std::move(folder)), fresh_(fresh) {}

  // The stored run, or nullopt. A file that cannot be read, or does not match its key, is removed.
  std::optional<RunResult> find(const Experiment& experiment, const Program& program,
                                const std::string& engine, const RunOptions& options) const;
  // Stores completed runs only. Errors of writing are ignored; beyond kLimit the oldest files are
  // removed.
  void keep(const Experiment& experiment, const Program& program, const std::string& engine,
            const RunOptions& options, const RunResult& result) const;

  static constexpr int64_t kLimit = int64_t{1} << 30;  // bytes of all files

 private:
  static std::string key_of(const Experiment& experiment, const Program& program,
                            const std::string& engine, const RunOptions& options);
  std::string path(const std::string& key) const;

  std::string folder_;
  bool fresh_;
};

// $TWINRUN_CACHE ("" turns the cache off), else twinrun/references below $XDG_CACHE_HOME or
// ~/.cache.
std::string reference_cache_folder();

}  // namespace twinrun
