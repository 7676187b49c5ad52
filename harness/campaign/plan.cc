// Writes and reads plan.json.
#include "harness/campaign/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/crc.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoints/container/array.h"
#include "checkpoints/container/atomic_file.h"
#include "program/base/json_checksum.h"
#include "program/base/json_text.h"

namespace twinrun::campaign {
namespace {

constexpr int kPlanSchema = 1;

}  // namespace

std::string digest_of(const std::vector<std::string>& ids) {
  boost::crc_32_type crc;
  for (const std::string& id : ids) {
    crc.process_bytes(id.data(), id.size());
    crc.process_byte('\n');
  }
  return fmt::format("crc32:{:08x}", crc.checksum());
}

Plan make_plan(std::string verb, std::string records, std::map<std::string, std::string> setting,
               const std::vector<std::string>& ids, const Shard& shard) {
  Plan plan{.verb = std::move(verb),
            .records = std::move(records),
            .setting = std::move(setting),
            .total = static_cast<int64_t>(ids.size()),
            .all = digest_of(ids),
            .shard = shard};
  for (size_t i = 0; i < ids.size(); ++i) {
    if (has(shard, ids[i])) plan.cases.push_back({static_cast<int64_t>(i), ids[i]});
  }
  return plan;
}

std::string to_json(const Plan& plan) {
  nlohmann::ordered_json numbers = nlohmann::ordered_json::array(), ids = numbers;
  for (const PlannedCase& c : plan.cases) {
    numbers.push_back(c.number);
    ids.push_back(c.id);
  }
  const nlohmann::ordered_json json = {{"schema", kPlanSchema},
                                       {"verb", plan.verb},
                                       {"records", plan.records},
                                       {"setting", plan.setting},
                                       {"total", plan.total},
                                       {"all", plan.all},
                                       {"shard", to_string(plan.shard)},
                                       {"run",
                                        {{"command", plan.run.command},
                                         {"date", plan.run.date},
                                         {"machine", plan.run.machine},
                                         {"build", plan.run.build}}},
                                       {"numbers", numbers},
                                       {"ids", ids}};
  return with_checksum(json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

Result<Plan> plan_from(std::string_view text, const std::string& where) {
  const std::string fix = "run the shard again in an empty folder, without --resume";
  const auto parsed = parse_json_text(text);
  if (!parsed) return Error{"not a plan: it " + parsed.error().what, where, fix};
  if (!parsed->is_object()) return Error{"not a plan: not a JSON object", where, fix};
  TWINRUN_RETURN_IF_ERROR(check_checksum(text, where));
  try {
    const nlohmann::json& json = *parsed;
    if (json.at("schema") != kPlanSchema)
      return Error{fmt::format("schema {}; this program reads {}",
                               json.at("schema").dump().substr(0, 40), kPlanSchema),
                   where, "use the version of twinrun that wrote it"};
    Plan plan;
    plan.verb = json.at("verb");
    plan.records = json.at("records");
    // The name comes from a file: it must not lead to another folder.
    if (plan.records.empty() || plan.records.find('/') != std::string::npos ||
        plan.records.front() == '.')
      return Error{fmt::format("records are in '{}'; expected the name of a file beside the plan",
                               plan.records.substr(0, 60)),
                   where, fix};
    plan.setting = json.at("setting").get<std::map<std::string, std::string>>();
    plan.total = json_integer<int64_t>(json.at("total"));
    plan.all = json.at("all");
    const auto shard = parse_shard(json.at("shard").get<std::string>());
    if (!shard) return Error{shard.error().what, where, fix};
    plan.shard = *shard;
    const nlohmann::json& run = json.at("run");
    plan.run = {run.at("command"), run.at("date"), run.at("machine"), run.at("build")};
    const nlohmann::json &numbers = json.at("numbers"), &ids = json.at("ids");
    if (numbers.size() != ids.size())
      return Error{fmt::format("{} numbers of {} cases", numbers.size(), ids.size()), where, fix};
    for (size_t i = 0; i < ids.size(); ++i) {
      PlannedCase c{json_integer<int64_t>(numbers.at(i)), ids.at(i).get<std::string>()};
      const bool ordered = plan.cases.empty() || plan.cases.back().number < c.number;
      if (c.number < 0 || c.number >= plan.total || !ordered)
        return Error{fmt::format("case {} has the number {}; expected rising numbers below {}",
                                 c.id, c.number, plan.total),
                     where, fix};
      if (!has(plan.shard, c.id))
        return Error{fmt::format("case {} belongs to shard {}, not to {}", c.id,
                                 shard_of(c.id, plan.shard.count), to_string(plan.shard)),
                     where, fix};
      plan.cases.push_back(std::move(c));
    }
    return plan;
  } catch (const nlohmann::json::exception& e) {
    return Error{fmt::format("not a plan: {}", e.what()), where, fix};
  }
}

Result<Plan> read_plan(const std::string& path) {
  TWINRUN_ASSIGN(const auto bytes, read_whole_file(path));
  return plan_from({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

std::string conflict(const Plan& a, const Plan& b) {
  if (a.verb != b.verb) return fmt::format("of twinrun {} and of twinrun {}", a.verb, b.verb);
  for (const auto& [key, value] : a.setting) {
    const auto it = b.setting.find(key);
    if (it != b.setting.end() && it->second != value)
      return fmt::format("{}: {} and {}", key, value, it->second);
  }
  return "";
}

Status begin(const Plan& plan, const std::string& folder, bool resume) {
  const std::string path = (std::filesystem::path(folder) / kPlanFile).string();
  std::error_code ignored;
  if (resume && std::filesystem::exists(path, ignored)) {
    TWINRUN_ASSIGN(const Plan before, read_plan(path));
    std::string why = conflict(before, plan);
    if (why.empty() && before.shard != plan.shard)
      why = fmt::format("shard {} and {}", to_string(before.shard), to_string(plan.shard));
    if (!why.empty())
      return Error{
          fmt::format("the records here are of another campaign ({})", why), path,
          "repeat its command (" + before.run.command + "), or choose another folder with -o"};
  }
  return write_file_atomically(path, to_json(plan));
}

}  // namespace twinrun::campaign
