// Reference runs made before, kept under the digest of everything that decides their bits: resolved
// scenario, content of the data, cores and batch of the program, contract, instruction set, and this
// very executable. Controls, subjects and `train` never look here; R' holds R to its bits anyway.
//
//   const ReferenceCache cache(folder, fresh);    // "": keeps nothing
//   if (auto run = cache.find(experiment, program, "cpu", options)) return *run;
//   cache.keep(experiment, program, "cpu", options, result);
#pragma once

#include <optional>
#include <string>

#include "harness/run/run.h"

namespace twinrun {

class ReferenceCache {
 public:
  // `fresh`: finds nothing, but keeps.
  ReferenceCache(std::string folder, bool fresh) : folder_(std::move(folder)), fresh_(fresh) {}

  // A file that cannot be read, or is not what its name says, is removed.
  std::optional<RunResult> find(const Experiment& experiment, const Program& program,
                                const std::string& engine, const RunOptions& options) const;
  // Completed runs only. What cannot be written is not kept; beyond kLimit the oldest go.
  void keep(const Experiment& experiment, const Program& program, const std::string& engine,
            const RunOptions& options, const RunResult& result) const;

  static constexpr int64_t kLimit = int64_t{1} << 30;  // bytes in all

 private:
  std::string path(const Experiment& experiment, const Program& program, const std::string& engine,
                   const RunOptions& options) const;

  std::string folder_;
  bool fresh_;
};

// $TWINRUN_CACHE ("" switches it off), else twinrun/references below $XDG_CACHE_HOME or ~/.cache.
std::string reference_cache_folder();

}  // namespace twinrun
