// Joins the records of shards.
#include "harness/campaign/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "checkpoints/container/array.h"
#include "checkpoints/container/line_file.h"
#include "program/base/json_checksum.h"
#include "program/base/json_text.h"
#include "program/base/names.h"

namespace twinrun::campaign {
namespace {

namespace fs = std::filesystem;

// The folder of one shard, read.
struct Part {
  std::string folder;
  Plan plan;
};

constexpr size_t kNamed = 8;  // of what is missing, so many are named

// The command of another shard of the same campaign, from that of one.
std::string command_of(const Plan& plan, int64_t index, bool resume) {
  std::string command = plan.run.command;
  const std::string from = to_string(plan.shard), to = to_string({index, plan.shard.count});
  for (const char* before : {"--shard ", "--shard="}) {
    const size_t at = command.find(before + from);
    if (at != std::string::npos)
      command.replace(at + std::string_view(before).size(), from.size(), to);
  }
  const bool has_it = command.find(" --resume") != std::string::npos;
  return command + (resume && !has_it ? " --resume" : "");
}

Result<std::vector<Part>> parts_of(const std::vector<std::string>& folders) {
  std::vector<Part> parts;
  const auto add = [&](const fs::path& folder) -> Status {
    TWINRUN_ASSIGN(Plan plan, read_plan((folder / kPlanFile).string()));
    parts.push_back({folder.string(), std::move(plan)});
    return Ok{};
  };
  for (const std::string& folder : folders) {
    std::error_code error, ignored;
    std::vector<fs::path> shards;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      const std::string name = it->path().filename().string();
      if (name.starts_with("shard-") && fs::exists(it->path() / kPlanFile, ignored))
        shards.push_back(it->path());
    }
    if (error)
      return Error{"cannot be read: " + error.message(), folder, "name a folder of shards"};
    std::ranges::sort(shards);
    const bool is_part = fs::exists(fs::path(folder) / kPlanFile, ignored);
    // The merged campaign may lie beside its shards: what it says comes from them.
    if (is_part && shards.empty()) TWINRUN_RETURN_IF_ERROR(add(folder));
    for (const fs::path& shard : shards) TWINRUN_RETURN_IF_ERROR(add(shard));
    if (!is_part && shards.empty())
      return Error{fmt::format("holds no {}, and no folder shard-I-of-N with one", kPlanFile),
                   folder,
                   "name the folder that was given to -o of the runs, or folders of shards"};
  }
  return parts;
}

// Checks that all parts are of one campaign.
Status check_same(const std::vector<Part>& parts) {
  const Part& first = parts.front();
  for (const Part& part : parts) {
    std::string why = conflict(first.plan, part.plan);
    if (why.empty() && first.plan.setting != part.plan.setting) {
      for (const auto& [a, b] : {std::pair(&first, &part), std::pair(&part, &first)}) {
        for (const auto& [key, value] : a->plan.setting) {
          if (!b->plan.setting.contains(key)) why = fmt::format("only {} has {}", a->folder, key);
        }
      }
    }
    if (why.empty() && first.plan.total != part.plan.total)
      why = fmt::format("{} cases and {}", first.plan.total, part.plan.total);
    if (why.empty() && first.plan.all != part.plan.all) why = "other ids of cases";
    if (why.empty() && first.plan.records != part.plan.records) why = "other files of records";
    if (why.empty() && first.plan.shard.count != part.plan.shard.count)
      why = fmt::format("{} shards and {}", first.plan.shard.count, part.plan.shard.count);
    if (!why.empty())
      return Error{fmt::format("is of another campaign than {}: {}", first.folder, why),
                   part.folder, "merge the shards of one command, with the same N"};
  }
  return Ok{};
}

Status check_complete(const std::vector<Part>& parts) {
  const Plan& plan = parts.front().plan;
  std::set<int64_t> there;
  for (const Part& part : parts) there.insert(part.plan.shard.index);
  std::vector<std::string> missing;
  std::optional<int64_t> first;
  for (int64_t i = 0; i < plan.shard.count; ++i) {
    if (there.contains(i)) continue;
    if (!first) first = i;
    missing.push_back(std::to_string(i));
  }
  if (!first) return Ok{};
  const size_t count = missing.size();
  if (count > kNamed) {
    missing.resize(kNamed);
    missing.push_back(fmt::format("and {} more", count - kNamed));
  }
  return Error{
      fmt::format("{} of {} shards missing: {}", count, plan.shard.count, join(missing, ", ")),
      fs::path(parts.front().folder).parent_path().string(),
      fmt::format("run {}: {}", count == 1 ? "it" : "the others in the same way",
                  command_of(plan, *first, false))};
}

// Whether two results of one case can both stand: one that failed gives way to one that did not.
Result<bool> replaces(const Record& now, const std::string& now_from, const Record& before,
                      const std::string& before_from, std::vector<std::string>& notes) {
  if (now.failed != before.failed) {
    notes.push_back(fmt::format("case {} failed in {} and has a result in {}, which counts", now.id,
                                now.failed ? now_from : before_from,
                                now.failed ? before_from : now_from));
    return before.failed;
  }
  if (now.failed || now.result == before.result) return false;
  const auto a = nlohmann::json::parse(before.result), b = nlohmann::json::parse(now.result);
  std::vector<std::string> differ;
  for (const auto& [key, value] : a.items()) {
    if (!b.contains(key) || b.at(key) != value) differ.push_back(key);
  }
  for (const auto& [key, value] : b.items()) {
    if (!a.contains(key)) differ.push_back(key);
  }
  return Error{fmt::format("DETERMINISM IS BROKEN: case {} was computed twice, with different "
                           "results ({} and {}); they differ in: {}",
                           now.id, before_from, now_from, join(differ, ", ")),
               now_from,
               "do not use either; run the case alone on both machines, and twinrun doctor there"};
}

}  // namespace

Result<Record> record_from(std::string_view line) {
  const auto parsed = parse_json_text(line);
  if (!parsed) return Error{"not a record: it " + parsed.error().what, "", ""};
  if (!parsed->is_object() || !parsed->contains("id") || !parsed->at("id").is_string())
    return Error{"not a record: not a JSON object with a text \"id\"", "", ""};
  Record record{.id = parsed->at("id"), .line = std::string(line)};
  TWINRUN_ASSIGN(record.has_checksum, check_checksum(line, ""));
  if (const auto error = parsed->find("error"); error != parsed->end())
    record.failed = !error->is_string() || !error->get<std::string>().empty();
  nlohmann::json result = nlohmann::json::object();
  for (const auto& [key, value] : parsed->items()) {
    if (!key.ends_with("seconds") && key != "run" && key != "checksum") result[key] = value;
  }
  record.result = result.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return record;
}

Result<std::vector<Record>> read_records(const std::string& path) {
  std::vector<Record> records;
  std::error_code error;
  if (!fs::exists(path, error) && !error) return records;
  TWINRUN_ASSIGN(const auto bytes, read_whole_file(path));
  int64_t number = 0;
  for (const std::string_view line :
       whole_lines({reinterpret_cast<const char*>(bytes.data()), bytes.size()})) {
    ++number;
    auto record = record_from(line);
    if (!record)
      return Error{record.error().what, fmt::format("{}:{}", path, number),
                   "delete the line, and run its case again with --resume"};
    records.push_back(std::move(*record));
  }
  return records;
}

Result<Merged> merge(const std::vector<std::string>& folders) {
  TWINRUN_ASSIGN(std::vector<Part> parts, parts_of(folders));
  if (parts.empty())
    return Error{"no folder is given", "", "name the folder that was given to -o of the runs"};
  TWINRUN_RETURN_IF_ERROR(check_same(parts));
  std::ranges::stable_sort(parts, {}, [](const Part& part) { return part.plan.shard; });
  Merged merged;
  std::map<int64_t, std::pair<Record, std::string>> found;  // by number; with the folder
  int64_t unchecked = 0;
  for (const Part& part : parts) {
    const std::string path = (fs::path(part.folder) / part.plan.records).string();
    TWINRUN_ASSIGN(const auto records, read_records(path));
    std::map<std::string, int64_t> planned;
    for (const PlannedCase& c : part.plan.cases) planned.emplace(c.id, c.number);
    for (const Record& record : records) {
      const auto it = planned.find(record.id);
      if (it == planned.end()) {
        merged.notes.push_back(
            fmt::format("{}: case {} is not in the plan and is left out", path, record.id));
        continue;
      }
      unchecked += record.has_checksum ? 0 : 1;
      const auto [place, first] = found.try_emplace(it->second, record, part.folder);
      if (first) continue;
      TWINRUN_ASSIGN(const bool newer, replaces(record, part.folder, place->second.first,
                                                place->second.second, merged.notes));
      if (newer) place->second = {record, part.folder};
    }
  }
  TWINRUN_RETURN_IF_ERROR(check_complete(parts));
  merged.plan = parts.front().plan;
  merged.plan.shard = {};
  merged.plan.cases.clear();
  std::map<int64_t, std::string> ids;
  for (const Part& part : parts) {
    std::vector<std::string> lacking;
    for (const PlannedCase& c : part.plan.cases) {
      ids.emplace(c.number, c.id);
      if (!found.contains(c.number)) lacking.push_back(c.id);
    }
    if (!lacking.empty()) {
      return Error{
          fmt::format("{} of {} cases have no record: {}{}", lacking.size(), part.plan.cases.size(),
                      lacking.front(), lacking.size() > 1 ? ", ..." : ""),
          part.folder, "go on with it: " + command_of(part.plan, part.plan.shard.index, true)};
    }
    if (std::ranges::find(merged.runs, part.plan.run) == merged.runs.end())
      merged.runs.push_back(part.plan.run);
  }
  std::vector<std::string> all;
  for (const auto& [number, id] : ids) {
    merged.plan.cases.push_back({number, id});
    all.push_back(id);
  }
  if (static_cast<int64_t>(all.size()) != merged.plan.total || digest_of(all) != merged.plan.all)
    return Error{fmt::format("the plans name {} cases with the digest {}; expected {} with {}",
                             all.size(), digest_of(all), merged.plan.total, merged.plan.all),
                 parts.front().folder, "run the shards again in an empty folder"};
  for (auto& [number, record] : found) merged.lines.push_back(std::move(record.first.line));
  if (unchecked > 0)
    merged.notes.push_back(
        fmt::format("{} of {} records: each {}", unchecked, merged.lines.size(), kNoChecksum));
  if (std::ranges::any_of(
          merged.runs, [&](const RunFacts& run) { return run.build != merged.runs.front().build; }))
    merged.notes.push_back(
        "the shards were computed by different builds of the program (run.json)");
  return merged;
}

}  // namespace twinrun::campaign
