// Runs the cases of a drill in parallel, and resumes an interrupted drill.
#include "harness/drill/drill.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "backends/faults/faults.h"
#include "checkpoints/checkpoint.h"
#include "checkpoints/container/array.h"
#include "checkpoints/container/atomic_file.h"
#include "checkpoints/container/line_file.h"
#include "harness/drill/own_process.h"
#include "harness/host/environment.h"
#include "program/base/digest.h"
#include "program/base/json_checksum.h"
#include "program/base/os_error.h"
#include "scenarios/library.h"

namespace twinrun::drill {
namespace {

namespace fs = std::filesystem;

// A record without what says how the run went.
std::string result_of(CaseRecord record) {
  record.seconds = record.truth_seconds = 0;
  return to_line(record);
}

// The records of earlier runs and of other shares, whose files may stand one after the other. A case
// whose line was not written whole, or that ended in an error, runs again. Errors: another line that
// cannot be read, or that was changed after it was written; two results of one case.
Result<std::map<std::string, CaseRecord>> finished(const std::string& path) {
  std::map<std::string, CaseRecord> done;
  std::error_code error;
  if (!fs::exists(path, error) && !error) return done;
  TWINRUN_ASSIGN(const auto bytes, read_whole_file(path));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  int64_t number = 0;
  for (const std::string_view line : whole_lines(text)) {
    ++number;
    const std::string where = fmt::format("{}:{}", path, number);
    auto record = from_line(std::string(line));
    if (!record)
      return Error{record.error().what, where,
                   "delete the line, and its case runs again; or begin again without --resume"};
    if (!record->error.empty()) continue;
    const auto [before, is_new] = done.try_emplace(record->injected.id, *record);
    if (!is_new && before->second.setting == record->setting &&
        result_of(before->second) != result_of(*record))
      return Error{
          fmt::format("DETERMINISM IS BROKEN: case {} has two results", record->injected.id), where,
          "run it with --case on both machines, and compare the reports"};
  }
  return done;
}

// One empty file per case that is running. A file left over means that the process died, in this
// case or in one running beside it, or that the machine ended it.
class Begun {
 public:
  explicit Begun(fs::path folder) : folder_(std::move(folder)) {}
  bool left(const std::string& id) const {
    std::error_code ignored;
    return fs::exists(file_of(id), ignored);
  }
  void begin(const std::string& id) const { std::ofstream(file_of(id)) << std::flush; }
  void end(const std::string& id) const {
    std::error_code ignored;
    fs::remove(file_of(id), ignored);
  }

 private:
  // An id may hold the path of a scenario.
  fs::path file_of(std::string id) const {
    std::ranges::replace(id, '/', ':');
    return folder_ / id;
  }
  fs::path folder_;
};

// Runs a case during which a process died once more, in a process of its own. A case that brings
// this one down, too, is recorded as such; what the machine ended is no result.
Result<std::optional<CaseRecord>> run_apart(const std::string& id, const CaseOptions& options) {
  const auto work = [&]() -> std::string {
    TruthCache truths;
    const auto ran = run_case(id, options, truths);
    if (!ran) return "error " + ran.error().where + ": " + ran.error().what;
    return *ran ? "record " + to_line(**ran) : "stopped";
  };
  TWINRUN_ASSIGN(const OwnProcess ran, in_own_process(work, options.stop));
  if (!ran.answer && ran.by_itself()) {
    CaseRecord r;
    if (auto drawn = draw_case(id, options.program)) r.injected = std::move(*drawn);
    r.injected.id = id;
    r.error = fmt::format("the process died in this case ({})", strsignal(ran.signal));
    return std::optional(std::move(r));
  }
  const std::string answer = ran.answer.value_or(
      "error " + (ran.signal == 0
                      ? std::string("its process could not hand over the result")
                      : fmt::format("was ended by a signal ({})", strsignal(ran.signal))));
  if (answer == "stopped") return std::optional<CaseRecord>();
  if (answer.starts_with("error "))
    return Error{answer.substr(std::strlen("error ")), id, kFreeAndResume, Error::Kind::kMachine};
  TWINRUN_ASSIGN(CaseRecord record, from_line(answer.substr(std::strlen("record "))));
  return std::optional(std::move(record));
}

Result<std::vector<std::string>> ids_of(const DrillOptions& o) {
  if (!o.ids.empty()) {
    std::vector<std::string> ids;
    for (const std::string& id : o.ids) {
      TWINRUN_RETURN_IF_ERROR(parse_id(id));
      if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
    }
    return ids;
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
        "--only",
        "kinds: those of docs/reference/scenarios.md#kinds-of-faults; more cases: --cases"};
  }
  return wanted;
}

// What decides the result of a case besides its id, as a digest: the numerics, the version, and the
// scenario or the program. A scenario that cannot be read has its name alone, and its cases end in
// an error.
Result<std::string> setting_of(const std::string& scenario, const ProgramFiles& files) {
  std::string text =
      fmt::format("contract {}, version {}", kContractVersion, environment().at("version"));
  if (files.program.empty()) {
    const auto loaded = load_scenario(scenario);
    text += ", " + (loaded ? scenario_digest(*loaded).hex() : scenario);
  }
  for (const std::string& path :
       {files.program, files.binding, files.state, files.batch, files.held_out, files.whole}) {
    text += ", ";
    if (path.empty()) continue;
    TWINRUN_ASSIGN(const auto bytes, read_whole_file(path));
    text += digest_bytes(bytes.data(), bytes.size()).hex();
  }
  return digest_bytes(text.data(), text.size()).hex();
}

// By id.
Result<std::map<std::string, std::string>> settings_of(const std::vector<std::string>& ids,
                                                       const ProgramFiles& files) {
  std::map<std::string, std::string> of_scenarios, settings;
  for (const std::string& id : ids) {
    TWINRUN_ASSIGN(const CaseName name, parse_id(id));
    std::string& setting = of_scenarios[name.scenario];
    if (setting.empty()) {
      TWINRUN_ASSIGN(setting, setting_of(name.scenario, files));
    }
    settings.emplace(id, setting);
  }
  return settings;
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
  TWINRUN_ASSIGN(const std::vector<std::string> all, ids_of(o));
  std::vector<std::string> ids;
  for (size_t i = 0; i < all.size(); ++i) {
    if (static_cast<int64_t>(i) % o.shares == o.share) ids.push_back(all[i]);
  }
  Drill drill;
  const fs::path folder(o.directory);
  std::error_code error;
  if (!o.resume) fs::remove_all(folder / "begun", error);
  for (const char* name : {"cases", "begun"}) {
    if (!error) fs::create_directories(folder / name, error);
  }
  if (error)
    return Error{"cannot create the folder: " + error.message(), o.directory,
                 "choose another with --out", kind_of_failure(error.value())};
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
  TWINRUN_ASSIGN(const auto settings, settings_of(ids, o.plan.program));
  for (const auto& [id, setting] : settings) {
    if (const auto it = done.find(id); it != done.end() && it->second.setting != setting)
      return Error{
          fmt::format("case {} was recorded with another contract, version, scenario or program",
                      id),
          path, "choose another folder with --out, or begin again without --resume"};
  }
  std::string known;
  for (const auto& [id, record] : done) known += to_line(record) + "\n";
  TWINRUN_ASSIGN(LineFile lines, LineFile::begin(path, known));
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
  int64_t count = 0;
  std::optional<Error> failed;     // what keeps cases from being run or recorded
  std::atomic<bool> over = false;  // nothing more is begun
  const auto add = [&](const std::string& id, Result<std::optional<CaseRecord>> ran) {
    if (ran && !*ran) return;
    if (ran) (*ran)->setting = settings.at(id);
    const Status added = ran ? lines.add(to_line(**ran)) : Status(ran.error());
    if (!added) {
      if (!failed) {
        failed = added.error();
        if (ran) failed->fix = kFreeAndResume;
      }
      over = true;
      return;
    }
    done[id] = std::move(**ran);
    if (progress != nullptr) progress->step(++count, id);
  };
  if (progress != nullptr) progress->begin("drill", static_cast<int64_t>(todo.size()));
  const auto first_apart = std::stable_partition(
      todo.begin(), todo.end(), [&](const std::string& id) { return !begun.left(id); });
  for (auto it = first_apart; it != todo.end(); ++it) {
    const std::string& id = *it;
    if (over || (stop != nullptr && stop->load())) break;
    Result<std::optional<CaseRecord>> ran = run_apart(id, each);
    const bool known = ran && *ran && (*ran)->error.empty();
    if (ran) {
      add(id, std::move(ran));
    } else if (!failed) {  // the other cases may well run
      failed = ran.error();
    }
    if (known) begun.end(id);
  }
  todo.erase(first_apart, todo.end());

  TruthCache truths;
  std::mutex mutex;
  ThreadPool pool(o.threads);
  pool.parallel_for(static_cast<int64_t>(todo.size()), [&](int64_t i) {
    if (over || (stop != nullptr && stop->load())) return;
    const std::string& id = todo[static_cast<size_t>(i)];
    begun.begin(id);
    auto ran = run_case(id, each, truths);
    begun.end(id);
    const std::lock_guard lock(mutex);
    add(id, std::move(ran));
  });
  if (failed) return *failed;
  std::string sorted;
  for (const std::string& id : ids) {
    const auto it = done.find(id);
    if (it == done.end()) continue;
    // The tables are made of what stands in the file, so that those of shares give the same ones.
    const std::string line = to_line(it->second);
    TWINRUN_ASSIGN(CaseRecord record, from_line(line));
    sorted += line + "\n";
    drill.records.push_back(std::move(record));
    done.erase(it);
  }
  drill.interrupted = drill.records.size() < ids.size();
  if (!drill.interrupted) {
    for (const auto& [id, record] : done) sorted += to_line(record) + "\n";
    TWINRUN_RETURN_IF_ERROR(write_file_atomically(path, sorted));
  }
  if (progress != nullptr)
    progress->end(fmt::format("{} of {} cases", drill.records.size(), ids.size()));
  return drill;
}

}  // namespace twinrun::drill
