// Keeps, finds and removes the file of a run that is not finished.
#include "harness/cli/unfinished_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <new>
#include <system_error>

#include "harness/cli/cli.h"

namespace twinrun::cli {

namespace {

namespace fs = std::filesystem;

bool is_run(const std::string& path) {
  const auto kind = file_kind(path);
  return kind && *kind == "run";
}

// The files of earlier checkpoints beside `path`.
std::vector<std::string> earlier_files(const std::string& path) {
  std::vector<std::string> out;
  const std::string beginning = fs::path(path).filename().string() + ".";
  const fs::path folder = fs::absolute(path).parent_path();
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.size() > beginning.size() && name.starts_with(beginning) &&
        name.find_first_not_of("0123456789", beginning.size()) == name.npos &&
        is_run(entry.path().string()))
      out.push_back(entry.path().string());
  }
  return out;
}

// Lets the file at `path`, whose last checkpoint is that of `step`, stay when another replaces it.
void keep_earlier(const std::string& path, int64_t step) {
  const std::string kept = fmt::format("{}.{}", path, step);
  std::error_code failed;
  if (is_run(kept)) fs::remove(kept, failed);
  fs::create_hard_link(path, kept, failed);
  if (failed && failed != std::errc::file_exists) fs::copy_file(path, kept, failed);
  if (failed)
    say(fmt::format("warning: the checkpoint of step {} cannot be kept as {}: {}\n", step, kept,
                    failed.message()));
}

}  // namespace

std::string unfinished_path(const std::string& run_path) { return run_path + ".checkpoint.h5"; }

bool went_through(const RunFile& run, const Checkpoint& checkpoint) {
  const int64_t steps = checkpoint.step - run.first_step;
  return steps > 0 && steps <= std::ssize(run.state_digests) &&
         run.state_digests[static_cast<size_t>(steps - 1)] == checkpoint.root_digest();
}

void add_earlier(std::vector<Checkpoint> checkpoints, RunFile& run) {
  std::erase_if(checkpoints, [&](const Checkpoint& c) {
    return !went_through(run, c) ||
           std::ranges::find(run.checkpoints, c.step, &Checkpoint::step) != run.checkpoints.end();
  });
  run.checkpoints.insert(run.checkpoints.end(), checkpoints.begin(), checkpoints.end());
  std::ranges::sort(run.checkpoints, {}, &Checkpoint::step);
}

Result<RunFile> read_with_earlier(const std::string& path) {
  TWINRUN_ASSIGN(RunFile run, read_run(path));
  for (const std::string& file : earlier_files(path)) {
    if (auto earlier = read_run(file)) add_earlier(std::move(earlier->checkpoints), run);
  }
  return run;
}

Result<std::optional<RunFile>> left_unfinished(
    const std::string& run_path, bool restart,
    const std::function<std::string(const RunFile&)>& fits) {
  const std::string path = unfinished_path(run_path);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::optional<RunFile>();
  const auto kind = file_kind(path);
  const auto run = kind && *kind == "run" ? read_with_earlier(path) : Result<RunFile>(Error{});
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
  if (restart) {
    for (const std::string& file : earlier_files(path)) std::filesystem::remove(file, ignored);
    return std::optional<RunFile>();
  }
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
  const auto task = [this, run]() -> Status {
    try {
      const int64_t step = run->checkpoints.back().step;
      if (written_ >= 0 && written_ < step) keep_earlier(path_, written_);
      TWINRUN_RETURN_IF_ERROR(write_run(path_, *run));
      written_ = step;
      return Ok{};
    } catch (const std::bad_alloc&) {
      return Error{"out of memory", path_, "", Error::Kind::kMachine};
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
  for (const std::string& file : earlier_files(path_)) std::filesystem::remove(file, ignored);
}

}  // namespace twinrun::cli
