// Runs the cases of a drill in parallel, and resumes an interrupted drill.
#include "harness/drill/drill.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>

#include "backends/faults/faults.h"
#include "checkpoints/container/atomic_file.h"
#include "program/base/json_checksum.h"
#include "scenarios/library.h"

namespace twinrun::drill {
namespace {

namespace fs = std::filesystem;

// The records of earlier runs of this drill. The last line may be cut short: that case runs again.
// Error: another line that cannot be read, or that was changed after it was written.
Result<std::map<std::string, CaseRecord>> finished(const std::string& path) {
  std::map<std::string, CaseRecord> done;
  std::ifstream in(path);
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (auto record = from_line(line)) {
      done[record->injected.id] = std::move(*record);
    } else if (!in.eof()) {  // a line break follows, so the line was written as a whole
      return Error{record.error().what, fmt::format("{}:{}", path, number),
                   "delete the line, and its case runs again; or begin again without --resume"};
    }
  }
  return done;
}

// One file per case that is running, with the number of its attempts. A file left over means that
// the process died, in this case or in one running beside it; the case gets another attempt.
class Begun {
 public:
  explicit Begun(fs::path folder) : folder_(std::move(folder)) {}
  int64_t times(const std::string& id) const {
    int64_t n = 0;
    std::ifstream(folder_ / id) >> n;
    return n;
  }
  void begin(const std::string& id) const {
    const int64_t n = times(id) + 1;
    std::ofstream(folder_ / id) << n << std::endl;
  }
  void end(const std::string& id) const {
    std::error_code ignored;
    fs::remove(folder_ / id, ignored);
  }

 private:
  fs::path folder_;
};
constexpr int64_t kMaxTries = 2;

CaseRecord died(const std::string& id, const ProgramFiles& program) {
  CaseRecord r;
  if (auto drawn = draw_case(id, program)) r.injected = std::move(*drawn);
  r.injected.id = id;
  r.error = fmt::format("the process died in this case {} times", kMaxTries);
  return r;
}

Result<std::vector<std::string>> ids_of(const DrillOptions& o) {
  if (!o.ids.empty()) {
    for (const std::string& id : o.ids) TWINRUN_RETURN_IF_ERROR(parse_id(id));
    return o.ids;
  }
  TWINRUN_ASSIGN(std::vector<std::string> ids, plan_cases(o.plan));
  if (o.only.empty()) return ids;
  std::vector<std::string> wanted;
  for (const std::string& id : ids) {
    TWINRUN_ASSIGN(const DrillCase c, draw_case(id, o.plan.program));
    const size_t plus = c.kind.find('+');
    const std::string fault = c.kind.substr(0, plus);
    if (fnmatch(o.only.c_str(), fault.c_str(), 0) == 0 ||
        fnmatch(o.only.c_str(), c.cause.c_str(), 0) == 0)
      wanted.push_back(id);
  }
  if (wanted.empty()) {
    return Error{
        fmt::format("none of the {} cases has a kind that matches '{}'", ids.size(), o.only),
        "--only", "kinds: those of docs/reference/faults.md; more cases: --cases"};
  }
  return wanted;
}

}  // namespace

std::vector<std::string> litmus_scenarios() {
  std::vector<std::string> names;
  for (const auto& file : library_files()) {
    if (file.name.starts_with("drill_")) names.emplace_back(file.name);
  }
  return names;
}

Result<Drill> run_drill(const DrillOptions& o, Progress* progress, const StopFlag* stop) {
  TWINRUN_ASSIGN(const std::vector<std::string> ids, ids_of(o));
  const fs::path folder(o.directory);
  std::error_code error;
  fs::create_directories(folder / "cases", error);
  if (!o.resume) fs::remove_all(folder / "begun", error);
  fs::create_directories(folder / "begun", error);
  if (error)
    return Error{"cannot create the folder: " + error.message(), o.directory,
                 "choose another with --out"};
  const std::string path = (folder / "cases.jsonl").string();
  std::map<std::string, CaseRecord> done;
  if (o.resume) {
    TWINRUN_ASSIGN(done, finished(path));
    const auto unchecked =
        std::ranges::count_if(done, [](const auto& entry) { return !entry.second.has_checksum; });
    if (unchecked > 0 && progress != nullptr)
      progress->note(
          fmt::format("{}: {} of {} lines: each {}", path, unchecked, done.size(), kNoChecksum));
  }
  // Rewrite the file with whole lines only, so that new records start on lines of their own. The
  // write is atomic: if it fails, the file stays as it was.
  std::string known;
  for (const auto& [id, record] : done) known += to_line(record) + "\n";
  TWINRUN_RETURN_IF_ERROR(write_file_atomically(path, known));
  const Begun begun(folder / "begun");
  std::vector<std::string> todo;
  for (const std::string& id : ids) {
    if (!done.contains(id)) todo.push_back(id);
  }

  CaseOptions each;
  each.program = o.plan.program;
  each.directory = (folder / "cases").string();
  each.cache = (folder / "references").string();
  each.keep_all = o.keep_all;
  each.stop = stop;
  each.sabotage = o.sabotage;
  TruthCache truths;
  std::mutex mutex;
  std::ofstream out(path, std::ios::app);
  int64_t count = 0;
  std::atomic<bool> lost = false;  // records could not be written, e.g. for lack of space
  if (progress != nullptr) progress->begin("drill", static_cast<int64_t>(todo.size()));
  ThreadPool pool(o.threads);
  pool.parallel_for(static_cast<int64_t>(todo.size()), [&](int64_t i) {
    if (lost || (stop != nullptr && stop->load())) return;
    const std::string& id = todo[static_cast<size_t>(i)];
    std::optional<CaseRecord> record;
    if (begun.times(id) >= kMaxTries) {
      record = died(id, o.plan.program);
    } else {
      begun.begin(id);
      record = run_case(id, each, truths);
      begun.end(id);
    }
    const std::lock_guard lock(mutex);
    if (!record) return;
    out << to_line(*record) << std::endl;
    if (!out) lost = true;
    done[id] = std::move(*record);
    if (progress != nullptr) progress->step(++count, id);
  });
  if (!out) return Error{"cannot write", path, "free space, then go on with --resume"};
  Drill drill;
  for (const std::string& id : ids) {
    if (const auto it = done.find(id); it != done.end()) drill.records.push_back(it->second);
  }
  drill.interrupted = drill.records.size() < ids.size();
  if (progress != nullptr)
    progress->end(fmt::format("{} of {} cases", drill.records.size(), ids.size()));
  return drill;
}

}  // namespace twinrun::drill
