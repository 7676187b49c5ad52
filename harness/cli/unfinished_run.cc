// Keeps, finds and removes the file of a run that is not finished.
#include "harness/cli/unfinished_run.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <new>
#include <system_error>

#include "harness/cli/cli.h"

namespace twinrun::cli {

std::string unfinished_path(const std::string& run_path) { return run_path + ".checkpoint.h5"; }

Result<std::optional<RunFile>> left_unfinished(
    const std::string& run_path, bool restart,
    const std::function<std::string(const RunFile&)>& fits) {
  const std::string path = unfinished_path(run_path);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::optional<RunFile>();
  const auto kind = file_kind(path);
  const auto run = kind && *kind == "run" ? read_run(path) : Result<RunFile>(Error{});
  if (!run || run->checkpoints.empty()) {
    if (restart && kind && *kind == "checkpoint") return std::optional<RunFile>();
    // Another process may have finished the same run meanwhile.
    if (!std::filesystem::exists(path, ignored)) return std::optional<RunFile>();
    const Error why = !kind ? kind.error() : !run ? run.error() : Error{};
    return Error{fmt::format("is where this run would keep its checkpoints, and is not a run that "
                             "was cut off{}",
                             why.what.empty() ? "" : " (" + why.what + ")"),
                 path, "move it away, or choose another -o", why.kind};
  }
  if (restart) return std::optional<RunFile>();
  const std::string why = fits(*run);
  if (why.empty()) return std::optional<RunFile>(*run);
  return Error{fmt::format("holds a run that was cut off after step {}, which cannot go on: {}",
                           run->checkpoints.back().step, why),
               path, "choose another -o, or give it up with --restart"};
}

void UnfinishedWriter::write(RunFile so_far) {
  finish();
  so_far.checkpoints.erase(so_far.checkpoints.begin(), so_far.checkpoints.end() - 1);
  const auto run = std::make_shared<RunFile>(std::move(so_far));
  const auto task = [path = path_, run]() -> Status {
    try {
      return write_run(path, *run);
    } catch (const std::bad_alloc&) {
      return Error{"out of memory", path, "", Error::Kind::kMachine};
    }
  };
  try {
    pending_ = std::async(std::launch::async, task);
  } catch (const std::system_error&) {  // no more threads: it is written by the next finish()
    pending_ = std::async(std::launch::deferred, task);
  }
}

void UnfinishedWriter::finish() {
  if (!pending_.valid()) return;
  if (const Status written = pending_.get(); !written)
    say(fmt::format("warning: {}; the next checkpoint is tried again\n",
                    written.error().message()));
}

void UnfinishedWriter::remove() {
  finish();
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

}  // namespace twinrun::cli
