// Calls the program that makes environments, and keeps them within the disk that is allowed.
#include "harness/bisect/environments.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "checkpoints/container/atomic_file.h"
#include "harness/bisect/release_version.h"
#include "harness/search/session.h"
#include "program/base/json_checksum.h"
#include "program/base/json_text.h"
#include "reports/text.h"

namespace twinrun::bisect {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kUnavailable = 75;  // exit code: the version cannot be had

// The last line of what the program printed, as JSON; null if it is none.
Json last_object(const std::string& file) {
  auto parsed = parse_ordered_json_text(last_line(file), {.members = 100'000});
  return parsed ? *std::move(parsed) : Json();
}

std::string text_at(const Json& j, const char* key) {
  return j.is_object() && j.contains(key) && j[key].is_string() ? j[key].get<std::string>() : "";
}

double number_at(const Json& j, const char* key) {
  return j.is_object() && j.contains(key) && j[key].is_number() ? j[key].get<double>() : 0;
}

int64_t integer_at(const Json& j, const char* key) {
  return j.is_object() && j.contains(key) && j[key].is_number_integer() ? j[key].get<int64_t>() : 0;
}

bool flag_at(const Json& j, const char* key) {
  return j.is_object() && j.contains(key) && j[key].is_boolean() && j[key].get<bool>();
}

// Compares "3.9" and "3.10" as versions.
bool older_python(const std::string& a, const std::string& b) {
  const auto x = ReleaseVersion::parse(a), y = ReleaseVersion::parse(b);
  return x.ok() && y.ok() ? *x < *y : a < b;
}

}  // namespace

Environments::Environments(EnvironmentOptions options, const StopFlag* stop)
    : options_(std::move(options)), stop_(stop) {
  if (!options_.resume) return;
  std::error_code ignored;
  for (const auto& file :
       fs::directory_iterator(fs::path(options_.folder) / "environments", ignored)) {
    std::stringstream text;
    text << std::ifstream(file.path()).rdbuf();
    if (!check_checksum(text.str(), file.path())) continue;  // as if nothing were known of it
    const auto parsed = parse_ordered_json_text(text.str());
    const Json j = parsed ? *parsed : Json();
    const std::string version = text_at(j, "version");
    if (version.empty() || file.path().extension() != ".json") continue;
    Noted n;
    n.environment = {"",
                     text_at(j, "python"),
                     text_at(j, "python_version"),
                     flag_at(j, "made"),
                     number_at(j, "seconds"),
                     integer_at(j, "bytes")};
    n.asked = text_at(j, "asked");
    n.present = flag_at(j, "present");
    n.used = integer_at(j, "used");
    calls_ = std::max(calls_, n.used);
    if (n.environment.made) ++made_, seconds_ += n.environment.seconds;
    noted_[version] = std::move(n);
  }
}

std::vector<std::string> Environments::words(const std::string& version,
                                             const std::string& python) const {
  std::vector<std::string> all = options_.command;
  all.push_back(fmt::format("{}=={}", options_.package, version));
  all.insert(all.end(), options_.requirements.begin(), options_.requirements.end());
  if (!python.empty()) all.insert(all.end(), {"--python", python});
  return all;
}

Result<std::vector<Release>> Environments::releases() const {
  const std::string out = (fs::path(options_.folder) / "releases.json").string();
  const std::string log = (fs::path(options_.folder) / "releases.log").string();
  std::error_code ignored;
  fs::remove(log, ignored);
  std::vector<std::string> all = options_.command;
  all.insert(all.end(), {"--releases", options_.package});
  TWINRUN_ASSIGN(const CommandResult ran, run_command(all, {.log = log, .out = out}, stop_));
  if (ran.ended == CommandResult::Ended::kInterrupted) return interrupted();
  const Json j = last_object(out);
  const std::string told = text_at(j, "unavailable");
  if (!told.empty()) return Error{told, options_.package, "name a package as pip does"};
  const std::string said = text::clean(last_line(log));
  if (said.find("No module named") != std::string::npos &&
      said.find("twinrun") != std::string::npos)
    return Error{said, options_.command[0],
                 "pip install twinrun, or set PYTHONPATH to the folder adapters of a checkout; "
                 "$TWINRUN_PYTHON names another Python"};
  if (!j.is_object() || !j.contains("releases") || !j["releases"].is_array())
    return Error{fmt::format("the releases of {} are not known: {}", options_.package,
                             said.empty() ? ran.text() : said),
                 options_.command[0], "see " + log};
  std::vector<Release> releases;
  for (const Json& r : j["releases"]) {
    Release release{text_at(r, "version"), false, {}, text_at(r, "date")};
    if (r.is_object() && r.contains("yanked"))
      release.yanked = r["yanked"].is_boolean() ? r["yanked"].get<bool>() : !r["yanked"].is_null();
    if (r.is_object() && r.contains("pythons") && r["pythons"].is_array()) {
      for (const Json& p : r["pythons"]) {
        if (p.is_string()) release.pythons.push_back(p);
      }
    }
    if (!release.version.empty()) releases.push_back(std::move(release));
  }
  return releases;
}

Result<Environment> Environments::make(const std::string& version, const std::string& python,
                                       const std::vector<std::string>& needed,
                                       const std::string& log) {
  if (ready(version)) {
    Noted& n = noted_[version];
    n.used = ++calls_;
    TWINRUN_RETURN_IF_ERROR(write(version));
    return n.environment;
  }
  TWINRUN_RETURN_IF_ERROR(make_room(version, needed, log));
  const std::string out = (fs::path(options_.folder) / "environment.json").string();
  TWINRUN_ASSIGN(const CommandResult ran,
                 run_command(words(version, python), {.log = log, .out = out}, stop_));
  if (ran.ended == CommandResult::Ended::kInterrupted) return interrupted();
  const Json j = last_object(out);
  Environment e{.python = text_at(j, "python"), .python_version = text_at(j, "python_version")};
  if (ran.ended != CommandResult::Ended::kExit || ran.code != 0 || e.python.empty()) {
    e.unavailable = text_at(j, "unavailable");
    if (e.unavailable.empty())
      e.unavailable =
          fmt::format("no environment: {}, {}", ran.text(), text::clean(last_line(log)));
    return e;
  }
  e.seconds = number_at(j, "seconds");
  e.bytes = static_cast<int64_t>(number_at(j, "bytes"));
  const bool now = j.value("made", false);
  Noted& n = noted_[version];
  e.made = now || (n.present && n.environment.made);
  if (now) ++made_, seconds_ += e.seconds;
  n = {e, python, true, true, ++calls_};
  TWINRUN_RETURN_IF_ERROR(write(version));
  return e;
}

bool Environments::ready(const std::string& version) const {
  const auto it = noted_.find(version);
  return it != noted_.end() && it->second.present && it->second.confirmed;
}

const Environment* Environments::noted(const std::string& version) const {
  const auto it = noted_.find(version);
  return it == noted_.end() ? nullptr : &it->second.environment;
}

int64_t Environments::bytes() const {
  int64_t sum = 0;
  for (const auto& [version, n] : noted_)
    sum += n.present && n.environment.made ? n.environment.bytes : 0;
  return sum;
}

Status Environments::make_room(const std::string& version, const std::vector<std::string>& needed,
                               const std::string& log) {
  const auto own = noted_.find(version);
  if (own != noted_.end() && own->second.present) return Ok{};
  int64_t largest = 0;  // what the next one may take
  for (const auto& [name, n] : noted_) largest = std::max(largest, n.environment.bytes);
  while (static_cast<double>(bytes() + largest) > options_.disk) {
    const auto rank = [&](const auto& entry) {
      return std::pair(std::ranges::find(needed, entry.first) != needed.end(), entry.second.used);
    };
    auto victim = noted_.end();
    for (auto it = noted_.begin(); it != noted_.end(); ++it) {
      if (!it->second.present || !it->second.environment.made) continue;
      if (victim == noted_.end() || rank(*it) < rank(*victim)) victim = it;
    }
    if (victim == noted_.end()) return Ok{};  // one alone may be larger than what is allowed
    std::vector<std::string> all = words(victim->first, victim->second.asked);
    all.insert(all.begin() + static_cast<std::ptrdiff_t>(options_.command.size()), "--remove");
    TWINRUN_ASSIGN(const CommandResult ran, run_command(all, {.log = log}, stop_));
    if (ran.ended == CommandResult::Ended::kInterrupted) return interrupted();
    victim->second.present = false;
    ++removed_;
    TWINRUN_RETURN_IF_ERROR(write(victim->first));
  }
  return Ok{};
}

Status Environments::write(const std::string& version) const {
  const Noted& n = noted_.at(version);
  const Json j = {{"version", version},
                  {"python", n.environment.python},
                  {"python_version", n.environment.python_version},
                  {"asked", n.asked},
                  {"made", n.environment.made},
                  {"present", n.present},
                  {"seconds", n.environment.seconds},
                  {"bytes", n.environment.bytes},
                  {"used", n.used}};
  const fs::path folder = fs::path(options_.folder) / "environments";
  std::error_code failed;
  fs::create_directories(folder, failed);
  return write_file_atomically(
      (folder / (version + ".json")).string(),
      with_checksum(j.dump(1, ' ', false, Json::error_handler_t::replace) + "\n"));
}

std::string common_python(const std::vector<Release>& releases) {
  std::map<std::string, int> counts;
  for (const Release& r : releases) {
    for (const std::string& p : r.pythons) ++counts[p];
  }
  std::string best;
  for (const auto& [python, count] : counts) {
    if (best.empty() || count > counts[best] ||
        (count == counts[best] && older_python(best, python)))
      best = python;
  }
  return best;
}

std::string python_for(const Release& release, const std::string& common) {
  if (std::ranges::find(release.pythons, common) != release.pythons.end()) return common;
  const auto newest = std::ranges::max_element(release.pythons, older_python);
  return newest == release.pythons.end() ? "" : *newest;
}

}  // namespace twinrun::bisect
